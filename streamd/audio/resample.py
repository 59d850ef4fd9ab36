"""Any sample rate to 16 kHz, block by block, without drift or seams (libsoxr)."""

import numpy as np
import soxr

from streamd.errors import SourceError
from streamd.types import SAMPLE_RATE, Samples

MIN_RATE_HZ = 4_000
MAX_RATE_HZ = 192_000


class Resampler:
    """A stream at `rate_hz` becomes the same stream at 16 kHz, in phase with it.

    The output does not depend on how the input was cut into blocks, bit for bit. After `flush`,
    n samples in are ``n * 16000 / rate_hz`` samples out, rounded to a neighbour. soxr's quality
    "HQ" holds back at most 40 ms of audio at 44.1 kHz and 115 ms at 8 kHz until more comes.

    Raises
    ------
    SourceError
        The rate is not one at which anybody records speech.
    """

    def __init__(self, rate_hz: int) -> None:
        if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
            wanted = f"{MIN_RATE_HZ} to {MAX_RATE_HZ} Hz"
            raise SourceError(f"a sample rate of {rate_hz} Hz is not supported: use {wanted}")
        self._stream = soxr.ResampleStream(
            rate_hz, SAMPLE_RATE, num_channels=1, dtype="float32", quality="HQ"
        )

    def push(self, samples: Samples) -> Samples:
        """Take (n,) samples at the input rate; give what is ready at 16 kHz, possibly nothing."""
        return self._resampled(samples, last=False)

    def flush(self) -> Samples:
        """Give what was held back. The stream ends here: no `push` may follow."""
        return self._resampled(np.empty(0, np.float32), last=True)

    def _resampled(self, samples: Samples, *, last: bool) -> Samples:
        out: Samples = self._stream.resample_chunk(samples, last=last)
        return out
