"""The stages of a segment, its words, and what once kept one from ending."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Final, Partial, timed, with_lasting_words
from streamd.options import EndpointOptions, SessionOptions
from streamd.session.commit import LocalAgreement
from streamd.session.gate import GatedFrame
from streamd.session.rules import in_turn
from streamd.session.segment import MOVES, Move, Segment, Stage
from streamd.session.segmenter import Segmenter
from streamd.session.spelling import capitalised, split_mark
from streamd.session.text import SpokenText
from streamd.session.utterance import Utterance
from streamd.types import N_AUDIO_CTX, Hypothesis, Suspect, Window, Word, text_of
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    fed,
    scripted_audio,
    scripted_session,
)
from tests.support.promises import check_times
from tests.support.said import final as spoken_final


@given(st.lists(st.sampled_from(Move)))
def test_what_is_not_in_the_table_cannot_happen(moves):
    segment = Segment(Utterance(0), SpokenText(0, 0), 25)
    for move in moves:
        following = MOVES[segment.stage].get(move)
        if following is None:
            with pytest.raises(RuntimeError, match=f"{move.name} cannot happen"):
                segment.on(move)
        else:
            segment.on(move)
            assert segment.stage is following


def test_what_is_held_comes_back_once():
    segment = Segment(Utterance(0), SpokenText(0, 0), 25)
    segment.prepare(40)
    assert segment.stage is Stage.PREPARED
    assert segment.release() == 40
    with pytest.raises(RuntimeError, match="RELEASE cannot happen"):
        segment.release()


def test_the_last_window_does_not_come_back_for_ever():
    """Speech, and then voices in which nothing is read: the last window has no words."""
    said = [Word(f" w{i}", 60 + 25 * i, 82 + 25 * i, 0.9, (i,)) for i in range(10)]

    def recognize(window: Window) -> Hypothesis:
        new = [w for w in said if w.end <= window.end and w.start >= window.prefix_end]
        if new:
            return Hypothesis(words=tuple(new), avg_logprob=-0.2)
        if window.last:
            return Hypothesis(avg_logprob=-1.6, suspect=Suspect.NO_SPEECH)
        la = Word(" la", window.end - 60, window.end - 20, 0.2, (99,))
        return Hypothesis(words=(la,), avg_logprob=-1.5)

    audio = scripted_audio([False] * 50 + [True] * 1310 + [False] * 200)
    audio[300:302, 1:] = 0.06  # quieter before the end of the last word, as before a consonant
    events = fed(scripted_session(), recognize, audio, windows := [])
    assert len(windows) < len(audio)
    last = [(window.start, window.end) for window in windows if window.last]
    assert len(last) == len(set(last)) <= 3
    (final,) = [event for event in events if isinstance(event, Final)]
    assert final.text == " ".join(word.text.strip() for word in said)


@pytest.mark.parametrize("options", [SessionOptions(step=0), SessionOptions()])
def test_no_window_is_longer_than_30_s(options):
    """The second utterance lasts 27 s, and continues the first."""
    found = ScriptedRecognizer()

    def recognize(window: Window) -> Hypothesis:
        suspect = None if window.last else Suspect.LOOP  # no words leave the window meanwhile
        return replace(found.recognize(window), suspect=suspect)

    session = scripted_session(options)
    audio = scripted_audio([True] * 50 * WORD + [False] * 4 * WORD + [True] * 112 * WORD)
    events = fed(session, recognize, audio, windows := [])
    session.flush()
    events += drain(session, found, windows)
    assert max(window.end - window.start for window in windows) <= N_AUDIO_CTX
    texts = [event.text for event in events if isinstance(event, Final)]
    numbers = [int(word.lower().strip("w")) for text in texts for word in text.split()]
    assert numbers == [*range(50), *range(54, 166)]


class Following(LocalAgreement):
    """Checks that it is asked about the words that are left, and learns of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.n_committed = 0
        self.n_forced = 0
        self._proposed = 0

    def propose(
        self, words: Sequence[Word], *, now: int, silence: int, first: int | None = None
    ) -> int:
        self._proposed = super().propose(words, now=now, silence=silence, first=first)
        return self._proposed

    def committed(self, n: int) -> None:
        super().committed(n)
        self.n_committed += n
        self.n_forced += n - self._proposed


