import io
import textwrap
from datetime import UTC, datetime
from itertools import accumulate, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.config import Config
from streamd.daemon.display import open_display
from streamd.events import (
    Eos,
    Fault,
    Final,
    Gap,
    Lag,
    Partial,
    SpeakerName,
    SpeakerTurn,
    SpeakerTurns,
    TimedWord,
    Vad,
)
from streamd.labels import of_channel
from streamd.options import OutputOptions
from streamd.sinks.terminal import TerminalSink
from streamd.sinks.text import Look, Span, blank_between, confidence_ramp, width, wrapped
from streamd.sinks.writing import StreamSink
from tests.support.emulator import Emulator, plain_rows
from tests.support.said import spoken

WIDTHS = (30, 60, 80, 120)
CJK = "東京都では今日は雨が降っていますが明日は晴れるでしょうと気象庁が発表しました"


def partial(text, *, stable=0, seg=1, **fields):
    return Partial(seg=seg, rev=1, start_ms=0, end_ms=1000, text=text, stable=stable, **fields)


def final(text, *, seg=1, **fields):
    return Final(seg=seg, start_ms=0, end_ms=1000, text=text, language="en", **fields)


def terminal(columns=80, lines=24, look=None):
    emulator = Emulator(columns, lines)
    return emulator, TerminalSink(emulator, look or Look(), size=emulator.size)


def on_paper(columns=80):
    """A function that returns what a terminal is sent for an event."""
    stream = io.StringIO()
    sink = TerminalSink(stream, Look(), size=lambda: (columns, 24))

    def written(event):
        at = stream.tell()
        sink.write(event)
        return stream.getvalue()[at:]

    return written


words = st.text("abcdefgh", min_size=1, max_size=9) | st.sampled_from(
    ["日本語", "字", "cafe\u0301", "n\u0303", "😀", "🎉🎉", "ｗｉｄｅ", "한국어"]
)
texts = st.lists(words, max_size=60).map(" ".join)
short_texts = st.text("xyz", min_size=1, max_size=29)
notices = st.sampled_from(
    [
        Lag(lag_ms=3200),
        Lag(lag_ms=0),
        Vad(speech=True, t_ms=0),
        Gap(t_ms=5000, duration_ms=1200, why="paused"),
        Fault(code="x", message="engine restarted"),
    ]
)
SHOWN = {"gap": "[1.2 s of audio lost: paused]", "error": "[engine restarted]"}


