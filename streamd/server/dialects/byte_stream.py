"""The audio of clients that send a stream of bytes, cut anywhere, or telephone audio."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from streamd.server.wire import Encoding, Start, check_format

Law = Literal["mulaw", "alaw"]
_FORMATS: Final[Mapping[str, tuple[Encoding, Law | None]]] = MappingProxyType(
    {
        **dict.fromkeys(("int16", "linear16", "pcm_s16le"), (Encoding.S16, None)),
        **dict.fromkeys(("float32", "linear32"), (Encoding.F32, None)),
        **dict.fromkeys(("mulaw", "pcm_mulaw"), (Encoding.S16, "mulaw")),
        "alaw": (Encoding.S16, "alaw"),
    }
)
"""What the encodings are that other protocols name."""


def _g711(law: Law) -> npt.NDArray[np.int16]:
    """Return the sample of each byte (ITU-T G.711): its sign, 3 bits of segment, 4 of step."""
    code = np.arange(256) ^ (0xFF if law == "mulaw" else 0x55)
    segment, step = code >> 4 & 7, code & 15
    if law == "mulaw":
        size, is_negative = ((2 * step + 33) << segment + 2) - 132, code & 128
    else:
        curved = (2 * step + 33) << np.maximum(segment, 1) + 2
        size, is_negative = np.where(segment, curved, (2 * step + 1) << 3), ~code & 128
    return np.where(is_negative, -size, size).astype(np.int16)


_SAMPLES: Final[Mapping[Law, npt.NDArray[np.int16]]] = MappingProxyType(
    {"mulaw": _g711("mulaw"), "alaw": _g711("alaw")}
)


class ByteStream:
    """Turns bytes into `start`, with the `encoding` of this name, and whole samples.

    Raises `WireError` if such audio is not supported.
    """

    def __init__(self, encoding: str, start: Start) -> None:
        check_format(start)
        samples, self._law = _FORMATS[encoding]
        self._start = replace(start, encoding=samples)
        self._sample_bytes = start.channels * (1 if self._law else samples.n_bytes)
        self.has_begun = False
        self._rest = b""
        self._n_samples = 0

    @property
    def heard_ms(self) -> int:
        """How much audio has come."""
        return self._n_samples * 1000 // self._start.rate

    def take(self, audio: bytes) -> Iterator[Start | bytes]:
        """Take audio of any length; the bytes of a sample that is not complete wait."""
        if not self.has_begun:
            self.has_begun = True
            yield self._start
        audio = self._rest + audio
        n_samples = len(audio) // self._sample_bytes
        self._n_samples += n_samples
        whole = n_samples * self._sample_bytes
        audio, self._rest = audio[:whole], audio[whole:]
        if self._law:
            audio = _SAMPLES[self._law][np.frombuffer(audio, np.uint8)].tobytes()
        if audio:
            yield audio
