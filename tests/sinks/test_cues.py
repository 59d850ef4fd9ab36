from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamd.events import TimedWord
from streamd.options import CueLayout
from streamd.sinks import cues as cut
from streamd.sinks.cues import MAX_CUE_MS, cues
from streamd.sinks.text import width
from tests.support.said import SPEECH, final, spoken


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


def test_a_short_word_is_shown_for_a_second_if_nothing_follows():
    word = TimedWord(text="Yes.", start_ms=500, end_ms=700, prob=0.9, final=True)
    (cue,) = cues(final("Yes.", end_ms=2000, words=(word,)))
    assert (cue.start_ms, cue.end_ms) == (500, 1500)


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
    (cue,) = cues(spoken("a bb " * 10, word_ms=10), layout=CueLayout(line_cells=20, max_lines=9))
    assert lines(cue) == ("a bb a bb a bb", "a bb a bb a bb a", "bb a bb a bb a bb")
    (cue,) = cues(spoken("a bb " * 10, word_ms=10), layout=CueLayout(line_cells=60, max_lines=9))
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
