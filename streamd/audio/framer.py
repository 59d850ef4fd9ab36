"""Audio in any form becomes whole 20 ms frames at 16 kHz.

`PcmDecoder` turns raw bytes into samples, `Resampler` changes the rate (libsoxr), and `Framer` cuts
samples of any rate, width and channel count into frames. Nothing here knows where the audio comes
from.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from streamd.errors import SourceError
from streamd.types import FRAME, SAMPLE_RATE, Frames, Samples

Block = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
"""Samples as they come: (n, channels), of any width that `Framer.push` takes."""
Bytes = NDArray[np.uint8]


def _packed_24(packed: Bytes) -> NDArray[np.int32]:
    """Three-byte little-endian numbers as the upper bytes of 32-bit ones: same full scale."""
    wide = np.zeros((len(packed) // 3, 4), np.uint8)
    wide[:, 1:] = packed.reshape(-1, 3)
    return wide.view("<i4").reshape(-1)


_ENCODINGS: dict[str, tuple[int, Callable[[Bytes], Block]]] = {
    "u8": (1, lambda packed: packed),
    "s16le": (2, lambda packed: packed.view("<i2")),
    "s16be": (2, lambda packed: packed.view(">i2")),
    "s24le": (3, _packed_24),
    "s32le": (4, lambda packed: packed.view("<i4")),
    "f32le": (4, lambda packed: packed.view("<f4")),
    "f64le": (8, lambda packed: packed.view("<f8")),
}
ENCODINGS = tuple(_ENCODINGS)
"""What `PcmDecoder` reads, under ffmpeg's names."""


class PcmDecoder:
    """Bytes of interleaved PCM, cut anywhere, become blocks of samples for the framer.

    Raises
    ------
    SourceError
        `encoding` is none of `ENCODINGS`.
    """

    def __init__(self, encoding: str, channels: int) -> None:
        if encoding not in _ENCODINGS:
            raise SourceError(f"unknown audio encoding {encoding!r}: use {', '.join(ENCODINGS)}")
        width, self._decode = _ENCODINGS[encoding]
        self._channels = channels
        self._stride = width * channels
        self._rest = b""

    def push(self, data: bytes) -> Block:
        """Take any number of bytes; give the (n, channels) samples that are complete.

        An incomplete one waits for the next bytes; at the end of the stream it is not audio.
        """
        data = self._rest + data
        n_whole = len(data) - len(data) % self._stride
        self._rest = data[n_whole:]
        packed = np.frombuffer(data, np.uint8, count=n_whole)
        return self._decode(packed).reshape(-1, self._channels)


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
