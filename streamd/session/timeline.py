"""The true times of a session's events, which counts frames but not all of a long gap.

A gap of seconds is fed as silence. An hour of it would push audio out of the ring that is still to
be transcribed, so frames stand for a few seconds only, and times jump over the rest.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from streamd.events import (
    Final,
    Gap,
    Partial,
    SessionEvent,
    SpeakerTurn,
    SpeakerTurns,
    TimedWord,
    TurnEvent,
    Unclear,
    Vad,
)

TimedT = TypeVar(
    "TimedT", Partial, Final, SpeakerTurn, SpeakerTurns, TimedWord, Unclear, Partial | Final
)


class Timeline:
    """Shifts the times of events by the gaps that no frames stand for."""

    def __init__(self) -> None:
        self._at_ms: list[int] = []
        self._later_ms: list[int] = []  # the sum of all jumps until there

    def jump(self, at_ms: int, by_ms: int) -> None:
        """From the counted time `at_ms` on, which is not before the last jump, add `by_ms`."""
        self._at_ms.append(at_ms)
        self._later_ms.append(by_ms + sum(self._later_ms[-1:]))

    def true_ms(self, counted_ms: int) -> int:
        """The true time of a counted one."""
        n_before = bisect_right(self._at_ms, counted_ms)
        return counted_ms + sum(self._later_ms[n_before - 1 : n_before])

    def unbroken(self, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """The stretches of counted time, from `start_ms` to `end_ms`, between jumps."""
        inside = [at_ms for at_ms in self._at_ms if start_ms < at_ms < end_ms]
        return list(pairwise([start_ms, *inside, end_ms]))

    def correct(self, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """The events at their true times."""
        return [self._moved(event) for event in events] if self._at_ms else list(events)

    def _moved(self, event: SessionEvent) -> SessionEvent:
        if isinstance(event, Vad | TurnEvent | Gap):
            return replace(event, t_ms=self.true_ms(event.t_ms))
        if isinstance(event, SpeakerTurns):
            return replace(self._within(event), turns=tuple(map(self._within, event.turns)))
        if isinstance(event, Unclear):
            return self._within(event)
        if not isinstance(event, Partial | Final):
            return event
        return replace(self._within(event), words=tuple(map(self._within, event.words)))

    def _within(self, timed: TimedT) -> TimedT:
        start_ms, end_ms = self.true_ms(timed.start_ms), self.true_ms(timed.end_ms)
        return replace(timed, start_ms=start_ms, end_ms=end_ms)
