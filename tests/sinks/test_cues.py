from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import TimedWord
from streamd.labels import of_channel
from streamd.language import belongs
from streamd.options import CueLayout
from streamd.sinks import cues as cut
from streamd.sinks.cues import MAX_CUE_MS, Cues, cues
from streamd.sinks.formats import FORMATS, Srt
from streamd.sinks.text import width
from streamd.sinks.writing import FileSink
from tests.support.said import SPEECH, final, spoken, timed, written


def lines(cue):
    return tuple(cut.joined(line) for line in cue.lines)


def test_cues_end_where_a_reader_would_pause():
    assert [lines(cue) for cue in cues(spoken(SPEECH))] == [
        (
            "And so, my fellow Americans,",
            "ask not what your country can do for you,",
        ),
        ("ask what you can do for your country.",),
        (
            "My fellow citizens of the world:",
            "ask not what America will do for you,",
        ),
        ("but what together we can", "do for the freedom of man."),
    ]


def test_a_word_longer_than_a_line_is_cut():
    (cue,) = cues(final("a" * 60, end_ms=2000))
    assert lines(cue) == ("a" * 42, "a" * 18)


def test_text_without_word_times_shares_the_time():
    first, second = cues(
        final("one two three four five six seven eight nine ten " * 3, end_ms=9000)
    )
    assert first.start_ms == 0
    assert first.end_ms == second.start_ms
    assert second.end_ms == 9000


def test_chinese_takes_two_cells_a_character():
    shown = list(cues(final("这是一个没有空格的很长的句子" * 6, end_ms=9000)))
    assert all(width(line) <= 42 for cue in shown for line in lines(cue))
    assert "".join("".join(lines(cue)) for cue in shown) == "这是一个没有空格的很长的句子" * 6


@given(
    st.lists(st.text("กรมอน่้ัิาเไเກະາດမန်ာ今日だっ。、「」", min_size=1, max_size=1), max_size=80),
    st.sampled_from([0, 1, 3]),
)
def test_no_line_begins_with_a_mark_of_the_letter_before(characters, max_words):
    """Where a language writes no blanks, each character is a word."""
    end_ms = 300 * len(characters)
    said = final("".join(characters), end_ms=end_ms, words=timed(characters))
    shown = [
        line for cue in cues(said, layout=CueLayout(max_words=max_words)) for line in lines(cue)
    ]
    assert "".join(shown) == "".join(characters)
    for before, after in pairwise(shown):
        # a run of marks that fills a line is cut
        assert not belongs(before, after) or width(before) >= 40


def test_a_short_word_is_shown_for_a_second_if_nothing_follows():
    word = TimedWord(text="Yes.", start_ms=500, end_ms=700, prob=0.9, final=True)
    (cue,) = cues(final("Yes.", end_ms=2000, words=(word,)))
    assert (cue.start_ms, cue.end_ms) == (500, 1500)


def said(text, *, word_ms=300, pauses=()):
    """A final whose words take `word_ms` each, with `pauses` (ms) behind some words, by number."""
    t_ms, words = 0, []
    for n, word in enumerate(text.split()):
        words.append(
            TimedWord(text=word, start_ms=t_ms, end_ms=t_ms + word_ms, prob=0.9, final=True)
        )
        t_ms += word_ms + dict(pauses).get(n, 0)
    return final(text, end_ms=words[-1].end_ms, words=tuple(words))


def shown_as(event):
    return [" ".join(lines(cue)) for cue in cues(event)]


def test_a_sentence_is_cut_at_clauses_and_pauses_not_where_a_cue_is_full():
    jfk = (
        "And so my fellow Americans, ask not what your country can do for you, "
        "ask what you can do for your country."
    )
    first, second = shown_as(said(jfk, word_ms=320))
    assert first.endswith("for you,")
    assert second == "ask what you can do for your country."
    first, second = shown_as(said(jfk, word_ms=320, pauses=((6, 1000),)))
    assert first.endswith("ask not")  # where he pauses
    assert second.startswith("what your country can do for you,")
    period = (
        "In short, the period was so far like the present period that some of its noisiest "
        "authorities insisted on its being received, for good or for evil, in the superlative "
        "degree of comparison only."
    )
    for word_ms in (250, 300, 350, 400):
        ends = [text.rsplit(" ", 2)[1:] for text in shown_as(said(period, word_ms=word_ms))]
        assert {end for _, end in ends}.isdisjoint({"noisiest", "superlative", "the", "its"})
    country = "ask what your country can do for you and nothing else that anybody may ever want"
    assert not any(text.endswith(" can") for text in shown_as(said(country, word_ms=450)))


