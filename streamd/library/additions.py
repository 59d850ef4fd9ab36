"""Recordings that are transcribed into a library."""

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from unicodedata import normalize
from zlib import crc32

import numpy as np

from streamd.events import EndReason, Final, Sound
from streamd.library.sounds import SoundWriter
from streamd.library.tables import SOUNDS
from streamd.options import JournalOptions
from streamd.sources import Lost
from streamd.streams.hub import Hub
from streamd.streams.journal.database import Database
from streamd.streams.journal.tables import run_of
from streamd.streams.storage import SessionStorage
from streamd.types import FRAME, Frames, frames_from_ms

_MOST = 64
"""Characters of the name of a session."""
_BETTER = ".better"


def storage(library: Database, options: JournalOptions, *, resume_s: float = 0.0) -> SessionStorage:
    """Return where live sessions are stored: in a library, with their audio if that is kept."""
    form = options.keep_audio
    if form == "off":
        return SessionStorage(library, None, resume_s, disk=library.folder)
    sounds, recorder = library.folder / SOUNDS, partial(SoundWriter, form)
    return SessionStorage(library, sounds, resume_s, disk=library.folder, recorder=recorder)


class Addition:
    """A recording: `hear` its audio, publish its finals on the `hub`, then `end` it.

    If `file` is the audio of a session of the library, it becomes that session's better text.

    `epoch` names its run, unless it is empty. Raises `JournalError` or `ConfigError` if it cannot
    be stored.
    """

    def __init__(
        self,
        library: Database,
        options: JournalOptions,
        file: str,
        *,
        history: int = 1000,
        epoch: str = "",
    ) -> None:
        name = _named_after(Path(file).stem)
        audio, self._recording = Path(file), None
        if known := _session_of(library, audio):
            name, started = known
            self._journal = library.begin(name, epoch=epoch, started=started)
        else:
            self._journal = library.begin(name, epoch=epoch)
            self._recording = storage(library, options).record(name)
        self._library, self.hub = library, Hub(name, history, journal=self._journal)
        if self._recording is not None or known:
            file = self._recording.file if self._recording else audio.name
            self._journal.attach(file, 0, 0)

    @property
    def is_open(self) -> bool:
        """Whether it has not ended. Any thread may ask."""
        return not self._journal.closed

    def hear(self, item: Frames | Lost) -> None:
        """Take the next frames, or what a source has lost."""
        if self._recording is None:
            return
        if isinstance(item, Lost):
            item = np.zeros((frames_from_ms(item.duration_ms), FRAME), np.float32)
        self._recording.write(item)

    async def keeping(self, events: AsyncIterator[Final | Sound]) -> AsyncIterator[Final | Sound]:
        """Give events when they are stored, and end with them."""
        reason = EndReason.ERROR
        try:
            async for event in events:
                yield self.hub.publish(event)
            reason = EndReason.END
        finally:
            self.end(reason)

    def discard(self) -> None:
        """Nothing could be heard of it: leave nothing of it in the library."""
        if self._recording is not None:
            self._recording.discard()
        self._journal.close()
        delete, number = "DELETE FROM runs WHERE id = ?", self._journal.number
        self._library.write(lambda cursor: cursor.execute(delete, (number,)))

    def end(self, reason: str) -> None:
        """The recording is transcribed, as far as it could be; nothing follows."""
        if self._recording is not None:
            self._recording.close()
        if not self._journal.closed:
            self._journal.end(reason)


def _named_after(stem: str) -> str:
    """Return a name for a session; a number tells those apart of which it cannot have letters."""
    letters = re.sub(r"[\u0300-\u036f]", "", normalize("NFKD", stem))
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", letters).strip("-")
    if any(letter.isalnum() and not letter.isascii() for letter in letters):
        number = f"{crc32(stem.encode(errors='replace')):010}"
        name = f"{name[-_MOST + len(number) + 1 :]}-{number}"
    return name[-_MOST:].strip("-") or "recording"


def _session_of(library: Database, audio: Path) -> tuple[str, datetime] | None:
    """Return how the better text of a session is called, and when its audio begins."""
    if audio.parent.resolve() != (library.folder / SOUNDS).resolve():
        return None
    query = "SELECT runs.run, start_ms - at_ms FROM runs JOIN sounds ON sounds.run = runs.id "
    for data, begin_ms in library.select(f"{query} WHERE file = ? ORDER BY sounds.id", audio.name):
        run = run_of(data)
        name = f"{run.session[: _MOST - len(_BETTER)]}{_BETTER}"
        return name, run.started + timedelta(milliseconds=begin_ms)
    return None
