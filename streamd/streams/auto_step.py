"""How often windows for partials are transcribed with ``--step auto``.

A longer step costs less, but words are shown later. So the step is the shortest with which the
engine keeps up, judged by the time of its latest windows, with all other load of the machine in it.
It changes between two utterances. Windows that a final waits for do not depend on it.
"""

import logging
from collections import deque
from statistics import fmean

from streamd.options import DEFAULT_STEP
from streamd.types import frames_from_ms, ms_from_frames

STEPS_MS = (250, 500, 1000, 2000)
_MOST_BUSY, _BUSY_ENOUGH = 0.8, 0.6
"""Shares of a step that its windows may take: of the step that is used, and of a shorter one before
it is used instead, lest they alternate. With 0.6 a server is hardly ever late
(`streamd.daemon.opening.MOST_BUSY`)."""
_N_WINDOWS = 8

log = logging.getLogger(__name__)


class AutoStep:
    """The step of utterances that begin now, for all sessions of one engine."""

    def __init__(self) -> None:
        self._step_ms = ms_from_frames(DEFAULT_STEP)
        self._windows: deque[tuple[float, bool]] = deque(maxlen=_N_WINDOWS)
        self._was_told = False

    def took(self, seconds: float, *, last: bool, sharing: float = 1.0) -> None:
        """Note how long a window took; `sharing` streams that speak have one engine thread.

        A `last` window is decoded with more care, so those count only if there are no others.
        """
        self._windows.append((seconds * 1000 * sharing, last))

    def __call__(self) -> int:
        """Return the step, in frames, of an utterance that begins now."""
        if self._windows:
            partials = [ms for ms, last in self._windows if not last]
            self._choose(fmean(partials or [ms for ms, _ in self._windows]))
        return frames_from_ms(self._step_ms)

    def _choose(self, window_ms: float) -> None:
        def keeps_up(step_ms: int) -> bool:
            share = _BUSY_ENOUGH if step_ms < self._step_ms else _MOST_BUSY
            return window_ms <= share * step_ms

        step_ms = next(filter(keeps_up, STEPS_MS), STEPS_MS[-1])
        if step_ms == self._step_ms:
            return
        level = logging.DEBUG if self._was_told else logging.INFO
        log.log(
            level,
            "captions every %d ms instead of %d: a window takes %.0f ms now",
            *(step_ms, self._step_ms, window_ms),
        )
        self._step_ms, self._was_told = step_ms, True
