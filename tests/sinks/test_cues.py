from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from sinks.said import SPEECH, final, spoken

from streamd.events import TimedWord
from streamd.sinks import cues as cut
from streamd.sinks.cues import MAX_CUE_MS, cues
from streamd.sinks.text import width


def lines(cue):
    return tuple(cut.written(line) for line in cue.lines)


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