class Model:
    """What a reader should see: finals once, in order, as one paragraph, then the partial, once.

    With a `pause` before each of them, each is a paragraph.
    """

    def __init__(self, columns=80, *, pause=False):
        self.columns, self.pause = columns, pause
        self.seg = 1
        self.lines = []
        self.open = ""
        self.text = ""
        self.lag = ""

    def event(self, step):
        kind, value = step
        if kind == "partial":
            self.text, self.lag = value, ""
            return self.timed(partial(value, stable=len(value) // 2, seg=self.seg))
        if kind == "final":
            self.seg += 1
            self.text = self.lag = ""
            if value:
                if self.pause and self.open:
                    self.lines.append(self.open)
                before = "" if self.pause else self.open
                *full, self.open = rows_of(joined(before, value), self.columns)
                self.lines += full
            return self.timed(final(value, seg=self.seg - 1))
        if isinstance(value, Lag):
            self.lag = f" [{value.lag_ms // 1000} s behind]" if value.lag_ms else ""
        if (line := SHOWN.get(value.__struct_config__.tag)) is not None:
            self.lines += [self.open, line] if self.open else [line]
            self.open = ""
        return value

    def rows(self, columns, lines):
        above = [row for line in self.lines for row in plain_rows(line, columns)]
        if self.pause and self.text:
            below = [*rows_of(self.open, columns), *rows_of(self.text + self.lag, columns)]
        else:
            now = joined(self.open, self.text) if self.text else self.open
            below = rows_of(now + self.lag, columns)
        return above + below[-(lines // 2) :]

    def timed(self, event):
        at_ms = 10_000 * event.seg if self.pause else 0
        return msgspec.structs.replace(event, start_ms=at_ms, end_ms=at_ms)


def joined(before, after):
    return before + blank_between(before, after) + after


def rows_of(text, columns):
    """What a reader sees of a paragraph."""
    rows = ("".join(span.text for span in row) for row in wrapped([Span(text)], columns))
    return [shown for row in rows for shown in plain_rows(row, columns)]


steps = st.lists(
    st.tuples(st.just("partial"), texts)
    | st.tuples(st.just("final"), texts)
    | st.tuples(st.just("notice"), notices),
    max_size=25,
)


@given(steps, st.sampled_from(WIDTHS), st.sampled_from([6, 24]))
def test_finals_once_and_in_order_and_below_them_the_partial_once(steps, columns, lines):
    emulator, sink = terminal(columns, lines)
    model = Model(columns)
    for step in steps:
        sink.write(model.event(step))
        assert emulator.rows() == model.rows(columns, lines)


resizes = st.tuples(st.just("resize"), st.sampled_from(WIDTHS))


@given(
    st.lists(
        st.tuples(st.just("partial"), texts)
        # pyte cuts rows that no longer fit, so finals are as short as the narrowest screen.
        | st.tuples(st.just("final"), short_texts)
        | resizes,
        max_size=25,
    ),
)
def test_no_stale_rows_after_a_resize(steps):
    emulator, sink = terminal(80, 40)
    model = Model(pause=True)
    for step in steps:
        if step[0] == "resize":
            emulator.resize(step[1])
            sink.redraw()
        else:
            sink.write(model.event(step))
        assert emulator.rows() == model.rows(emulator.screen.columns, 40)


@given(
    st.lists(st.tuples(st.just("final"), texts) | resizes, max_size=12),
    texts,
    st.booleans(),
)
def test_the_newest_rows_are_laid_out_again_after_a_resize(steps, partial_text, pause):
    emulator, sink = terminal(80, 400)  # all of it is the newest
    model = Model(pause=pause)
    paragraphs = []
    for kind, value in [*steps, ("partial", partial_text)]:
        if kind == "resize":
            emulator.resize(value)
            sink.redraw()
            continue
        sink.write(model.event((kind, value)))
        if value and paragraphs and not pause:
            paragraphs[-1] = joined(paragraphs[-1], value)
        elif value:
            paragraphs.append(value)
    columns = emulator.screen.columns
    assert emulator.rows() == [row for text in paragraphs for row in rows_of(text, columns)]


def test_the_last_row_of_the_screen_is_not_lost():
    emulator, sink = terminal(20, 4)
    emulator.write("1\r\n2\r\n3\r\n")
    sink.write(final("last"))
    sink.write(Gap(t_ms=5000, duration_ms=1200, why="x"))
    assert emulator.rows()[3] == "last"


def test_rows_that_stand_already_are_not_drawn_again():
    # Otherwise nobody could select them with the mouse.
    written = on_paper(20)
    written(final("first row of finals, second row"))
    drawn = written(partial("and more", seg=2))
    assert "more" in drawn
    assert "first" not in drawn


@given(steps, st.lists(short_texts, min_size=1, max_size=5))
def test_log_lines_stay_above_the_partial(steps, logs):
    emulator, sink = terminal()
    model = Model()
    for i, step in enumerate(steps):
        sink.write(model.event(step))
        log = logs[i % len(logs)]
        with sink.above():
            emulator.write(log + "\r\n")
        model.lines.append(log)
    assert emulator.rows() == model.rows(80, 24)


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_growing_and_shrinking_partial_leaves_nothing_behind(columns):
    emulator, sink = terminal(columns)
    grown = list(accumulate("the quick brown fox jumps over the lazy dog again " * 4))
    for text in [*grown, *reversed(grown)]:
        sink.write(partial(text))
        assert emulator.rows() == rows_of(text, columns)


@pytest.mark.parametrize("columns", [*WIDTHS, 31, 7])
def test_wide_characters_wrap_as_the_terminal_would_wrap_them(columns):
    emulator, sink = terminal(columns, 200)
    sink.write(partial(CJK))
    live = emulator.rows()
    sink.write(final(CJK))
    assert live == emulator.rows()
    assert "".join(emulator.rows()) == CJK


def test_the_screen_that_is_too_small_shows_the_end_of_the_partial():
    emulator, sink = terminal(30, 4)
    sink.write(final("before"))
    sink.write(partial("word " * 40 + "last"))
    assert emulator.rows() == rows_of("before " + "word " * 40 + "last", 30)[-2:]
    sink.write(final("word " * 40 + "last"))
    assert emulator.rows() == rows_of("before " + "word " * 40 + "last", 30)


def test_only_what_changes_is_written():
    written = on_paper()
    assert written(partial("hello"))
    assert not written(partial("hello"))
    assert not written(Lag(lag_ms=400))
    assert not written(Vad(speech=False, t_ms=1000))
    assert written(Lag(lag_ms=2100))
    assert not written(Lag(lag_ms=2900))
    assert not written(Eos(seq=0, reason="stop"))


def test_being_behind_is_shown_until_a_partial_is_in_time():
    emulator, sink = terminal()
    sink.write(Lag(lag_ms=3100))
    sink.write(partial("one", lag_ms=2900))
    assert emulator.rows() == ["one [2 s behind]"]
    sink.write(partial("one two", lag_ms=400))
    assert emulator.rows() == ["one two"]
    sink.write(partial("one two three", lag_ms=1100))
    assert emulator.rows() == ["one two three"]


def test_the_tentative_end_is_faint():
    written = on_paper()
    drawn = written(partial("committed tentative", stable=9))
    assert "committed\x1b[2m tentative\x1b[m" in drawn


def test_words_are_coloured_by_confidence():
    look = Look(ramp=("31", "32"))
    emulator, sink = terminal(look=look)
    sure = TimedWord(text="sure", start_ms=0, end_ms=1, prob=0.99, final=True)
    unsure = TimedWord(text="unsure,", start_ms=1, end_ms=2, prob=0.3, final=True)
    sink.write(final("sure unsure,", words=(sure, unsure)))
    assert emulator.rows() == ["sure unsure,"]
    assert emulator.cell("sure ").fg == "green"
    assert emulator.cell("unsure,").fg == "red"


def test_an_escape_sequence_in_a_transcript_does_nothing():
    emulator, sink = terminal()
    sink.write(final("kept"))
    sink.write(partial("a\x1b[2J\x1b]0;title\x07b\x9b2Jc\rd\ne", stable=3))
    sink.write(Fault(code="x", message="bad\x1b[2J"))
    assert emulator.rows() == ["kept", "[bad�[2J]", "a�[2J�]0;title�b�2Jc d e"]
    assert emulator.screen.title == ""


def test_joined_emoji_never_break_the_rows():
    # Width of the family is 2 to one terminal and 6 to another; wrapping is off meanwhile.
    written = on_paper(30)
    drawn = written(partial("👩‍👩‍👧 " * 10))
    rows = drawn.split("\x1b[?7l")[1].split("\x1b[?7h")[0].split("\r\n")
    assert [row.count("👩‍👩‍👧") for row in rows] == [4, 4, 2]
    assert drawn.endswith("\r\x1b[2A")


def test_a_resize_finds_the_region_without_counting_rows():
    emulator, sink = terminal(80)
    sink.write(final("first"))
    sink.write(partial("word " * 60))
    assert (emulator.screen.cursor.y, emulator.screen.cursor.x) == (0, 0)


def test_the_cursor_is_hidden_only_while_the_last_row_may_go_on():
    emulator, sink = terminal()
    assert not emulator.screen.cursor.hidden
    sink.write(partial("hello"))
    assert emulator.screen.cursor.hidden
    sink.write(final("hello"))
    assert emulator.screen.cursor.hidden
    sink.write(Gap(t_ms=5000, duration_ms=1200, why="paused"))
    assert not emulator.screen.cursor.hidden
    sink.write(partial("again", seg=2))
    sink.close()
    assert not emulator.screen.cursor.hidden


def test_closing_leaves_words_that_never_became_final():
    emulator, sink = terminal(30)
    sink.write(partial("word " * 10 + "end"))
    sink.close()
    emulator.write("$ ")
    assert emulator.rows() == [*rows_of("word " * 10 + "end", 30), "$"]


def opened(stream, *, form="txt", environ=None):
    """The sink that the options choose."""
    config = Config(output=OutputOptions(format=form))
    return open_display(config, stream, environ or {}, started=datetime.now(UTC))


def test_a_pipe_gets_finals_and_gaps_only():
    pipe = io.StringIO()
    sink = opened(pipe)
    assert isinstance(sink, StreamSink)
    for event in [
        partial("hel"),
        final("hello\nthere"),
        Gap(t_ms=3000, duration_ms=1240, why="paused"),
        Lag(lag_ms=5000),
        final(""),
        Eos(seq=1, reason="stop"),
    ]:
        sink.write(event)
    sink.close()
    assert pipe.getvalue() == "hello there\n[1.2 s of audio lost: paused]\n"


def test_jsonl_prints_every_event_in_wire_form():
    pipe = io.StringIO()
    sink = opened(pipe, form="jsonl")
    sink.write(Lag(lag_ms=20))
    sink.write(Eos(seq=3, reason="stop"))
    assert pipe.getvalue() == (
        '{"type":"lag","lag_ms":20}\n{"type":"eos","seq":3,"reason":"stop"}\n'
    )


def test_a_long_paragraph_ends_where_somebody_breathes():
    emulator = Emulator(60, 40)
    sink = TerminalSink(emulator, Look(), size=emulator.size)
    sentence = "Twelve words that somebody says one after the other, and no more."
    for n in range(12):  # every sixth one is followed by a breath
        sink.write(spoken(sentence, start_ms=3_600 * n + 500 * (n // 6), seq=n + 1))
    sink.close()
    paragraphs = [" ".join([sentence] * n) for n in (6, 6)]
    assert emulator.rows() == [row for each in paragraphs for row in textwrap.wrap(each, 60)]


def test_subtitles_can_be_printed():
    pipe = io.StringIO()
    opened(pipe, form="srt").write(final("hello"))
    assert pipe.getvalue() == "1\n00:00:00,000 --> 00:00:01,000\nhello\n\n"


class Tty(io.StringIO):
    def isatty(self):
        return True


def test_a_dumb_terminal_is_served_like_a_pipe():
    assert isinstance(
        opened(Tty(), environ={"TERM": "dumb"}),
        StreamSink,
    )
    assert isinstance(
        opened(Tty(), environ={"TERM": "xterm"}),
        TerminalSink,
    )


def test_an_encoding_without_the_character_does_not_end_the_program():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1", newline="")
    opened(stream).write(final("é 日"))
    assert raw.getvalue() == "é ?\n".encode("latin-1")


def test_colours_are_for_terminals_unless_the_user_insists():
    def ramp(tty=True, **environ):
        return confidence_ramp(environ, is_terminal=tty)

    assert ramp()[0] == "38;5;160"
    assert ramp(COLORTERM="truecolor")[6] == "38;2;78;178;101"
    assert ramp(tty=False) == ramp(NO_COLOR="1") == ramp(NO_COLOR="1", FORCE_COLOR="1") == ()
    assert len(ramp(tty=False, FORCE_COLOR="1")) == 7


def test_an_accent_on_the_last_character_of_a_row_begins_no_other_row():
    said = "a" * 79 + "n\N{COMBINING TILDE}"
    emulator, sink = terminal()
    sink.write(final(said))
    sink.write(partial("b"))
    assert len(emulator.rows()) == 2


def test_the_meter_shows_a_microphone_until_there_are_words():
    emulator, sink = terminal(60, 6)
    sink.meter(0.001)
    assert emulator.rows() == ["microphone ░░░░░░░░░░"]
    sink.meter(0.1)
    assert emulator.rows() == ["microphone ███████░░░"]
    sink.write(partial("hello"))
    sink.meter(1.0)
    assert emulator.rows() == ["hello"]
    sink.write(final("hello"))
    assert emulator.rows() == ["hello", "microphone ██████████"]
    sink.close()
    assert emulator.rows() == ["hello"]


@given(texts, st.sampled_from([7, *WIDTHS]))
def test_rows_fit_break_at_blanks_and_lose_nothing_else(text, columns):
    rows = ["".join(span.text for span in row) for row in wrapped([Span(text)], columns)]
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")
    for row, after in pairwise(rows):
        assert 0 < width(row) <= columns
        if row.isascii() and after.isascii() and row[-1] != " ":
            longest = max(map(width, text.split()))
            assert f"{row} {after}" in text or longest > columns
    again = wrapped([Span(text, "2")], columns)
    assert ["".join(span.text for span in row) for row in again] == rows


def test_finals_go_on_in_their_line_until_a_pause():
    emulator, sink = terminal(30, 8)
    times = [("one two", 0, 1000), ("three four", 2500, 3000), ("Five", 5000, 6000)]
    for text, start_ms, end_ms in times:
        sink.write(Final(seg=1, start_ms=start_ms, end_ms=end_ms, text=text, language="en"))
    later = {"rev": 1, "text": "six", "stable": 0}
    sink.write(Partial(seg=2, start_ms=7999, end_ms=9000, **later))
    assert emulator.rows() == ["one two three four", "Five six"]
    sink.write(Partial(seg=2, start_ms=8000, end_ms=9000, **later))
    assert emulator.rows() == ["one two three four", "Five", "six"]


def test_what_has_a_time_stamp_begins_a_line():
    emulator, sink = terminal(look=Look(stamp=lambda t_ms: f"[{t_ms}] "))
    sink.write(final("one"))
    sink.write(final("two", seg=2))
    assert emulator.rows() == ["[0] one", "[0] two"]


def test_a_row_of_japanese_begins_with_no_comma():
    rows = [row[0].text for row in wrapped([Span("今日は雨、明日は晴れ")], 8)]
    assert rows == ["今日は", "雨、明日", "は晴れ"]


def test_who_speaks_at_the_same_time_in_another_channel_is_shown_below():
    emulator, sink = terminal()
    word = TimedWord(text="Yes.", start_ms=0, end_ms=900, prob=1.0, final=True)

    def said(make, text, channel, seg):
        words = tuple(msgspec.structs.replace(word, text=each) for each in text.split())
        return of_channel(make(text, seg=seg, words=words), channel)

    sink.write(said(partial, "I think", 1, 1))
    sink.write(said(partial, "Yes", 2, 2))
    assert emulator.rows() == ["Speaker 1: I think", "Speaker 2: Yes"]
    sink.write(said(final, "Yes.", 2, 2))
    assert emulator.rows() == ["Speaker 2: Yes.", "Speaker 1: I think"]
    sink.write(said(final, "I think so.", 1, 1))
    assert emulator.rows() == ["Speaker 2: Yes.", "Speaker 1: I think so."]


def by(speaker, text, start_ms, seg):
    return spoken(text, start_ms=start_ms, seq=seg, speaker=speaker)


def talks(*turns):
    """What the server says of the time from the first of the turns (start_ms, end_ms, speaker)."""
    said = tuple(SpeakerTurn(start_ms=a, end_ms=b, speaker=speaker) for a, b, speaker in turns)
    return SpeakerTurns(start_ms=turns[0][0], end_ms=turns[-1][1], turns=said)


TALK = [(1, "Who is there?"), (2, "Me."), (2, "Only me."), (3, "Oh.")]


def test_a_corrected_speaker_moves_names_and_breaks_but_no_word():
    emulator, sink = terminal()
    for seg, (speaker, text) in enumerate(TALK):
        sink.write(by(speaker, text, 1000 * seg, seg))
    before = ["Speaker 1: Who is there?", "Speaker 2: Me. Only me.", "Speaker 3: Oh."]
    assert emulator.rows() == before
    sink.write(talks((3_000, 4_000, 3)))
    assert emulator.rows() == before
    sink.write(talks((2_000, 2_900, 1), (2_950, 4_000, 1)))
    assert emulator.rows() == [before[0], "Speaker 2: Me.", "Speaker 1: Only me. Oh."]
    sink.write(by(1, "Come in.", 4000, 5))
    assert emulator.rows()[-1] == "Speaker 1: Only me. Oh. Come in."
    sink.write(talks((0, 1_950, 2), (1_950, 5_000, 1)))
    assert emulator.rows() == ["Speaker 2: Who is there? Me.", "Speaker 1: Only me. Oh. Come in."]


def test_rows_that_have_left_keep_the_speaker_that_they_left_with():
    emulator, sink = terminal(lines=6)  # half of them may change
    for n in range(8):
        sink.write(by(n % 2 + 1, f"This is number {n}.", 2_500 * n, n))
    before = emulator.rows()
    sink.write(talks((0, 20_000, 3)))
    after = emulator.rows()
    assert after[: len(after) - 1] == before[: len(after) - 1]
    words = " ".join(after).replace("Speaker 3: ", "")
    assert words.endswith("This is number 5. This is number 6. This is number 7.")
    sink.write(Gap(t_ms=20_000, duration_ms=1_200, why="x"))
    there = emulator.rows()
    sink.write(talks((0, 20_000, 4)))
    assert emulator.rows() == there


@given(
    said=st.lists(
        st.tuples(st.integers(1, 3), st.text("abc", min_size=1, max_size=15)), max_size=8
    ),
    told=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3)), max_size=8),
    columns=st.sampled_from(WIDTHS),
)
def test_no_word_is_lost_or_doubled_by_corrections(said, told, columns):
    emulator, sink = terminal(columns, 12)
    texts = [f"{i}{text}." for i, (_, text) in enumerate(said)]
    for i, (speaker, _) in enumerate(said):
        sink.write(by(speaker, texts[i], 1000 * i, i))
        for at, who in told[i : i + 1]:
            sink.write(talks((min(at, i) * 1000, 1000 * i + 900, who)))
    shown = " ".join(emulator.rows())
    assert [word for word in shown.replace("Speaker ", "").split() if word[-1] != ":"] == texts


def test_a_name_replaces_the_number_in_rows_that_can_still_be_changed():
    emulator, sink = terminal(40, 8)
    sink.write(of_channel(spoken("Good morning."), 1))
    sink.write(SpeakerName(speaker=1, name="Ana"))
    assert emulator.rows() == ["Ana: Good morning."]
    sink.write(SpeakerName(speaker=1, name=""))
    assert emulator.rows() == ["Speaker 1: Good morning."]
