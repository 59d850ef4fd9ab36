"""Sound files that libsndfile decodes: wav, flac, ogg, aiff and so on."""

import logging
import re

import numpy as np
import soundfile
from numpy.typing import NDArray

from streamd.errors import SourceError

_READ_MS = 1000
"""Read at a time: a thread that is woken for each block of 40 ms costs as much as listening."""
_HEADER_SLACK_MS = 100
"""Lengths in headers may be estimates."""
_OTHER_SIZE = re.compile(
    r"^ *(?:data|SSND|Data Size|riff) *: (\d+) \(should be (\d+)\)", re.MULTILINE
)
"""What libsndfile notes of a file that holds more or fewer bytes of sound than its header says."""
_NO_END = re.compile("lacks an end-of-stream bit|without an End-Of-Stream flag")
_UNKNOWN_SIZE = 0x7FFF_F000
"""Whoever writes into a pipe cannot come back to the header, and writes something as large."""

log = logging.getLogger(__name__)


class UnreadableError(Exception):
    """libsndfile cannot read the file."""


class _ForwardFile(soundfile.SoundFile):  # type: ignore[misc]  # it has no annotations
    """A sound file that is only read from front to back.

    On files that can seek, soundfile seeks after each read to where it already is. In an mp3 that
    restarts the decoder: up to 0.24 of full scale off, in blocks of 20 ms (libsndfile 1.2.2).
    """

    def seekable(self) -> bool:
        """Never, so that nobody tries."""
        return False


class Sndfile:
    """One sound file, read from front to back.

    Raises
    ------
    UnreadableError
        It is damaged, or of a format that libsndfile does not know.
    SourceError
        There is nothing in it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self._file = _ForwardFile(name)
        except soundfile.LibsndfileError:
            raise UnreadableError from None
        self.rate_hz: int = self._file.samplerate
        self.channels: int = self._file.channels
        if not self._file.frames:
            self._file.close()
            raise SourceError(
                f"{name} holds no audio that can be decoded: record or convert it again"
            )
        self.duration_ms: int | None = self._file.frames * 1000 // self.rate_hz
        self._n_read = 0
        self._failed = False

    def open(self) -> None:
        """Warn if the file ends before its header says so; what is there can be read."""
        said = self._file.extra_info
        if _NO_END.search(said):  # of Ogg; how much is missing nobody knows
            log.warning("%s is cut off: get a whole copy for the rest", self.name)
        if found := _OTHER_SIZE.search(said):
            stated, there = map(int, found.groups())
            seconds = self._file.frames / self.rate_hz
            stated_seconds = seconds * stated / max(there, 1)
            if stated < _UNKNOWN_SIZE and (stated_seconds - seconds) * 1000 > _HEADER_SLACK_MS:
                log.warning(
                    "%s is cut off: only %.1f of %.1f s are there; get a whole copy for the rest",
                    self.name,
                    seconds,
                    stated_seconds,
                )

    def read(self) -> NDArray[np.float32]:
        """Give the next (n, channels) samples; n is 0 at the end.

        Raises
        ------
        SourceError
            At the end, if that is not the end of the sound.
        """
        # When the decoder gives up inside a block, soundfile raises and does not say how much it
        # had decoded into it: what is still NaN then was not.
        n = self.rate_hz * _READ_MS // 1000
        space = np.full((n, self.channels), np.nan, np.float32)
        if self._failed:
            raise self._cut_short()
        try:
            block: NDArray[np.float32] = self._file.read(out=space)
        except soundfile.LibsndfileError:
            block = space[: np.count_nonzero(~np.isnan(space[:, 0]))]
            self._failed = True
        self._n_read += len(block)
        missing_ms = (self._file.frames - self._n_read) * 1000 // self.rate_hz
        if not len(block) and (self._failed or missing_ms > _HEADER_SLACK_MS):
            raise self._cut_short()
        return block

    def stop(self) -> None:
        """Nothing to do: no read takes long."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cut_short(self) -> SourceError:
        decoded = f"{self._n_read / self.rate_hz:.1f} of {self._file.frames / self.rate_hz:.1f} s"
        return SourceError(
            f"{self.name} is damaged or incomplete: only {decoded} could be decoded; "
            "get a whole copy for the rest"
        )
