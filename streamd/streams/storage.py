"""Where the sessions of a process are stored."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from streamd.streams.journal.journals import Journals
from streamd.streams.wav import Recorder, WavWriter
from streamd.system.disk import is_nearly_full


@dataclass(frozen=True, slots=True)
class SessionStorage:
    """The journals and the folder for recordings; None: nothing is stored.

    For `resume_s` after its start, the daemon keeps the sessions of an earlier process for the
    clients that can resume them. `disk` is the folder of the journals, if they are in one.
    """

    journals: Journals | None = None
    recordings: Path | None = None
    resume_s: float = 0.0
    disk: Path | None = None
    recorder: Callable[[Path], Recorder] = WavWriter
    """Begins a recording under a name without ending; raises `ConfigError`."""
    only: str = ""
    """The one session whose audio is recorded; empty: that of all."""

    @property
    def full(self) -> str:
        """Why no session can begin that may soon have to end; empty if one can."""
        try:
            if self.disk is not None and is_nearly_full(self.disk):
                return "the disk of the journal is nearly full"
            if self.recordings is not None and is_nearly_full(self.recordings):
                return "the disk of the recordings is nearly full"
        except OSError as error:
            return f"what sessions are stored on cannot be read: {error.strerror}"
        return ""

    def record(self, session: str) -> Recorder | None:
        """Begin a recording, if there is a folder for them; raises `ConfigError`."""
        if self.recordings is None or self.only not in ("", session):
            return None
        return self.recorder(self.recordings / f"{session}~{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