def test_an_ellipsis_is_as_good_a_break_as_a_comma():
    for mark in (",", "...", "…"):
        (cue,) = cues(spoken(f"I had a word for it{mark} well nobody can know that ever"))
        assert lines(cue) == (f"I had a word for it{mark}", "well nobody can know that ever")


def test_no_break_inside_a_hyphenated_word():
    text = "but thou contracted to thine own bright eyes feedst thy light flame with self"
    event = said(f"{text} -substantial fuel", word_ms=300)
    joined = replace(event, text=event.text.replace("self -", "self-"))
    found = [line for cue in cues(joined) for line in lines(cue)]
    assert any("self-substantial" in line for line in found)


def test_a_cue_stays_until_it_can_be_read_if_nothing_follows_so_soon():
    hurried = "but it cares about nothing that anybody could have said of it before"
    (cue,) = cues(said(hurried, word_ms=100))
    assert cue.end_ms - cue.start_ms == 1300 + 1500  # its words, and no longer than that after
    shown = Cues(CueLayout())
    first = said("but it cares.", word_ms=190)
    assert list(shown.of(first)) == []
    (ended,) = shown.of(spoken("Something else entirely matters here.", start_ms=5000, seq=2))
    assert (ended.start_ms, ended.end_ms) == (0, 1000)
    (ended,) = shown.of(spoken("At once, again and again.", start_ms=6700, seq=3))
    assert (ended.start_ms, ended.end_ms) == (5000, 6620)  # two frames before the next
    (ended,) = shown.of(spoken("And again.", start_ms=8200, seq=4))
    assert ended.end_ms == 8200  # there is no time between its words and the next ones


def test_a_cue_too_short_to_read_goes_into_the_next_one_if_that_leaves_a_line():
    def shown(*finals):
        made = Cues(CueLayout())
        ready = [cue for each in finals for cue in made.of(each)]
        return [(cue.start_ms, cue.end_ms, lines(cue)) for cue in [*ready, *made.held]]

    def at(t_ms, text, speaker=UNSET):
        said = spoken(text, start_ms=t_ms, word_ms=250)
        return replace(said, words=tuple(replace(word, speaker=speaker) for word in said.words))

    are_you, of_course = at(0, "Are you?"), at(580, "Why, of course not, Joe.")
    assert shown(are_you, of_course) == [(0, 1882, ("Are you?", "Why, of course not, Joe."))]
    assert written("lrc", are_you, of_course).endswith("]Are you? Why, of course not, Joe.\n")
    # unless there is time for it, a line is missing, or somebody else says it
    apart = [("Are you?",), ("Why, of course not, Joe.",)]
    later = at(1100, "Why, of course not, Joe.")
    assert [said for _, _, said in shown(are_you, later)] == apart
    long = at(580, "My copy of Commander Rocket and the Mob was damaged in the crash.")
    assert [len(said) for _, _, said in shown(are_you, long)] == [1, 2]
    answer = at(580, "Why, of course not, Joe.", speaker=2)
    assert [said for _, _, said in shown(at(0, "Are you?", speaker=1), answer)] == apart


def test_a_file_has_all_that_was_said_while_it_grows(tmp_path):
    sink = FileSink(tmp_path / "a.srt", FORMATS["srt"](CueLayout()))
    sink.write(said("but it cares.", word_ms=190))
    assert (tmp_path / "a.srt").read_text() == "1\n00:00:00,000 --> 00:00:01,000\nbut it cares.\n\n"
    sink.write(spoken("Yes.", start_ms=900, seq=2))
    assert (tmp_path / "a.srt").read_text() == (
        "1\n00:00:00,000 --> 00:00:01,200\nbut it cares.\nYes.\n\n"
    )
    sink.write(spoken("No, not at all.", start_ms=2000, seq=3))
    assert (tmp_path / "a.srt").read_text() == (
        "1\n00:00:00,000 --> 00:00:01,200\nbut it cares.\nYes.\n\n"
        "2\n00:00:02,000 --> 00:00:03,200\nNo, not at all.\n\n"
    )
    sink.close()


