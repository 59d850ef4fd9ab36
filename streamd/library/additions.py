"""Recordings that are transcribed into a library."""

import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import numpy as np

from streamd.events import EndReason, Final, Sound
from streamd.library.sounds import SoundWriter
from streamd.library.tables import SOUNDS
from streamd.options import JournalOptions
from streamd.sources import Lost
from streamd.streams.hub import Hub
from streamd.streams.journal.database import Database
from streamd.streams.storage import SessionStorage
from streamd.types import FRAME, Frames, frames_from_ms

_MOST = 64
"""Characters of the name of a session."""


def storage(library: Database, options: JournalOptions, *, resume_s: float = 0.0) -> SessionStorage:
    """Return where live sessions are stored: in a library, with their audio if that is kept."""
    form = options.keep_audio
    if form == "off":
        return SessionStorage(library, None, resume_s, disk=library.folder)
    sounds, recorder = library.folder / SOUNDS, partial(SoundWriter, form)
    return SessionStorage(library, sounds, resume_s, disk=library.folder, recorder=recorder)


class Addition:
    """A recording: `hear` its audio, publish its finals on the `hub`, then `end` it.

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
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(file).stem)[-_MOST:].strip("-")
        self._library, self._journal = library, library.begin(name or "recording", epoch=epoch)
        self.hub = Hub(name or "recording", history, journal=self._journal)
        self._recording = storage(library, options).record(self.hub.session)
        if self._recording is not None:
            self._journal.attach(self._recording.file, 0, 0)

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