def test_the_policy_learns_of_words_that_the_session_commits():
    """No two hypotheses agree on the first word, so it is committed by its age."""
    policy, found = Following(), ScriptedRecognizer()
    session = scripted_session(policy=policy)

    def recognize(window: Window) -> Hypothesis:
        words = [
            replace(word, text=f" {window.end}", prob=0.5) if word.tokens == (0,) else word
            for word in found.recognize(window).words
        ]
        return Hypothesis(words=tuple(words))

    # `n_forced` words were taken from what the next hypothesis is compared with, too.
    events = fed(session, recognize, scripted_audio([True] * 60 * WORD))
    partials = [event for event in events if isinstance(event, Partial)]
    assert policy.n_forced > 0
    assert policy.n_committed == sum(word.final for word in partials[-1].words)
    behind = [event for event in partials if event.stable]
    assert 8000 <= behind[0].end_ms - behind[0].words[0].end_ms < 8500, "it waits no longer"
    after = behind[1].words
    assert sum(word.final for word in after) > policy.n_forced, "the next window agrees at once"


@pytest.mark.parametrize(
    ("text", "capital"),
    [
        (" and", " And"),
        (" iPhone", " iPhone"),
        (" eBay's", " eBay's"),
        ("été", "Été"),
        ("好", "好"),
    ],
)
def test_a_capital_after_a_full_stop(text, capital):
    assert capitalised(Word(text, 0, 1, 0.9)).text == capital


@pytest.mark.parametrize(
    ("text", "tokens", "n_mark", "parts"),
    [
        (" yes.", (1, 2), 1, (" yes", (1,), ".", (2,))),
        ("好。", (1, 2), 1, ("好", (1,), "。", (2,))),
        ("吗？", (1, 2, 3), 2, ("吗", (1,), "？", (2, 3))),
        (" yes", (1, 2), 0, None),
        (".", (1,), 1, None),
    ],
)
def test_the_mark_at_the_end_of_a_word(text, tokens, n_mark, parts):
    found = split_mark(Word(text, 0, 10, 0.9, tokens, n_mark))
    if parts is None:
        assert found is None
    else:
        bare, mark = found
        assert (bare.text, bare.tokens, mark.text, mark.tokens) == parts


@pytest.mark.parametrize(("stop", "follows"), [("。", "，"), ("？", "、")])
def test_a_sentence_in_chinese_or_japanese_goes_on_over_a_pause(stop, follows):
    """The closing mark is not forced on the decoder, which may write another one there."""
    found = ScriptedRecognizer()

    def recognize(window: Window) -> Hypothesis:
        heard = found.recognize(window).words
        words = [
            replace(word, text=f"{word.text}{stop}", tokens=(9, 98, 99), n_mark=2)
            if word.tokens == (9,)
            else word
            for word in heard
        ]
        if window.before and not window.prefix and words:
            words.insert(0, replace(words[0], text=follows, tokens=(97,), end=words[0].start))
        return Hypothesis(words=tuple(words))

    audio = scripted_audio([True] * 10 * WORD + [False] * 3 * WORD + [True] * 10 * WORD)
    events = fed(scripted_session(), recognize, audio, windows := [])
    continued = [window.before for window in windows if window.before and not window.prefix]
    assert continued
    assert all(before[-1] == 9 for before in continued)
    (final,) = [event for event in events if isinstance(event, Final)]
    assert final.text.endswith(f"w9{stop}")
    assert not any(follows in event.text for event in events if isinstance(event, Partial))


def read_as_said(*words: Word) -> Callable[[Window], Hypothesis]:
    """Reads each word as soon as it is over."""

    def recognize(window: Window) -> Hypothesis:
        new = [word for word in words if word.end <= window.end and word.start >= window.prefix_end]
        return Hypothesis(words=tuple(new), avg_logprob=-0.2)

    return recognize


def sentences(*words: Word) -> list[Final | Partial]:
    audio = scripted_audio([True] * 400 + [False] * 100)
    events = fed(scripted_session(), read_as_said(*words), audio)
    return [event for event in events if isinstance(event, Final | Partial)]


def said(text: str, start: int, end: int) -> Word:
    return Word(f" {text}", start, end, 0.9, (start,))


