"""The audio of clients that send a stream of bytes, cut anywhere, or telephone audio."""

from collections.abc import Iterator, Mapping
from functools import cache
from io import BytesIO
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import soundfile
from msgspec.structs import replace

from streamd.server.wire import Encoding, Start, check_format

Law = Literal["ULAW", "ALAW"]
"""libsndfile's names of the telephone encodings (ITU-T G.711)."""
_FORMATS: Final[Mapping[str, tuple[Encoding, Law | None]]] = MappingProxyType(
    {
        **dict.fromkeys(("int16", "linear16", "pcm_s16le"), (Encoding.S16, None)),
        **dict.fromkeys(("float32", "linear32"), (Encoding.F32, None)),
        **dict.fromkeys(("mulaw", "pcm_mulaw"), (Encoding.S16, "ULAW")),
        "alaw": (Encoding.S16, "ALAW"),
    }
)
"""What the encodings are that other protocols name."""


@cache
def _samples(law: Law) -> npt.NDArray[np.int16]:
    """Return the sample that each byte stands for."""
    every, form = BytesIO(bytes(range(256))), {"samplerate": 8000, "channels": 1, "format": "RAW"}
    samples, _ = soundfile.read(every, dtype="int16", subtype=law, **form)
    return np.asarray(samples, np.int16)


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
            audio = _samples(self._law)[np.frombuffer(audio, np.uint8)].tobytes()
        if audio:
            yield audio
