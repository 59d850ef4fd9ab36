"""What single options of a session do."""

from dataclasses import replace

from streamd.events import Final, Partial
from streamd.options import GateOptions, SessionOptions
from streamd.session import Session
from streamd.session.commit import LocalAgreement
from streamd.session.gate import Gate
from streamd.session.segmenter import Segmenter
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
    fed,
    loud_frames,
    scripted_audio,
    scripted_session,
)


def test_an_improbable_last_word_is_hidden_until_the_speaker_pauses():
    audio = scripted_audio([False] * WORD + [True] * (10 * WORD) + [False] * 60)
    shown = {}
    for least in (0.0, 0.35):
        session = scripted_session(SessionOptions(shown_prob=least))
        events = []
        for start in range(0, len(audio), 25):
            events += session.feed(audio[start : start + 25])
            events += drain(session, ScriptedRecognizer(), [])
        shown[least] = [e.text.split() for e in events if isinstance(e, Partial)]
        assert [e.text.split()[-1] for e in events if isinstance(e, Final)] == ["w10"]
    assert any(word.startswith("?") for text in shown[0.0] for word in text)
    assert not any(word.startswith("?") for text in shown[0.35] for word in text)
    assert shown[0.35][-1][-1] == "w10", "in the pause everything is shown"


def test_a_word_that_the_flush_cuts_off_before_the_gate_opened_is_not_lost():
    gate = Gate(loud_frames, GateOptions(attack=10))
    session = Session(gate, Segmenter(), LocalAgreement())
    audio = scripted_audio([False] * (2 * WORD + 5) + [True] * 5)
    session.feed(audio)
    assert session.idle, "five voiced frames of ten do not open it"
    events = session.flush() + drain(session, ScriptedRecognizer(), [])
    assert [e.text for e in events if isinstance(e, Final)] == ["w2"]


NUMBER = "90210447"


def test_a_number_that_is_dictated_digit_by_digit_is_committed_as_a_whole():
    class Digits(ScriptedRecognizer):
        def recognize(self, window):
            found = super().recognize(window)
            digits = [replace(word, text=f" {NUMBER[word.start // WORD]}") for word in found.words]
            return replace(found, words=tuple(digits))

    audio = scripted_audio([True] * (8 * WORD) + [False] * 60)
    events = fed(scripted_session(), Digits(), audio)
    partials = [event for event in events if isinstance(event, Partial)]
    finals = [event.text for event in events if isinstance(event, Final)]
    assert "902" in {event.text[:3] for event in partials}
    assert not any(0 < event.stable < 8 for event in partials), "it could have gone on"
    assert finals == [NUMBER]
