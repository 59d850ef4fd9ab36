"""The session's promises, under random speech, random engine speed and random cuts of the audio."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.events import Event, Final, Gap, Partial
from streamd.options import AgreementOptions, AlignAttOptions, EndpointOptions, SessionOptions
from streamd.session.commit import AlignAtt, LocalAgreement
from streamd.types import FRAME_MS, Hypothesis, MarksAnswer, MarksQuestion, Suspect, Word
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    ending,
    fed,
    played,
    scripted_audio,
    scripted_session,
    speech_of,
    words_said,
)
from tests.support.promises import check_transcript, runs


def run(speech, delays, policy=None, *, block=1, options=None, endpoint=None, recognizer=None):
    session = scripted_session(options, endpoint, policy)
    audio = scripted_audio(speech)
    return played(session, recognizer or ScriptedRecognizer(ending), audio, delays, block)


def finals(events):
    return [(e.text, e.start_ms, e.end_ms) for e in events if isinstance(e, Final)]


delays = st.lists(st.integers(0, 400), min_size=1, max_size=5)
blocks = st.sampled_from([5, 1, 25])
policies = st.sampled_from(
    [LocalAgreement, AlignAtt, lambda: LocalAgreement(AgreementOptions(agree=3))]
)


@given(runs, delays, policies, blocks)
def test_every_word_is_in_the_finals_once_and_no_committed_one_changes(
    stretches, engine, policy, block
):
    speech = speech_of(stretches)
    events, windows = run(speech, engine, policy(), block=block)
    said = " ".join(text for text, _, _ in finals(events)).lower().split()
    assert said == words_said(speech)
    check_transcript(events)
    check_heard(speech, events, windows)


def check_heard(speech, events, windows):
    """Every frame that the gate lets through is in an accepted window."""
    covered = np.zeros(len(speech), bool)
    for window in windows:
        covered[window.start : window.end] = True
    for event in events:
        if isinstance(event, Final):
            assert covered[event.start_ms // FRAME_MS : event.end_ms // FRAME_MS].all()
    assert covered[np.asarray(speech)].all()
    assert not any(isinstance(event, Gap) for event in events)


@given(runs, delays, blocks)
@example([(480, 13), (12, 1)], [156], 1)  # the last window is longer than 10 s
@example([(420, 37), (276, 25), (480, 1), (48, 1), (12, 12)], [177], 1)  # a long last sentence
def test_finals_do_not_depend_on_the_speed_of_the_engine(stretches, engine, block):
    speech = speech_of(stretches)
    assert finals(run(speech, engine, block=block)[0]) == finals(run(speech, [0], block=5)[0])


class Capitalising(ScriptedRecognizer):
    """Writes all words in capitals where it is asked to decide about marks and capitals."""

    def recognize(self, window):
        found = super().recognize(window)
        if (question := window.asked(MarksQuestion)) is None:
            return found
        words = [replace(word, text=word.text.upper()) for word in (*question.words, *found.words)]
        n = len(question.words)
        found = replace(found, words=tuple(words[n:]))
        return found.answered(MarksAnswer(tuple(words[:n])))


@given(runs, delays, policies, blocks)
def test_of_committed_words_only_marks_and_capitals_change(stretches, engine, policy, block):
    speech = speech_of(stretches)
    events, _ = run(speech, engine, policy(), block=block, recognizer=Capitalising(ending))
    committed: list[str] = []
    for event in events:
        if isinstance(event, Partial):
            words = event.text[: event.stable].lower().split()
            assert words[: len(committed)] == committed
            committed = words
        elif isinstance(event, Final):
            words = event.text.lower().split()
            assert words[: len(committed)] == committed
            assert event.continues or event.text.split()[-1].isupper()
            committed = []
    said = " ".join(text for text, _, _ in finals(events)).lower().split()
    assert said == words_said(speech)


@given(runs, st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_finals_do_not_depend_on_how_the_audio_was_cut(stretches, cuts):
    speech = speech_of(stretches)
    session, recognizer = scripted_session(), ScriptedRecognizer(ending)
    frames, events, at, i = scripted_audio(speech), [], 0, 0
    while at < len(frames):
        events += session.feed(frames[at : at + cuts[i % len(cuts)]])
        events += drain(session, recognizer, [])
        at, i = at + cuts[i % len(cuts)], i + 1
    events += session.flush() + drain(session, recognizer, [])
    assert finals(events) == finals(run(speech, [0], block=5)[0])


@given(runs)
def test_step_0_asks_for_finals_only(stretches):
    speech = speech_of(stretches)
    events, windows = run(speech, [0], block=5, options=SessionOptions(step=0))
    assert all(window.last for window in windows)
    assert " ".join(text for text, _, _ in finals(events)).lower().split() == words_said(speech)


def test_silence_asks_for_no_window():
    events, windows = run([False] * 3000, [0])
    assert events == []
    assert windows == []


def test_a_pause_asks_for_one_window_and_then_for_none():
    speech = [False] * WORD + [True] * (10 * WORD) + [False] * 2000
    _, windows = run(speech, [0])
    assert sum(window.last for window in windows) == 1
    assert windows[-1].last
    assert windows[-1].end == 11 * WORD + EndpointOptions().trailing_silence


def test_no_window_of_a_translation_begins_at_a_word():
    session = scripted_session(SessionOptions(task="translate"))
    audio = scripted_audio([False] * WORD + [True] * (60 * WORD) + [False] * 100)
    fed(session, ScriptedRecognizer(), audio, windows := [])
    assert len({window.start for window in windows}) == 1
    assert all(window.start <= window.prefix_end <= window.end for window in windows)


def test_the_window_stays_short_while_somebody_speaks_on_and_on():
    speech = [False] * WORD + [True] * (300 * WORD) + [False] * 100
    events, windows = run(speech, [0])
    # half as much again as `length`, what is committed after a second, and words in two pieces
    assert max(window.end - window.start for window in windows) <= 750 + 100
    assert len({window.start for window in windows}) <= len(windows) / 8, "it seldom begins anew"
    assert all(end - start <= 28_000 for _, start, end in finals(events))


def test_missed_steps_are_merged_into_one_window():
    speech = [False] * WORD + [True] * (100 * WORD)
    _, windows = run(speech, [120])
    ends = [window.end for window in windows if not window.last]
    assert all(b - a >= 100 for a, b in pairwise(ends))
    assert all((b - a) % 25 == 0 for a, b in pairwise(ends))


def test_audio_beyond_the_backlog_is_reported_not_passed_over_in_silence():
    session = scripted_session(SessionOptions(backlog=500))
    events = []
    for frame in scripted_audio([False] * WORD + [True] * 1200):
        events += session.feed(frame[None])
    gaps = [event for event in events if isinstance(event, Gap)]
    drain(session, ScriptedRecognizer(), windows := [])
    assert sum(gap.duration_ms for gap in gaps) == windows[0].start * FRAME_MS
    assert gaps[-1].t_ms + gaps[-1].duration_ms == windows[0].start * FRAME_MS
    assert WORD + 1200 - 500 <= windows[0].start <= WORD + 1200 - 500 + 50


def test_a_gap_keeps_the_time_true():
    session = scripted_session()
    session.feed(scripted_audio([False] * 10))
    [gap] = session.gap(1000, "overflow")
    assert gap == Gap(t_ms=200, duration_ms=1000, why="overflow")
    assert session.now == 60


def test_a_word_that_the_flush_cuts_off_is_not_lost():
    session = scripted_session()
    audio = scripted_audio([False] * WORD + [True] * (WORD // 2 + 1))
    events = session.feed(audio) + session.flush() + drain(session, ScriptedRecognizer(), [])
    assert [text for text, _, _ in finals(events)] == ["w1"]


def test_windows_go_out_one_at_a_time():
    session = scripted_session()
    session.feed(scripted_audio([True] * 100))
    window = session.next_window()
    with pytest.raises(RuntimeError, match="not come back"):
        session.next_window()
    session.accept(window, ScriptedRecognizer().recognize(window))
    with pytest.raises(RuntimeError, match="did not come from"):
        session.accept(window, ScriptedRecognizer().recognize(window))


def test_the_partials_of_a_segment_number_count_on_when_an_utterance_had_no_words():
    said = iter(["maybe", "", "", "word", "words"])

    def recognize(window):
        text = next(said, "")
        words = (Word(f" {text}", window.start, window.end, 0.9, (1,)),) if text else ()
        return Hypothesis(words=words)

    audio = scripted_audio(([True] * 40 + [False] * 130) * 2)
    events = fed(scripted_session(), recognize, audio)
    revs = [(e.seg, e.rev, e.text) for e in events if isinstance(e, Partial)]
    assert revs[:3] == [(1, 1, "maybe"), (1, 2, ""), (1, 3, "word")]


def test_words_before_a_cut_that_came_later_are_not_said_again():
    """The window reached beyond the place where the utterance was then cut."""
    endpoint = EndpointOptions(longest=100, pre_final=30, sentence=30)
    options = SessionOptions(step=24)
    session = scripted_session(options, endpoint, AlignAtt(AlignAttOptions(frame_threshold=0)))
    audio = scripted_audio([True] * 150)
    audio[72:77, 1:] = 0.06  # the quietest of the last frames
    events = fed(session, ScriptedRecognizer(), audio, flush=True)
    said = " ".join(text for text, _, _ in finals(events)).split()
    assert said == [f"w{n}" for n in range(12)]


def trimmed(length: int, n_frames: int, quiet: slice, n_first: int):
    """A session with windows of `length`, its speech with a `quiet` place, and a first window."""
    policy = AlignAtt(AlignAttOptions(frame_threshold=0))
    session = scripted_session(SessionOptions(length=length), policy=policy)
    audio = scripted_audio([True] * n_frames)
    audio[quiet, 1:] = 0.06
    session.feed(audio[:n_first])
    return session, audio, session.next_window()


def test_a_trimmed_window_keeps_committed_words_of_its_length():
    # It is quiet between the first word and the second.
    session, audio, first = trimmed(150, 400, slice(48, 52), 335)
    assert (first.start, first.end) == (0, 325)
    words = tuple(Word(f" w{n}", 50 * n, 50 * (n + 1), 0.9, (n,)) for n in range(5))
    session.accept(first, Hypothesis(words=words))
    session.feed(audio[335:])
    window = session.next_window()
    assert 48 <= window.start <= 52
    assert (window.prompt, window.prefix) == ((0,), (1, 2, 3))
    assert window.draft == (4,)  # the newest word may still be growing


def test_a_suspect_hypothesis_of_a_pause_does_not_move_the_window_behind_what_it_missed():
    session = scripted_session(SessionOptions(length=50))
    audio = scripted_audio([True] * 40 + [False] * 18 + [True] * 200)
    session.feed(audio[:52])
    window = session.next_window()
    assert window.last
    session.feed(audio[52:150])
    session.accept(window, Hypothesis(suspect=Suspect.NO_SPEECH))
    session.accept(session.next_window(), Hypothesis())
    session.feed(audio[150:])
    assert session.next_window().start == window.start


def test_a_short_pause_leaves_the_words_before_it_in_the_window():
    """The words after it are read with what was said before them."""
    speech = [False] * WORD + [True] * (2 * WORD) + [False] * 24 + [True] * (4 * WORD)
    events, windows = run(speech, [0])
    assert windows[-1].start == 0
    assert windows[-1].prefix == (1, 2)
    assert [text for text, _, _ in finals(events)] == ["w1 w2, w5. w6 w7, w8"]


@pytest.mark.parametrize(
    ("logprob", "no_speech_prob", "stable"), [(-1.1, 0.0, 0), (-0.9, 0.4, 0), (-0.6, 0.2, 5)]
)
def test_of_a_guess_nothing_is_committed_but_it_is_shown(logprob, no_speech_prob, stable):
    policy = AlignAtt(AlignAttOptions(frame_threshold=0))
    session = scripted_session(SessionOptions(length=25), policy=policy)
    session.feed(scripted_audio([True] * 460))
    words = (Word(" maybe", 20, 60, 0.1, (1,)), Word(" this", 60, 90, 0.4, (2,)))
    guess = Hypothesis(words=words, avg_logprob=logprob, no_speech_prob=no_speech_prob)
    (partial,) = session.accept(session.next_window(), guess)
    assert (partial.text, partial.stable) == ("maybe this", stable)


@pytest.mark.parametrize("n_frames", [450, 100])
@pytest.mark.parametrize(("first", "n_finals"), [(-0.9, 0), (-0.2, 1)])
def test_an_utterance_that_was_a_guess_all_the_time_has_no_final(n_frames, first, n_finals):
    """Voices without words: each hypothesis has another text, none of them a probable one."""
    session = scripted_session(policy=AlignAtt(AlignAttOptions(frame_threshold=0)))
    audio = scripted_audio([True] * n_frames)
    events: list[Event] = []
    logprob = first
    for start in range(0, n_frames, 50):
        events += session.feed(audio[start : start + 50])
        if start == n_frames - 50:
            session.flush()
        while window := session.next_window():
            times = ((window.end - 30, window.end - 20), (window.end - 20, window.end - 10))
            words = tuple(Word(" maybe", *each, 0.4, (1,)) for each in times)
            guess = Hypothesis(words=words, avg_logprob=logprob, no_speech_prob=0.2)
            events += session.accept(window, guess)
            logprob = -0.9
    assert sum(isinstance(event, Final) for event in events) == n_finals


def test_the_mark_after_the_last_word_may_still_change():
    policy = AlignAtt(AlignAttOptions(frame_threshold=0))
    session = scripted_session(SessionOptions(), policy=policy)
    audio = scripted_audio([True] * 100 + [False] * 18 + [True] * 100)
    session.feed(audio[:115])
    pause = session.next_window()
    said = [Word(" light", 10, 60, 0.9, (1,)), Word(" dark.", 60, 100, 0.9, (2, 3), n_mark=1)]
    session.accept(pause, Hypothesis(words=tuple(said)))
    events = session.feed(audio[115:160])
    (partial,) = [e for e in events if isinstance(e, Partial)]
    assert (partial.text, partial.text[: partial.stable]) == ("light dark.", "light dark")
    window = session.next_window()
    assert (window.prefix, window.draft) == ((1, 2), (3,))
    went_on = (Word(",", 100, 100, 0.9, (4,)), Word(" night", 118, 140, 0.9, (5,)))
    (partial,) = session.accept(window, Hypothesis(words=went_on))
    assert partial.text == "light dark, night"
    assert [(word.text, word.final) for word in partial.words][1:] == [
        ("dark", True),
        (",", True),  # words follow it, so it is one of them
        ("night", False),
    ]
    session.flush()
    (final,) = session.accept(session.next_window(), Hypothesis(words=went_on[1:]))
    assert [word.text for word in final.words] == ["light", "dark,", "night"]
