"""Records the audio of a session in WAV files that are valid whenever the process dies."""

import logging
import os
import struct
from collections.abc import Callable
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from streamd.errors import ConfigError, os_error_as
from streamd.system.disk import is_nearly_full, write_all
from streamd.types import SAMPLE_RATE, Frames

_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FLUSH_BYTES = 2 * SAMPLE_RATE
"""One second: what a crash may lose."""
_FULL_BYTES = 0xFFFF_FFFF - _HEADER.size
"""Limit of the samples in a WAV file, whose sizes have 32 bits: 37 hours at 16 kHz."""

log = logging.getLogger(__name__)


class Recorder(Protocol):
    """Records the audio of a session in a file, whose name is `file`."""

    @property
    def file(self) -> str:
        """The name of the file that is written."""

    @property
    def duration_ms(self) -> int:
        """The length of what was written to it."""

    def write(self, frames: Frames) -> None:
        """Append the next (n, 320) frames, or (n, channels, 320) of split channels."""

    def close(self) -> None:
        """Write the rest."""

    def discard(self) -> None:
        """Remove the file, to which nothing was written."""


class WavWriter:
    """Writes 16 kHz, 16 bit to ``STEM.wav``, then ``STEM-2.wav`` and so on, 37 hours of mono each.

    They have a channel, or those of what is written first. If it has others later, a new file
    begins.

    The header is updated each second and never counts a sample that is not in the file. An existing
    file is not replaced: as for any file that cannot be made, `ConfigError` is raised. If the disk
    is nearly full later, that is logged, and the recording ends there: journals need less.
    """

    def __init__(self, stem: Path, *, full_bytes: int = _FULL_BYTES) -> None:
        self._stem, self._full_bytes = stem, full_bytes
        self._n_files, self._n_channels = 0, 1
        self._begin()

    @property
    def file(self) -> str:
        return self._path.name

    @property
    def duration_ms(self) -> int:
        n_samples = (self._n_written + len(self._waiting)) // (2 * self._n_channels)
        return n_samples * 1000 // SAMPLE_RATE

    def write(self, frames: Frames) -> None:
        n_channels = frames.shape[1] if frames.ndim == 3 else 1
        interleaved = frames.reshape(len(frames), n_channels, -1).swapaxes(1, 2)
        # The inverse of `Framer`: 16-bit audio is recorded as it came.
        pcm = np.clip(np.rint(interleaved * 32768), -32768, 32767).astype("<i2").tobytes()
        self._unless_ended(partial(self._append, pcm, n_channels))

    def close(self) -> None:
        self._unless_ended(self._flush)
        self._file.close()

    def discard(self) -> None:
        self._file.close()
        self._path.unlink()

    def _unless_ended(self, step: Callable[[], None]) -> None:
        if self._file.closed:
            return
        try:
            step()
        except ConfigError as error:
            self._file.close()
            log.error("%s; the recording ends here", error)  # noqa: TRY400 - no bug

    def _append(self, pcm: bytes, n_channels: int) -> None:
        n_bytes = self._n_written + len(self._waiting)
        if n_bytes + len(pcm) > self._full_bytes or (n_bytes and n_channels != self._n_channels):
            self._flush()
            self._file.close()
            self._n_channels = n_channels
            self._begin()
        self._n_channels = n_channels
        self._waiting += pcm
        if len(self._waiting) >= _FLUSH_BYTES:
            self._flush()

    def _begin(self) -> None:
        self._n_files += 1
        suffix = f"-{self._n_files}.wav" if self._n_files > 1 else ".wav"
        self._path = self._stem.with_name(self._stem.name + suffix)
        with os_error_as(ConfigError, f"--record: cannot create {self._path}"):
            self._stem.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, _NEW_FILE, 0o600)
            self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._n_written = 0
        self._waiting = bytearray()
        try:
            self._flush()
        except ConfigError:
            self.discard()
            raise

    def _flush(self) -> None:
        """Write the samples, then the header that counts them."""
        with os_error_as(ConfigError, f"--record: cannot write {self._path}"):
            if self._n_written and is_nearly_full(self._path.parent):
                raise OSError(ENOSPC, "the disk is nearly full, and finals need the rest")
            self._file.seek(_HEADER.size + self._n_written)
            write_all(self._file.fileno(), self._waiting)
            self._n_written += len(self._waiting)
            self._waiting = bytearray()
            self._file.seek(0)
            write_all(self._file.fileno(), _header(self._n_written, self._n_channels))


def _header(n_bytes: int, n_channels: int) -> bytes:
    """Return the header of a WAV file with `n_bytes` of samples (WAVE_FORMAT_PCM)."""
    n_frame = 2 * n_channels
    form = 16, 1, n_channels, SAMPLE_RATE, n_frame * SAMPLE_RATE, n_frame, 16
    n_rest = n_bytes + _HEADER.size - 8
    return _HEADER.pack(b"RIFF", n_rest, b"WAVE", b"fmt ", *form, b"data", n_bytes)
