"""Channels become one: their mean, the centre alone, or the loudest where the mean cancels."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Channels = NDArray[np.floating[Any]]
"""Samples between -1 and 1, (n, channels), of float32 or float64."""

_STANDARD = {6: ("FL", "FR", "FC", "LFE", "BL", "BR")}
"""The channels of a file that does not say what they are (SMPTE, as in WAVE and FLAC)."""
_LOW_FREQUENCIES = frozenset(("LFE", "LFE2"))
_IN_FRONT = frozenset(("FL", "FR", "FLC", "FRC", "DL", "DR"))
_CENTRE_GAIN, _SIDE_GAIN, _SURROUND_GAIN = 1.0, math.sqrt(0.5), 0.5
"""ITU-R BS.775-4, annex 4: how 3/2 sound becomes mono."""

_CELLS_PER_S = 50
"""What is read is decided every 20 ms, on a grid that the blocks do not move."""
_SHORT = math.exp(-1 / (0.3 * _CELLS_PER_S))
_LONG = math.exp(-1 / (0.5 * _CELLS_PER_S))
_MINUTE = math.exp(-1 / (10 * _CELLS_PER_S))
"""What 0.3, 0.5 and 10 s leave of a power is 1/e: the last takes a minute for 26 dB."""
_CANCELLED, _RESTORED = 0.2, 0.8
"""The power of the mean, as a share of what it is for channels that have nothing in common: below
the first, channels of the same level correlate by less than -0.8; above the second, by more than
-0.2."""
_LOUD = 1e-6
"""Power (-60 dBFS) below which channels are noise, which may correlate in any way."""
_NOISE = 0.3
"""Power of what is between words, as a share of theirs, at most."""
_N_CERTAIN = 5
"""Cells that must agree before a mean is given up; going back costs words, so it takes one."""
_N_TOLD = _CELLS_PER_S
"""Cells with channels in opposite phase that are worth a message."""
_CENTRE_IS_THERE, _CENTRE_IS_GONE = 1e-2, 2.5e-3
"""Power of the centre relative to the loudest other channel: -20 and -26 dB. Speech without music
is above both; the hiss of a centre that nobody uses is below."""
_SILENT = 1e-7
"""Power (-70 dBFS) that a centre with speech has at least."""
_HEARD_HZ = 8_000
"""Power is measured in about so many samples a second, which costs a tenth of mixing them."""
_MEAN = -1


class Mixer:
    """Mixes the channels of one stream, of which `names` are FFmpeg's (``FL``, ``FC``, ``LFE``).

    Where there is a centre with sound between two others, it is read alone: it has the dialogue of
    films. Otherwise, it is the mean of all channels but the low-frequency one, those behind with
    half the weight of the centre. Where channels cancel each other out in the mean, the louder one
    is read instead. What is read is faded over within 20 ms.

    What comes out does not depend on how the sound is cut into blocks, bit for bit. Without `names`
    all channels count alike.
    """

    def __init__(self, rate_hz: int, n_channels: int, names: Sequence[str] = ()) -> None:
        self._n = max(1, rate_hz // _CELLS_PER_S)
        self._stride = max(1, rate_hz // _HEARD_HZ)
        gains = [_gain(name) for name in names] or [1.0] * n_channels
        total = sum(gains) or 1.0
        self._gains = [gain / total for gain in gains]
        self._counted = [i for i, gain in enumerate(gains) if gain]
        self._centre = names.index("FC") if "FC" in names and len(self._counted) > 2 else None
        self._rest: Channels = np.empty((0, n_channels), np.float32)
        self._read = _MEAN
        # Powers in the last 0.3 s: of the mean, and as it is for channels that have nothing in
        # common; the highest of these that was cancelled.
        self._power = self._unlike = self._lost = 0.0
        self._n_cancelled = self._n_agreeing = 0
        self._centre_level = self._other_level = 0.0

    @property
    def cancels(self) -> bool:
        """Whether channels were in opposite phase for a second or more."""
        return self._n_cancelled >= _N_TOLD

    def push(self, block: Channels) -> NDArray[np.float32]:
        """Take the next samples, and return those that they complete, less than 20 ms fewer."""
        joined = np.concatenate((self._rest, block)) if len(self._rest) else block
        n_whole = len(joined) - len(joined) % self._n
        self._rest = joined[n_whole:].copy(order="K")
        whole = joined[:n_whole]
        mixed = self._mean(whole)
        cells = mixed.reshape(-1, self._n)
        before = self._read
        for cell, read in enumerate(self._choices(whole, cells)):
            if not before == read == _MEAN:
                sound = whole[cell * self._n : (cell + 1) * self._n]
                now, until_now = (_chosen(sound, cells[cell], each) for each in (read, before))
                if read != before:
                    fade = np.arange(1, self._n + 1) / self._n
                    now = now * fade + until_now * (1 - fade)
                cells[cell] = now
            before = read
        return mixed

    def flush(self) -> NDArray[np.float32]:
        """Return what waits for more, read as what came before it."""
        rest, self._rest = self._rest, self._rest[:0]
        return _chosen(rest, self._mean(rest), self._read).astype(np.float32)

    def _mean(self, block: Channels) -> NDArray[np.float32]:
        # One channel after the other: numpy's own mean may round differently for different sizes.
        first, *more = self._counted or range(block.shape[1])
        if len({self._gains[i] for i in (first, *more)}) == 1:
            # The mean of two float32 is exact in float32, as that of FFmpeg is.
            total = block[:, first].astype(block.dtype if len(more) == 1 else np.float64)
            for i in more:
                total += block[:, i]
            total /= 1 + len(more)
        else:
            total = block[:, first] * np.float64(self._gains[first])
            for i in more:
                total += block[:, i] * self._gains[i]
        return total.astype(np.float32, copy=False)

    def _choices(self, block: Channels, means: NDArray[np.float32]) -> Iterator[int]:
        """Yield the channel that is read in each cell, or `_MEAN`."""
        columns = [block[:, i].reshape(-1, self._n)[:, :: self._stride] for i in self._counted]
        powers = np.stack([_power(column) for column in columns], 1)
        unlike = powers @ np.square([self._gains[i] for i in self._counted])
        loudest = powers.argmax(1)
        level = powers.max(1)
        centre = others = np.zeros(len(means))
        if self._centre is not None:
            at = self._counted.index(self._centre)
            centre, others = powers[:, at], np.delete(powers, at, 1).max(1)
        of_mean = _power(means[:, :: self._stride])
        each = (array.tolist() for array in (of_mean, unlike, loudest, level, centre, others))
        for power, of_unlike, at, loud, of_centre, of_others in zip(*each, strict=True):
            self._power = self._power * _SHORT + power
            self._unlike = self._unlike * _SHORT + of_unlike
            if self._centre is not None and self._has_centre(of_centre, of_others):
                self._read = self._centre
            elif self._is_cancelled(is_loud=loud > _LOUD):
                if self._read in (_MEAN, self._centre):
                    self._read = self._counted[at]
            else:
                self._read = _MEAN
            yield self._read

    def _is_cancelled(self, *, is_loud: bool) -> bool:
        if self._read in (_MEAN, self._centre):
            agrees = self._power < _CANCELLED * self._unlike
            self._n_agreeing = self._n_agreeing + is_loud if agrees else 0
            return is_loud and self._n_agreeing >= _N_CERTAIN
        self._n_cancelled += is_loud
        self._n_agreeing = 0
        self._lost = max(self._unlike, self._lost * _MINUTE)
        # Noise between words has nothing in common: it is no reason to go back.
        return self._power < _RESTORED * self._unlike or self._unlike < _NOISE * self._lost

    def _has_centre(self, power: float, others: float) -> bool:
        self._centre_level = max(power, self._centre_level * _LONG)
        self._other_level = max(others, self._other_level * _LONG)
        share = _CENTRE_IS_GONE if self._read == self._centre else _CENTRE_IS_THERE
        return self._centre_level > max(_SILENT, share * self._other_level)


def cancelled(name: str) -> str:
    """Return the message about channels that are in opposite phase."""
    return f"the channels of {name} cancel each other out: only one of them is read"


def standard_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return FFmpeg's names of channels, or the usual ones if it knows none; empty: unknown."""
    if any(name != "NONE" for name in names):
        return tuple(names)
    return _STANDARD.get(len(names), ())


def _gain(name: str) -> float:
    if name in _LOW_FREQUENCIES:
        return 0.0
    if name == "FC":
        return _CENTRE_GAIN
    return _SIDE_GAIN if name in _IN_FRONT else _SURROUND_GAIN


def _power(cells: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the mean square of each row."""
    squares = np.einsum("cn,cn->c", cells, cells)
    mean: NDArray[np.float64] = squares.astype(np.float64) / cells.shape[1]
    return mean


def _chosen(cell: Channels, mean: NDArray[np.float32], channel: int) -> NDArray[Any]:
    return mean if channel == _MEAN else cell[:, channel]
