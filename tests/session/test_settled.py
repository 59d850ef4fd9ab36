"""What a session has settled need not be kept: another one can go on from there."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from streamd.events import Final
from streamd.types import FRAME_MS, Hypothesis, Window
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    ending,
    scripted_audio,
    scripted_session,
    speech_of,
)

stretches_of_speech = st.lists(
    st.tuples(st.integers(1, 130).map(lambda n: n * WORD), st.integers(1, 160)),
    min_size=1,
    max_size=5,
)
"""Whole words, some beyond the longest utterance, and the silence behind each, in frames."""


class From(ScriptedRecognizer):
    """Hears a session that began in the middle of the scripted audio."""

    def __init__(self, start: int) -> None:
        super().__init__(ending)
        self._start = start

    def recognize(self, window: Window) -> Hypothesis:
        by = self._start
        heard = super().recognize(replace(window, start=window.start + by, end=window.end + by))
        words = [replace(w, start=w.start - by, end=w.end - by) for w in heard.words]
        return replace(heard, words=tuple(words))


def spoken(frames, start: int, engine: list[int], *, until: int | None) -> tuple[list[str], int]:
    """The finals of a session that begins at `start` and dies at `until`, and what it settled."""
    session, recognizer = scripted_session(), From(start)
    events, window, free_at, at, settled = [], None, 0, 0, 0
    for i, frame in enumerate(frames[start:until]):
        events += session.feed(frame[None])
        if window is not None and i >= free_at:
            events += session.accept(window, recognizer.recognize(window))
            window = None
        if window is None and (window := session.next_window()) is not None:
            free_at, at = i + engine[at % len(engine)], at + 1
        assert session.settled_ms >= settled
        settled = session.settled_ms
    if until is None:
        if window is not None:
            events += session.accept(window, recognizer.recognize(window))
        events += session.flush()
        while (window := session.next_window()) is not None:
            events += session.accept(window, recognizer.recognize(window))
    said = [word for event in events if isinstance(event, Final) for word in event.text.split()]
    return said, start + settled // FRAME_MS


@given(
    stretches_of_speech,
    st.lists(st.integers(0, 400), min_size=1, max_size=5),
    st.lists(st.integers(1, 2000), max_size=4),
)
def test_sessions_that_die_anywhere_and_go_on_from_there_lose_and_double_no_word(
    stretches, engine, lives
):
    speech = speech_of(stretches)
    frames = scripted_audio(speech)
    said: list[str] = []
    settled = 0
    for life in lives:
        more, settled = spoken(frames, settled, engine, until=min(settled + life, len(frames)))
        said += more
    more, _ = spoken(frames, settled, engine, until=None)
    middles = range(WORD // 2, len(speech), WORD)
    # What continues after a full stop has a capital.
    assert [word.lower() for word in said + more] == [
        f"w{n // WORD}{ending(n // WORD)}" for n in middles if speech[n]
    ]
