"""The audio of a library: Opus or FLAC, which can be played as far as it is written.

Opus takes 24 kbit/s, 11 MB an hour; speech sounds as it was at that rate (RFC 7587, 3.1.1).
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Literal, cast

import av
import numpy as np

from streamd.errors import ConfigError, os_error_as
from streamd.system.disk import is_nearly_full
from streamd.types import SAMPLE_RATE, Frames, mixed

_CODECS = {"opus": ("ogg", "libopus"), "flac": ("flac", "flac")}
_BIT_RATE = 24_000
_PAGE_US = 1_000_000
"""A second: what a crash may lose."""
_CHECK_SAMPLES = 10 * SAMPLE_RATE
"""Audio after which it is looked whether the disk is nearly full."""

_log = logging.getLogger(__name__)


class SoundWriter:
    """Records mono audio into ``STEM.opus`` or ``STEM.flac``; see `Recorder`.

    Raises `ConfigError` if the file cannot be made; an existing one is not replaced. Where the disk
    is nearly full, or fails, the recording ends, and what was said is still captioned and kept.
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
        return self._path.name

    @property
    def duration_ms(self) -> int:
        return self._n_samples * 1000 // SAMPLE_RATE

    def write(self, frames: Frames) -> None:
        self._unless_ended(partial(self._append, frames))

    def close(self) -> None:
        self._unless_ended(self._end)

    def discard(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def _append(self, frames: Frames) -> None:
        mono = mixed(frames)
        before, self._n_samples = self._n_samples, self._n_samples + mono.size
        is_due = before // _CHECK_SAMPLES < self._n_samples // _CHECK_SAMPLES
        if is_due and is_nearly_full(self._path.parent):
            raise OSError(ENOSPC, "the disk is nearly full, and finals need the rest")
        samples = np.clip(np.rint(mono.reshape(1, -1) * 32768), -32768, 32767)
        frame = av.AudioFrame.from_ndarray(samples.astype("<i2"), format="s16", layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, before
        self._container.mux(self._stream.encode(frame))

    def _end(self) -> None:
        if self._n_samples:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        self._file.close()

    def _unless_ended(self, step: Callable[[], None]) -> None:
        if self._file.closed:
            return
        try:
            step()
        except (OSError, av.FFmpegError) as error:
            reason = error.strerror
            _log.error("--keep: %s: %s; the recording ends here", self._path, reason)
            with suppress(OSError, av.FFmpegError):  # it writes what it has
                self._container.close()
            self._file.close()
