"""What a session has finalised is text: another one with its state goes on from there."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from streamd.events import Final
from streamd.session.commit import LocalAgreement, NativeRule
from streamd.types import FRAME_MS, Hypothesis, ResumeState, Window
from tests.support.fakes import (
    WORD,
    ScriptedRecognizer,
    drain,
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


def spoken(
    frames,
    state: ResumeState,
    finalised_ms: int,
    engine: list[int],
    block: int,
    *,
    life: int | None,
    recognizer: object = None,
) -> tuple[list[Final], ResumeState, int]:
    """The finals of a session that goes on from a state and dies after `life` frames."""
    start = state.start_ms // FRAME_MS
    session, recognizer = (
        scripted_session(policy=NativeRule(LocalAgreement())),
        recognizer or From(start),
    )
    session.resume(state, finalised_ms, 1)
    events, window, free_at, at = [], None, 0, 0
    heard = frames[start:][:life]
    for i in range(0, len(heard), block):
        n = len(events)
        events += session.feed(heard[i : i + block])
        if window is not None and i >= free_at:
            events += session.accept(window, recognizer.recognize(window))
            window = None
        if window is None and (window := session.next_window()) is not None:
            free_at, at = i + engine[at % len(engine)], at + 1
        assert session.finalised_ms >= finalised_ms
        if i % 50 < block or any(isinstance(event, Final) for event in events[n:]):
            assert session.resume_state.start_ms >= state.start_ms
            state, finalised_ms = session.resume_state, session.finalised_ms
            assert finalised_ms - state.start_ms <= 21_500  # bounds what a client keeps
    if life is None:
        if window is not None:
            events += session.accept(window, recognizer.recognize(window))
        events += session.flush() + drain(session, recognizer, [])
    return [event for event in events if isinstance(event, Final)], state, finalised_ms


def said(finals: list[Final]) -> list[tuple[str, int, int]]:
    return [(final.text, final.start_ms, final.end_ms) for final in finals]


@given(
    stretches_of_speech,
    st.lists(st.integers(0, 400), min_size=1, max_size=5),
    st.lists(st.integers(1, 2000), max_size=3),
    st.sampled_from([5, 1, 25]),
)
@example([(648, 112), (12, 1), (648, 1)], [0], [876], 1)  # dies behind a sentence
@example([(648, 49), (12, 1), (60, 1)], [0], [796], 1)
def test_sessions_that_die_anywhere_say_what_one_that_lives_says(stretches, engine, lives, block):
    frames = scripted_audio(speech_of(stretches))
    finals: list[Final] = []
    state, finalised_ms = ResumeState(), 0
    for life in (*lives, None):
        more, state, finalised_ms = spoken(frames, state, finalised_ms, engine, block, life=life)
        finals += more
    undisturbed, _, _ = spoken(frames, ResumeState(), 0, engine, 5, life=None)
    assert said(finals) == said(undisturbed)
