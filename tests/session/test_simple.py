"""The simple session keeps the promises, and the real one says what it says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.events import Final
from streamd.options import GateOptions
from streamd.session.gate import Gate
from streamd.types import FRAME_MS, N_AUDIO_CTX, Hypothesis, Word
from tests.support import recorded
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    loud_frames,
    played,
    scripted_audio,
    scripted_session,
    speech_of,
)
from tests.support.promises import check_speaking, check_transcript, runs
from tests.support.simple_session import LONGEST, SILENCE, SimpleSession

delays = st.lists(st.integers(0, 400), min_size=1, max_size=5)
blocks = st.sampled_from([5, 1, 25])


def simple() -> SimpleSession:
    return SimpleSession(Gate(loud_frames, GateOptions(attack=1)))


def run(speech, engine=(0,), block=5, *, session=None):
    return played(session or simple(), ScriptedRecognizer(), scripted_audio(speech), engine, block)


def finals(events):
    return [(e.text, e.start_ms, e.end_ms) for e in events if isinstance(e, Final)]


def said(events) -> list[str]:
    return " ".join(text for text, _, _ in finals(events)).lower().split()


@given(runs, delays, blocks)
def test_every_word_is_in_the_finals_once_and_no_committed_one_changes(stretches, engine, block):
    speech = speech_of(stretches)
    events, windows = run(speech, engine, block)
    assert said(events) == [
        f"w{n}" for n, at in enumerate(range(6, len(speech), WORD)) if speech[at]
    ]
    check_transcript(events)
    check_speaking(events)
    heard = np.zeros(len(speech), bool)
    for window in windows:
        heard[window.start : window.end] = True
        assert window.end - window.start <= N_AUDIO_CTX
    assert heard[np.asarray(speech)].all()


@given(runs, delays, blocks)
def test_finals_depend_neither_on_the_engine_s_speed_nor_on_how_the_audio_was_cut(
    stretches, engine, block
):
    speech = speech_of(stretches)
    assert finals(run(speech, engine, block)[0]) == finals(run(speech)[0])


@given(runs, delays)
def test_the_real_session_says_what_the_simple_one_says(stretches, engine):
    speech = speech_of(stretches)
    assert said(run(speech, engine, session=scripted_session())[0]) == said(run(speech)[0])


def test_both_hear_the_same_in_real_speech():
    config = load({"model": "tiny.en", "threads": "1"}, {})
    recognizer = build.recognizer(config, *open_model(config))
    frames = recorded.frames(recorded.samples())
    simple_one, real = (
        [word.strip(".,") for word in said(played(session, recognizer, frames, [0], 5)[0])]
        for session in (SimpleSession(build.gate(config)), build.new_session(config))
    )
    assert simple_one == real
    assert len(real) > 5


def test_a_pause_ends_an_utterance_and_long_speech_is_cut():
    events, _ = run([True] * (4 * WORD) + [False] * 100 + [True] * (LONGEST + 100) + [False] * 100)
    _, second, third = ((start, end) for _, start, end in finals(events))
    assert finals(events)[0][2] == (4 * WORD + SILENCE) * FRAME_MS
    assert second[1] - second[0] == LONGEST * FRAME_MS
    assert third[0] == second[1]


def test_what_was_shown_is_taken_back_if_nothing_was_said():
    session, answers = simple(), iter([" maybe", " maybe"])
    events = session.feed(scripted_audio([True] * 60))
    while (window := session.next_window()) is not None:
        words = (Word(next(answers), window.start, window.end, 0.9, (1,)),)
        events += session.accept(window, Hypothesis(words=words))
    events += session.flush()
    window = session.next_window()
    assert window is not None
    assert window.last
    assert not session.due
    events += session.accept(window, Hypothesis())
    check_transcript(events)
    assert drain(session, ScriptedRecognizer(), []) == []
