"""Raw bytes to samples: the encodings in which people pipe audio around."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import SourceError

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
