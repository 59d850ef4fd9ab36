"""The real session says what the simple one says."""

from hypothesis import given
from hypothesis import strategies as st

from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.events import Final
from streamd.options import GateOptions
from streamd.session.gate import Gate
from tests.support import recorded
from tests.support.fakes import (
    ScriptedRecognizer,
    loud_frames,
    played,
    scripted_audio,
    scripted_session,
    speech_of,
)
from tests.support.promises import runs
from tests.support.simple_session import SimpleSession

delays = st.lists(st.integers(0, 400), min_size=1, max_size=5)


def said(session, recognizer, frames, engine=(0,)) -> list[str]:
    events, _ = played(session, recognizer, frames, engine, 5)
    finals = [event.text for event in events if isinstance(event, Final)]
    return " ".join(finals).lower().split()


@given(runs, delays)
def test_the_real_session_says_what_the_simple_one_says(stretches, engine):
    audio, recognizer = scripted_audio(speech_of(stretches)), ScriptedRecognizer()
    simple = SimpleSession(Gate(loud_frames, GateOptions(attack=1)))
    assert said(scripted_session(), recognizer, audio, engine) == said(simple, recognizer, audio)


def test_both_hear_the_same_in_real_speech():
    config = load({"model": "tiny.en", "threads": "1"}, {})
    recognizer = build.recognizer(config, *open_model(config))
    frames = recorded.frames(recorded.samples())
    simple_one, real = (
        [word.strip(".,") for word in said(session, recognizer, frames)]
        for session in (SimpleSession(build.gate(config)), build.new_session(config))
    )
    assert len(real) > 5
    assert recorded.n_misread(simple_one, real) <= 3, 'as "How to Fis" for "Out of his"'
