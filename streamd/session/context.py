"""How much encoder context the windows of a stream need: more when the short one failed of late.

A short context saves most of the work, and with some voices, noises and models it confuses the
decoder. The recognizer's guard then encodes the window again in full. Where it has to do that
often, paying for both is dearer than a longer context, and what the guard does not notice is wrong
more often, too. Each stream has its own floor: one that is hard to hear costs the others nothing.
"""

from bisect import bisect_right
from collections import deque

from streamd.types import N_AUDIO_CTX, Hypothesis, Window

BUCKETS = (384, 512, 768, N_AUDIO_CTX)
"""Encoder positions that a floor may have: few shapes for a runtime to plan."""
WINDOWS, FAILURES = 10, 2
"""When so many of the last windows needed the full context, the floor rises by a bucket ..."""
CLEAN = 3_000
"""... and when none did in so many frames of speech, it falls by one: 60 s. No source says what is
best: these are the figures of a design, in which a wrong one costs time, never text."""


class ContextFloor:
    """Learns from each window of a stream; knows nothing of encoders."""

    def __init__(self) -> None:
        self.positions = 0
        """The next window is to be encoded on so many at least; 0: as the options say."""
        self._failed: deque[int] = deque(maxlen=WINDOWS)
        self._clean = 0
        self._heard = 0

    def learn(self, window: Window, hypothesis: Hypothesis) -> None:
        """Take in what the recognizer said of a window that followed the floor."""
        n_new = max(0, window.end - max(window.start, self._heard))
        self._heard = max(self._heard, window.end)
        self._failed.append(hypothesis.failed_ctx)
        if hypothesis.failed_ctx:
            self._clean = 0
            if sum(positions > 0 for positions in self._failed) >= FAILURES:
                self._rise(max(self._failed))
        else:
            self._clean += n_new
            if self._clean >= CLEAN:
                self._fall()

    def _rise(self, failed: int) -> None:
        """Beyond the longest context that failed: below it nothing would change."""
        longer = BUCKETS[min(bisect_right(BUCKETS, failed), len(BUCKETS) - 1)]
        self.positions = max(self.positions, longer)
        self._failed.clear()

    def _fall(self) -> None:
        shorter = [positions for positions in BUCKETS if positions < self.positions]
        self.positions = shorter[-1] if shorter else 0
        self._clean = 0
        self._failed.clear()
