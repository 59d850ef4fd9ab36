"""In silence a session may get its audio in larger pieces, and nothing comes later for that."""

from hypothesis import given
from hypothesis import strategies as st

from streamd.commit.local_agreement import LocalAgreement
from streamd.session import Session
from streamd.vad.gate import Gate, GateOptions
from streamd.vad.segmenter import Segmenter
from tests.support.fakes import WORD, loud_frame, scripted_audio

stretches = st.lists(st.tuples(st.integers(1, 3 * WORD), st.integers(1, 120)), max_size=8)


def listen(speech: list[bool], *, in_pieces: bool) -> list[tuple[int, list[object]]]:
    """What is told, and when: after so many frames. No window is ever transcribed."""
    frames = scripted_audio(speech)
    gate = Gate(loud_frame, GateOptions(steady_db=0.0))
    session = Session(gate, Segmenter(), LocalAgreement())
    told = []
    while session.now < len(frames):
        n = max(1, session.calm) if in_pieces else 1
        events = session.feed(frames[session.now : session.now + n])
        told.append((session.now, events, session.due))
        if not session.idle:
            assert session.calm == 0
    return [(now, events) for now, events, due in told if events or due]


@given(stretches)
def test_speech_is_found_as_soon_as_when_each_frame_is_looked_at(stretches):
    speech = [False] * 7
    for loud, quiet in stretches:
        speech += [True] * loud + [False] * quiet
    assert listen(speech, in_pieces=True) == listen(speech, in_pieces=False)
