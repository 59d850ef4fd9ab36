"""The audio of a library: Opus or FLAC, which can be played as far as it is written.

Opus takes 24 kbit/s, 11 MB an hour; speech sounds as it was at that rate (RFC 7587, 3.1.1).
"""

from pathlib import Path
from typing import Literal, cast

import av
import numpy as np

from streamd.errors import ConfigError, os_error_as
from streamd.types import SAMPLE_RATE, Frames, mixed

_CODECS = {"opus": ("ogg", "libopus"), "flac": ("flac", "flac")}
_BIT_RATE = 24_000
_PAGE_US = 1_000_000
"""A second: what a crash may lose."""


class SoundWriter:
    """Records mono audio into ``STEM.opus`` or ``STEM.flac``; see `Recorder`.

    Raises `ConfigError` if the file cannot be made; an existing one is not replaced.
    """

    def __init__(self, form: Literal["opus", "flac"], stem: Path) -> None:
        self._path, self._n_samples = stem.with_name(f"{stem.name}.{form}"), 0
        container, codec = _CODECS[form]
        with os_error_as(ConfigError, f"--keep: cannot create {self._path}"):
            stem.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = self._path.open("xb", buffering=0)
            self._path.chmod(0o600)
        options = {"page_duration": str(_PAGE_US)} if form == "opus" else {}
        options["flush_packets"] = "1"
        self._container = av.open(self._file, "w", format=container, options=options)
        stream = self._container.add_stream(codec, rate=SAMPLE_RATE, layout="mono")
        self._stream = cast(av.AudioStream, stream)
        self._stream.bit_rate = _BIT_RATE

    @property
    def file(self) -> str:
        """The name of the file that is written."""
        return self._path.name

    @property
    def duration_ms(self) -> int:
        """The length of what was written to it."""
        return self._n_samples * 1000 // SAMPLE_RATE

    def write(self, frames: Frames) -> None:
        """Append the next (n, 320) frames, or (n, channels, 320) of split channels."""
        if self._file.closed:
            return
        samples = np.clip(np.rint(mixed(frames).reshape(1, -1) * 32768), -32768, 32767)
        frame = av.AudioFrame.from_ndarray(samples.astype("<i2"), format="s16", layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, self._n_samples
        self._container.mux(self._stream.encode(frame))
        self._n_samples += samples.size

    def close(self) -> None:
        """Write the rest."""
        if not self._file.closed:
            if self._n_samples:
                self._container.mux(self._stream.encode(None))
            self._container.close()
            self._file.close()

    def discard(self) -> None:
        """Remove the file, to which nothing was written."""
        self.close()
        self._path.unlink(missing_ok=True)