timed_words = st.tuples(
    st.text("abcdef", min_size=1, max_size=60).flatmap(
        lambda word: st.sampled_from(["", ",", ".", "?"]).map(lambda end: word + end)
    ),
    st.integers(0, 3000),
    st.integers(0, 12_000),
)


@given(st.lists(st.lists(timed_words, max_size=40), max_size=4), st.booleans())
def test_cues_hold_every_word_in_order_without_overlap(utterances, with_words):
    t_ms, end_ms, shown, said = 0, 0, [], []
    for i, utterance in enumerate(utterances):
        begins, timed = t_ms, []
        for word, pause_ms, word_ms in utterance:
            start_ms = t_ms + pause_ms
            t_ms = start_ms + word_ms
            timed.append(TimedWord(text=word, start_ms=start_ms, end_ms=t_ms, prob=1, final=True))
        said += [word.text for word in timed]
        event = final(
            " ".join(word.text for word in timed),
            start_ms=begins,
            end_ms=t_ms,
            words=tuple(timed) if with_words else (),
            seq=i + 1,
        )
        for cue in cues(event, end_ms):
            end_ms = cue.end_ms
            shown.append(cue)
    text = "".join("".join(lines(cue)) for cue in shown).replace(" ", "")
    assert text == "".join(said)
    assert all(0 <= cue.start_ms < cue.end_ms for cue in shown)
    assert all(one.end_ms <= two.start_ms for one, two in pairwise(shown))
    assert all(len(cue.lines) <= 2 for cue in shown)
    assert all(0 < width(line) <= 42 for cue in shown for line in lines(cue))
    longest_ms = max([MAX_CUE_MS, *(ms for words in utterances for _, _, ms in words)])
    assert all(cue.end_ms - cue.start_ms <= longest_ms for cue in shown if with_words)


def cells(line):
    return width(cut.joined(line))


