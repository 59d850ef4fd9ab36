"""Audio of any sample rate, sample type and number of channels becomes frames: 20 ms at 16 kHz."""

from collections.abc import Callable
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from streamd.errors import SourceError
from streamd.sources.mixing import Channels, Mixer
from streamd.types import FRAME, SAMPLE_RATE, Frames, Samples

Block = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]
"""Samples as they come: (n, channels), of any width that `Framer.push` takes."""
Bytes = NDArray[np.uint8]


def _packed_24(packed: Bytes) -> NDArray[np.int32]:
    """Three-byte numbers become the upper bytes of 32-bit ones, with the same full scale."""
    wide = np.zeros((len(packed) // 3, 4), np.uint8)
    wide[:, 1:] = packed.reshape(-1, 3)
    return wide.view("<i4").reshape(-1)


ENCODINGS: dict[str, tuple[int, Callable[[Bytes], Block]]] = {
    "u8": (1, lambda packed: packed),
    "s16le": (2, lambda packed: packed.view("<i2")),
    "s16be": (2, lambda packed: packed.view(">i2")),
    "s24le": (3, _packed_24),
    "s32le": (4, lambda packed: packed.view("<i4")),
    "f32le": (4, lambda packed: packed.view("<f4")),
    "f64le": (8, lambda packed: packed.view("<f8")),
}
"""What `PcmDecoder` reads, by ffmpeg's names."""


class PcmDecoder:
    """Bytes of interleaved PCM, cut anywhere, become blocks of samples for `Framer`."""

    def __init__(self, encoding: str, channels: int) -> None:
        """`encoding`: one of `ENCODINGS`."""
        width, self._decode = ENCODINGS[encoding]
        self._channels = channels
        self._stride = width * channels
        self._rest = b""

    def push(self, data: bytes) -> Block:
        """Return the (n, channels) samples that these bytes complete."""
        data = self._rest + data
        n_whole = len(data) - len(data) % self._stride
        self._rest = data[n_whole:]
        packed = np.frombuffer(data, np.uint8, count=n_whole)
        return self._decode(packed).reshape(-1, self._channels)


MIN_RATE_HZ = 4_000
MAX_RATE_HZ = 192_000
MAX_CHANNELS = 32
"""No recording of speech has more; libsndfile reads 1,024, for which a second takes gigabytes."""


_SCALES = {
    ("u", 1): (128.0, 2.0**7),
    ("i", 2): (0.0, 2.0**15),
    ("i", 4): (0.0, 2.0**31),
    ("f", 4): (0.0, 1.0),
    ("f", 8): (0.0, 1.0),
}
"""By kind and bytes of a sample: the value of silence, and its distance to full scale."""

_N_MIXED = 1 << 18
"""Samples that are mixed at once, which takes some 10 times their memory: a block may be hours."""

_LOUD = 160.0
"""Sum of samples of a channel, as of 1 s at -40 dBFS, before two channels can be the same."""
_SAME = 0.03
"""Share of a channel's sound in its difference to another (-30 dB) below which both are the same.
"""


_HOT = 4.0
"""Level relative to full scale (+12 dB) above which samples may be in another unit."""
_INT16 = 2.0**8, 2.0**15
"""Beyond the first level (+48 dB), and up to the second, floats are 16-bit integers."""
_LEAST_INTEGERS = 100
"""Of them, in a second, are no click or damaged message. At 16 kHz, the loudest second of each of
46 recordings of speech has 7,576 or more."""


class Rescaler:
    """Makes floats of up to 32,768 what they were before a program forgot to divide them.

    From the first sample beyond `_HOT`, sound waits for up to a second, until so many samples have
    a level that only integers have that it is no click: then all of it is scaled, and what follows.
    Without them it stays as it is, and only what follows those that come later is scaled. What
    comes out does not depend on how the sound is cut into blocks.
    """

    def __init__(self, rate_hz: int, n_channels: int) -> None:
        self._n_most, self._n_channels = rate_hz, n_channels
        self._held: NDArray[Any] | None = None
        self._n_seen = 0
        self._integers = np.zeros(0, np.int64)  # places of the newest, fewer than `_LEAST_INTEGERS`
        self._is_hot = self.scales = False

    def push(self, block: NDArray[Any]) -> NDArray[Any]:
        """Take the next (n, channels) floats, and return those that are decided."""
        if self.scales:
            return self._divided(block)
        ready, is_waiting = block[:0], self._held is not None
        if self._held is not None:
            block, self._held = np.concatenate((self._held, block)), None
        elif not self._is_hot:
            if not (hot := _beyond(block, _HOT)).any():
                return block
            self._is_hot = is_waiting = True
            first = int(hot.argmax())
            ready, block = block[:first], block[first:]
        if (at := self._first_sure(block)) is not None:
            at = 0 if is_waiting and at < self._n_most else at
            self.scales = True
            return np.concatenate((ready, block[:at], self._divided(block[at:])))
        if is_waiting and len(block) < self._n_most:
            self._held = block.copy()
            return ready
        self._integers = self._places(block)[1 - _LEAST_INTEGERS :]
        self._n_seen += len(block)
        return np.concatenate((ready, block))

    def _places(self, block: NDArray[Any]) -> NDArray[np.int64]:
        found = np.flatnonzero(_beyond(block, _INT16[0])) + self._n_seen
        return np.concatenate((self._integers, found))

    def _first_sure(self, block: NDArray[Any]) -> int | None:
        """Return the first sample of a block at which a second had enough integers."""
        places, n = self._places(block), _LEAST_INTEGERS - 1
        within = np.flatnonzero(places[n:] - places[: max(0, len(places) - n)] < self._n_most)
        return int(places[n + within[0]]) - self._n_seen if len(within) else None

    def flush(self) -> NDArray[Any]:
        """Return what waits at the end, as it is."""
        held, self._held = self._held, None
        return np.empty((0, self._n_channels), np.float32) if held is None else held

    def _divided(self, block: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(invalid="ignore"):  # a signalling NaN, which becomes 0 later
            divided: NDArray[Any] = block / block.dtype.type(_INT16[1])
        return divided


def rescaled(name: str) -> str:
    """Return the message about floats that were integers."""
    return f"{name} has 16-bit samples as floats, which were divided by 32768: write it again"


def _beyond(block: NDArray[Any], level: float) -> NDArray[Any]:
    """Return which samples are louder than a level, and not beyond 16 bits."""
    levels = np.abs(block)
    return np.asarray(((levels > level) & (levels <= _INT16[1])).any(axis=1))


def scaled(block: Block) -> Channels:
    """Return samples of any type as floats, -1 to 1; float32 is as it was."""
    if block.dtype == np.float32:
        return block.astype(np.float32, copy=False)
    rest, full_scale = _SCALES[block.dtype.kind, block.dtype.itemsize]
    wide: Channels = (block.astype(np.float64) - rest) / full_scale
    return wide


class Framer:
    """Cuts one stream of audio into frames; no sample is lost or doubled on the way.

    The frames do not depend on how the stream was cut into blocks, bit for bit. At 16 kHz, mono,
    samples of up to 24 bits pass unchanged. Channels are mixed (`Mixer`), unless they are `split`:
    then frames are (n, channels, 320) instead of (n, 320). Samples beyond full scale are clipped.
    NaN and infinity become 0 and are counted in `n_invalid`: one NaN would silence every window
    that it is in.

    Other rates are converted with libsoxr, in phase and without seams: n samples become
    ``n * 16000 / rate_hz``, rounded up or down. soxr's quality "HQ" holds back at most 40 ms of
    audio at 44.1 kHz and 115 ms at 8 kHz until more comes. Raises `SourceError` for a rate outside
    `MIN_RATE_HZ` to `MAX_RATE_HZ`, or more than `MAX_CHANNELS`.
    """

    def __init__(self, rate_hz: int, channels: int = 1, *, split: bool = False) -> None:
        self._channels, self._split = channels, split
        if not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
            wanted = f"{MIN_RATE_HZ} to {MAX_RATE_HZ} Hz"
            raise SourceError(f"a sample rate of {rate_hz} Hz is not supported: use {wanted}")
        if channels > MAX_CHANNELS:
            wanted = f"use at most {MAX_CHANNELS}"
            raise SourceError(f"{channels} channels are not supported: {wanted}")
        self._resampler: soxr.ResampleStream | None = None
        if rate_hz != SAMPLE_RATE:
            self._resampler = soxr.ResampleStream(
                rate_hz,
                SAMPLE_RATE,
                num_channels=channels if split else 1,
                dtype="float32",
                quality="HQ",
            )
        self._mixer = Mixer(rate_hz, channels) if channels > 1 and not split else None
        self._rescaler = Rescaler(rate_hz, channels)
        self._rest: Samples = np.empty((0, channels) if split else 0, np.float32)
        self.n_invalid = 0
        # Sums over the first split channel, and over its difference to the second:
        self._loud, self._differs = 0.0, 0.0
        self.peak = 1.0  # the highest level of a sample so far, if beyond full scale
        self.n_padding = 0  # how many zeros were added to the last frame, known after `flush`

    def push(self, block: Block) -> Frames:
        """Take the next samples and return the frames that they complete, n >= 0.

        `block` is (n, channels), or (n,) if there is one channel, of uint8, int16, int32, float32
        or float64 in any byte order. 24-bit samples are the upper bytes of int32.
        """
        block = block[:, np.newaxis] if block.ndim == 1 else block
        if block.shape[1] != self._channels:
            raise ValueError(f"a block of shape {block.shape} has not {self._channels} channels")
        n = _N_MIXED // self._channels
        pieces = (block[at : at + n] for at in range(0, max(1, len(block)), n))
        return np.concatenate([self._taken(piece) for piece in pieces])

    def flush(self) -> Frames:
        """Return the remaining frames, the last one padded with zeros. No `push` may follow."""
        before = self._taken(self._rescaler.flush(), is_scaled=True)
        left = self._mixer.flush() if self._mixer else self._rest[:0]
        frames = np.concatenate((before, self._cut(left, last=True)))
        if not (n_left := len(self._rest)):
            return frames
        self.n_padding = FRAME - n_left
        padding = np.zeros((self.n_padding, *self._rest.shape[1:]), np.float32)
        last = self._framed(np.concatenate((self._rest, padding)))
        self._rest = self._rest[:0]
        return np.concatenate((frames, last))

    def _taken(self, block: Block, *, is_scaled: bool = False) -> Frames:
        if block.dtype.kind == "f":
            block = self._valid(block if is_scaled else self._rescaler.push(block))
        samples = scaled(block)
        if self._mixer is not None:
            return self._cut(self._mixer.push(samples), last=False)
        apart = samples.astype(np.float32, copy=False)
        if self._split and self._channels > 1:
            self._loud += float(np.abs(apart[:, 0]).sum())
            self._differs += float(np.abs(apart[:, 0] - apart[:, 1]).sum())
        return self._cut(apart if self._split else apart[:, 0], last=False)

    def _valid(self, block: Block) -> Block:
        """Return floats, without those that are none, and clipped."""
        if np.abs(block).max(initial=0) <= 1:  # no comparison with NaN is true
            return block
        valid = np.isfinite(block)
        self.n_invalid += valid.size - int(np.count_nonzero(valid))
        finite = np.where(valid, block, 0)
        self.peak = max(self.peak, float(np.abs(finite).max()))
        return np.clip(finite, -1, 1)

    @property
    def rescales(self) -> bool:
        """Whether floats turned out to be 16-bit integers, and were divided by 32,768."""
        return self._rescaler.scales

    @property
    def cancels(self) -> bool:
        """Whether channels are in opposite phase, of which only one is read."""
        return self._mixer is not None and self._mixer.cancels

    @property
    def repeats(self) -> bool:
        """Whether the first two split channels have the same sound."""
        return self._loud > _LOUD and self._differs < _SAME * self._loud

    def _cut(self, samples: Samples, *, last: bool) -> Frames:
        if self._resampler is not None:
            resampled = self._resampler.resample_chunk(samples, last=last)
            samples = np.clip(resampled, -1, 1)  # once more: its filter overshoots
        joined = np.concatenate((self._rest, samples))
        n_whole = len(joined) - len(joined) % FRAME
        self._rest = joined[n_whole:].copy()  # a view would keep the whole block alive
        return self._framed(joined[:n_whole])

    def _framed(self, samples: Samples) -> Frames:
        if not self._split:
            return samples.reshape(-1, FRAME)
        apart = samples.reshape(-1, FRAME, self._channels).transpose(0, 2, 1)
        return np.ascontiguousarray(apart)
