"""How much audio was lost when PortAudio reports an input overflow.

PortAudio only says *that* it threw audio away before a block, not how much. But each block comes
with the time at which its first sample was captured (``inputBufferAdcTime``). That time minus the
duration of all samples delivered before the block is when the stream began, the same number at each
block but for jitter, until samples are missing: then it is later by their duration.

With PortAudio 19.6 the number jitters by less than 0.1 ms; through PulseAudio it may also wander by
some 100 ms within half a second while streams come and go (measured on a null sink's monitor), and
some host APIs report no time at all.
"""

from collections import deque
from statistics import median

_N_BEFORE = 50
"""Blocks that say when the stream began: 1 s. The median does not mind that PortAudio may report an
overflow a block or two late."""


class OverflowMeter:
    """Measures overflows in one stream of blocks at `rate_hz`."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._n_delivered = 0
        self._began_s: deque[float] = deque(maxlen=_N_BEFORE)

    def lost(self, n_samples: int, adc_s: float, overflowed: bool) -> int:
        """Take the next block and count the samples lost before it.

        Parameters
        ----------
        n_samples : length of the block
        adc_s : when its first sample was captured, in seconds since whenever
        overflowed : PortAudio reports an overflow with this block

        Returns
        -------
        0 if there was no overflow. If the clock cannot have been right, the length of one block: an
        overflow is never no loss.
        """
        began_s = adc_s - self._n_delivered / self._rate_hz
        n_lost = 0
        if overflowed:
            if self._began_s:
                n_lost = round((began_s - median(self._began_s)) * self._rate_hz)
            n_lost = n_lost if n_lost > 0 else n_samples
            self._began_s.clear()
        self._n_delivered += n_samples
        self._began_s.append(began_s)
        return n_lost
