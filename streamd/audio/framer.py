"""Blocks of samples of any size, width, channel count and rate to 20 ms frames."""

import numpy as np

from streamd.audio.pcm import Block
from streamd.audio.resample import Resampler
from streamd.types import FRAME, SAMPLE_RATE, Frames, Samples

_SCALES = {
    ("u", 1): (128.0, 2.0**7),
    ("i", 2): (0.0, 2.0**15),
    ("i", 4): (0.0, 2.0**31),
    ("f", 4): (0.0, 1.0),
    ("f", 8): (0.0, 1.0),
}
"""(kind, bytes) of a sample: its value at rest, and its distance from there to full scale."""


class Framer:
    """One stream of audio, cut into frames; not a sample is lost or doubled on the way.

    The frames do not depend on how the stream was cut into blocks, bit for bit. At 16 kHz, mono,
    samples of up to 24 bits pass unchanged. Channels are averaged. What is not a number or infinite
    becomes 0 and is counted in `n_invalid` (one NaN would silence every window that it is in);
    louder than full scale is clipped to it.

    Raises
    ------
    SourceError
        The rate is outside 4000..192000 Hz.
    """

    def __init__(self, rate_hz: int, channels: int = 1) -> None:
        self._channels = channels
        self._resampler = None if rate_hz == SAMPLE_RATE else Resampler(rate_hz)
        self._rest: Samples = np.empty(0, np.float32)
        self.n_invalid = 0
        self.n_padding = 0
        """Zeros at the end of the last frame that are no audio, known after `flush`."""

    def push(self, block: Block) -> Frames:
        """Take the next samples and give the (n, 320) frames that they complete, n >= 0.

        Parameters
        ----------
        block : (n, channels), or (n,) if there is one channel; uint8, int16, int32, float32 or
            float64 of any byte order. 24-bit samples come as the upper bytes of int32.
        """
        mono = self._mono(block)
        return self._cut(self._resampler.push(mono) if self._resampler else mono)

    def flush(self) -> Frames:
        """Give the rest, the last frame padded with zeros. The stream ends here: no `push` after.

        There may be none, and after resampling there may be several.
        """
        frames = (
            self._cut(self._resampler.flush()) if self._resampler else self._cut(self._rest[:0])
        )
        if not len(self._rest):
            return frames
        last = np.zeros((1, FRAME), np.float32)
        last[0, : len(self._rest)] = self._rest
        self.n_padding = FRAME - len(self._rest)
        self._rest = self._rest[:0]
        return np.concatenate((frames, last))

    def _mono(self, block: Block) -> Samples:
        """Average the channels, at full scale 1."""
        columns = block[:, np.newaxis] if block.ndim == 1 else block
        if columns.shape[1] != self._channels:
            raise ValueError(f"a block of shape {block.shape} has not {self._channels} channels")
        rest, full_scale = _SCALES[block.dtype.kind, block.dtype.itemsize]
        if block.dtype.kind == "f":
            columns = self._sanitized(columns)
        # One channel after the other in float64: numpy's own mean may round differently for
        # different block sizes.
        total = np.zeros(len(columns))
        for column in columns.T:
            total += column
        return ((total / self._channels - rest) / full_scale).astype(np.float32)

    def _sanitized(self, samples: Block) -> Block:
        valid = np.isfinite(samples)
        self.n_invalid += valid.size - int(np.count_nonzero(valid))
        return np.clip(np.where(valid, samples, 0), -1, 1)

    def _cut(self, samples: Samples) -> Frames:
        # The resampler's filter rings a little beyond full scale.
        joined = np.concatenate((self._rest, np.clip(samples, -1, 1)))
        n_whole = len(joined) - len(joined) % FRAME
        self._rest = joined[n_whole:].copy()  # a view would keep the whole block alive
        return joined[:n_whole].reshape(-1, FRAME)