def test_a_sentence_is_final_while_the_next_one_is_said():
    events = sentences(
        said("Do", 10, 30), said("you?", 30, 60), said("Yes", 80, 100), said("I", 100, 110),
        said("do.", 110, 130), said("And", 150, 160), said("she", 160, 390),
    )  # fmt: skip
    finals = [event for event in events if isinstance(event, Final)]
    assert [(event.seg, event.text, event.continues) for event in finals] == [
        (1, "Do you?", True),
        (2, "Yes I do.", True),
        (3, "And she", False),
    ]
    first, second, third = finals
    assert (first.end_ms, second.end_ms) == (second.start_ms, third.start_ms) == (1400, 2800)
    at = events.index(first)
    assert isinstance(events[at + 1], Partial)
    assert (events[at + 1].seg, events[at + 1].rev, events[at + 1].start_ms) == (2, 1, 1400)
    assert events[at + 1].text.startswith("Yes")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((("Dr.", 10, 30), ("No", 32, 60), ("is", 70, 390)), "Dr. No is"),  # no gap
        ((("And", 10, 20), ("Mr.", 20, 30), ("Dashwood", 60, 390)), "And Mr. Dashwood"),
    ],
)
def test_a_mark_without_a_gap_and_a_title_before_any_end_no_sentence(words, text):
    events = sentences(*(said(*word) for word in words))
    (final,) = [event for event in events if isinstance(event, Final)]
    assert final.text == text


@pytest.mark.parametrize(
    ("words", "changes", "first"),
    [
        (["Who?", "Me", "too"], [31], "Who?"),  # a mark, but no gap
        (["But", (50, "Me"), "too"], [40], "But"),  # a gap, but no mark
        (["But", "Me", "too"], [31], None),
        (["Who?", "Me", "too"], [], None),
        (["But", (50, "Me"), "too"], [], None),
        (["Who?", "Me", "too"], [80], None),  # a change elsewhere
    ],
)
def test_another_speaker_and_a_mark_or_a_gap_end_a_sentence(words, changes, first):
    text_so_far, at = SpokenText(0, 0), 10
    for each in words:
        at, text = each if isinstance(each, tuple) else (at, each)
        text_so_far.committed.append(said(text, at, at + 20))
        at += 22
    assert (text_of(text_so_far.take_sentence(changes)) or None) == first


def test_who_resumes_after_a_sentence_hears_the_next_one():
    """A crash may come between two finals: what the first leaves is all that is lost."""
    session = scripted_session()
    words = [said("Do", 10, 30), said("you?", 30, 60), said("Yes", 80, 100), said("I", 100, 110)]
    fed(session, read_as_said(*words), scripted_audio([True] * 175))
    assert session.finalised_ms == 1400
    assert [word.text for word in session.resume_state.words] == [" Do", " you?"]


@pytest.mark.parametrize(
    ("n_unvoiced", "due_at"),
    [
        (1, 25),  # a frame alone is no pause
        (4, 28),  # the voice goes on
        (5, 29),
        (20, 31),  # it is late enough for the window of a pause
    ],
)
def test_a_window_waits_for_what_may_become_a_pause(n_unvoiced, due_at):
    """A partial right before a pause delays its window, which has the same words."""
    segmenter = Segmenter(EndpointOptions(pre_final=6))
    found = {}
    for n in range(60):
        unvoiced = n - 22 if 23 <= n < 23 + n_unvoiced else 0
        segmenter.push(GatedFrame(0, -20.0, unvoiced=unvoiced))
        segment = Segment(segmenter.utterances[0], SpokenText(0, 0), 25)
        if (due := segment.due(segmenter, 25)) is not None:
            found[n + 1] = due
    assert min(found) == due_at
    assert found[due_at] == (25, False)


FRAME_PAIRS = st.lists(st.tuples(st.integers(-50, 150), st.integers(-50, 150)), max_size=30)


@given(FRAME_PAIRS, st.integers(0, 40), st.integers(0, 100))
def test_words_last_within_their_caption_whatever_times_they_come_with(times, start, n_frames):
    words = [Word(" a", begin, end, 0.5) for begin, end in times]
    placed = in_turn(words, start, start + n_frames)
    edges = [start, *(edge for word in placed for edge in (word.start, word.end))]
    assert edges == sorted(edges)
    assert edges[-1] <= start + n_frames
    if len(words) <= n_frames:
        assert all(word.start < word.end for word in placed)
    assert in_turn(placed, start, start + n_frames) == placed
    start_ms, end_ms = 20 * start, max(20 * start + n_frames, 20 * start + len(words))
    said = timed(words, len(words))
    final = spoken_final("a", start_ms=start_ms, end_ms=end_ms, words=said)
    check_times([with_lasting_words(final)])