@given(
    st.lists(st.text("abcdefgh,.", min_size=1, max_size=20), max_size=60),
    st.integers(8, 60),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_cues_keep_to_any_limits(words, line_cells, max_lines, max_words):
    layout = CueLayout(line_cells=line_cells, max_lines=max_lines, max_words=max_words)
    shown = list(cues(spoken(" ".join(words)), layout=layout))
    assert all(len(cue.lines) <= max_lines for cue in shown)
    assert all(0 < cells(line) <= line_cells for cue in shown for line in cue.lines)
    assert not max_words or all(len(cue.pieces) <= max_words for cue in shown)
    assert "".join("".join(lines(cue)) for cue in shown).replace(" ", "") == "".join(words)


def test_a_cue_takes_as_few_lines_as_will_do_and_of_about_the_same_length():
    (cue,) = cues(spoken("x bb " * 10, word_ms=10), layout=CueLayout(line_cells=20, max_lines=9))
    assert lines(cue) == ("x bb x bb x bb", "x bb x bb x bb x", "bb x bb x bb x bb")
    (cue,) = cues(spoken("x bb " * 10, word_ms=10), layout=CueLayout(line_cells=60, max_lines=9))
    assert len(cue.lines) == 1


def test_so_many_words_a_cue():
    shown = cues(spoken("one two three four five"), layout=CueLayout(max_words=2))
    assert [lines(cue) for cue in shown] == [("one two",), ("three four",), ("five",)]


@given(st.lists(timed_words, min_size=1, max_size=12))
def test_moments_fill_the_cue_and_name_each_word_in_turn(said):
    t_ms, timed = 0, []
    for word, pause_ms, word_ms in said:
        start_ms = t_ms + pause_ms
        t_ms = start_ms + word_ms
        timed.append(TimedWord(text=word, start_ms=start_ms, end_ms=t_ms, prob=1, final=True))
    event = final(" ".join(word.text for word in timed), end_ms=t_ms, words=tuple(timed))
    for cue in cues(event):
        moments = list(cue.moments())
        edges = [cue.start_ms, *(end_ms for _, end_ms, _ in moments)]
        assert [(start_ms, end_ms) for start_ms, end_ms, _ in moments] == list(pairwise(edges))
        assert edges[-1] == cue.end_ms
        assert edges == sorted(set(edges))
        named = [cue.pieces.index(piece) for _, _, piece in moments if piece is not None]
        assert named == sorted(set(named))
        assert all(
            start_ms >= piece.start_ms for start_ms, _, piece in moments if piece is not None
        )


def test_the_work_grows_with_the_text_and_no_faster(monkeypatch):
    measured = 0

    def counted(text):
        nonlocal measured
        measured += 1
        return width(text)

    monkeypatch.setattr("streamd.sinks.cues.width", counted)
    n_words = 3000
    assert len(list(cues(final("word, " * n_words)))) > 100
    assert measured < 50 * n_words


def in_channel(text, channel, *, start_ms):
    spoken = said(text, word_ms=500)
    words = (
        replace(word, start_ms=word.start_ms + start_ms, end_ms=word.end_ms + start_ms)
        for word in spoken.words
    )
    event = replace(spoken, start_ms=start_ms, end_ms=spoken.end_ms + start_ms, words=tuple(words))
    return of_channel(event, channel)


def test_cues_of_two_channels_begin_when_their_words_do_and_in_that_order():
    layout = CueLayout()
    long = "This goes on for so long that it takes more than one subtitle to show all of its words"
    finals = [
        in_channel(f"{long}.", 1, start_ms=0),
        in_channel("Yes, of course.", 2, start_ms=2_000),
        in_channel("And then it ends.", 1, start_ms=12_000),
        in_channel("I see.", 2, start_ms=13_000),
    ]
    made = Cues(layout)
    shown = [cue for event in finals for cue in made.of(event)]
    shown += made.held
    starts = [cue.start_ms for cue in shown]
    assert starts == sorted(starts)
    assert {2_000, 12_000, 13_000} < {*starts}
    for channel in (1, 2):
        own = [cue for cue in shown if cue.speaker == channel]
        assert all(a.end_ms <= b.start_ms for a, b in pairwise(own))
        words = " ".join(word for cue in own for line in lines(cue) for word in line.split())
        assert words == " ".join(event.text for event in finals if event.channel == channel)
    # What has ended does not stay while another channel has the next word, and nobody is cut off.
    assert all(cue.end_ms >= cue.pieces[-1].end_ms for cue in shown)
    named = [cue.speaker for cue in shown if cue.is_answer]
    assert all(a != b for a, b in pairwise(named))


def test_a_file_of_two_channels_is_numbered_without_a_gap(tmp_path):
    path = tmp_path / "talk.srt"
    sink = FileSink(path, FORMATS["srt"](CueLayout()))
    for n, start_ms in enumerate(range(0, 20_000, 1_000)):
        sink.write(in_channel("It is my turn now.", n % 2 + 1, start_ms=start_ms))
        blocks = path.read_text().strip().split("\n\n")
        assert [block.split("\n")[0] for block in blocks] == [str(i + 1) for i in range(n + 1)]
    sink.close()
    assert path.read_text().count("Speaker 1: ") == path.read_text().count("Speaker 2: ") == 10


def test_the_name_of_a_speaker_has_room_in_the_line_and_time_to_be_read():
    """Where another speaker answers; the same one goes on without a name, and without the room."""
    name = "Bartholomew Featherstonehaugh"
    answer = "That is what I have been saying all along, is it not?"

    def by(t_ms, text, speaker):
        whole = spoken(text, start_ms=t_ms, word_ms=250)
        words = tuple(replace(word, speaker=speaker) for word in whole.words)
        return replace(whole, words=words)

    srt = Srt(CueLayout())
    srt.names = {2: name}
    finals = [by(0, "Who?", 1), by(900, answer, 2), by(9000, answer, 2), by(15_000, "Who?", 1)]
    finals.append(by(20_000, "It is so.", 2))
    text = "".join(map(srt.append, finals)) + srt.end(complete=True)
    shown = [block.split("\n")[1:] for block in text.strip().split("\n\n")]
    lines = [line for _, *lines in shown for line in lines]
    assert max(map(len, lines)) <= 42
    said = f"Speaker 1: Who? {name}: {answer} {answer} Speaker 1: Who? {name}: It is so."
    assert " ".join(lines) == said
    assert shown[-1][0] == "00:00:20,000 --> 00:00:22,250"  # 1.5 s after the words; 1 s without
