"""When the frames of a session were heard: later than their numbers say, behind a long gap.

A session numbers the frames that it was given. A gap of seconds is given as silence, but an hour of
it would be held, searched for speech and, worst, push out of the ring what was said before. So
frames stand for a few seconds of it, and the times that are told jump over the rest.
"""

from bisect import bisect_right
from collections.abc import Sequence

from msgspec.structs import replace

from streamd.events import Final, Gap, Lag, Partial, SessionEvent, Vad
from streamd.types import Window, ms_from_frames


class Timeline:
    """Moves the times of events behind the gaps that no frames stand for."""

    def __init__(self) -> None:
        self._at_ms: list[int] = []
        self._later_ms: list[int] = []  # all jumps until there: a week may have thousands

    def jump(self, at_ms: int, by_ms: int) -> None:
        """What the session counts as `at_ms` and later was heard `by_ms` later than that.

        `at_ms` is not before the last jump.
        """
        self._at_ms.append(at_ms)
        self._later_ms.append(by_ms + sum(self._later_ms[-1:]))

    def true_ms(self, counted_ms: int) -> int:
        """The true time of one that was counted in frames."""
        n_before = bisect_right(self._at_ms, counted_ms)
        return counted_ms + sum(self._later_ms[n_before - 1 : n_before])

    def correct(self, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """The events at their true times."""
        return [self._moved(event) for event in events] if self._at_ms else list(events)

    def _moved(self, event: SessionEvent) -> SessionEvent:
        if isinstance(event, Vad | Gap):
            return replace(event, t_ms=self.true_ms(event.t_ms))
        if not isinstance(event, Partial | Final):
            return event
        return replace(
            event,
            start_ms=self.true_ms(event.start_ms),
            end_ms=self.true_ms(event.end_ms),
            words=tuple(
                replace(
                    word, start_ms=self.true_ms(word.start_ms), end_ms=self.true_ms(word.end_ms)
                )
                for word in event.words
            ),
        )


def lag(window: Window, *, now: int, step: int) -> list[SessionEvent]:
    """Tell when more than two steps (at least a second) of audio came during one window."""
    behind = now - window.end
    far = not window.last and behind >= max(2 * step, 50)
    return [Lag(lag_ms=ms_from_frames(behind))] if far else []
