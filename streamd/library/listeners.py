"""What edits in the library mean for sessions that go on, and for later ones."""

import asyncio
from collections.abc import Sequence

from streamd.events import Note
from streamd.server import Recordings
from streamd.streams import Streams
from streamd.streams.hub import Hub
from streamd.streams.journal.tables import Run


class Listeners:
    """Those who listen to sessions of a library. Any thread may call it, once it is made."""

    def __init__(self, streams: Streams, recordings: Recordings | None = None) -> None:
        self._streams, self._loop = streams, asyncio.get_running_loop()
        self._recordings = recordings

    def is_live(self, run: Run) -> bool:
        """Whether a client can listen to a session by its name."""
        hub = self._hub(run)
        return hub is not None and not hub.closed

    def is_transcribed(self, run: Run) -> bool:
        """Whether it is a recording that is being transcribed."""
        return self._recordings is not None and self._recordings.is_writing(run.epoch)

    def tell(self, run: Run, notes: Sequence[Note]) -> None:
        """Tell those who listen to a session of its new notes."""
        self._loop.call_soon_threadsafe(self._relay, run, notes)

    def learn(self, phrase: str) -> None:
        """Expect it in later sessions, if there is a list of phrases.

        Raises `ConfigError` or `ValueError` if it cannot be.
        """
        if self._streams.learn is not None:
            self._streams.learn(phrase)

    def _relay(self, run: Run, notes: Sequence[Note]) -> None:
        if (hub := self._hub(run)) is not None:
            for note in notes:
                hub.relay(note)

    def _hub(self, run: Run) -> Hub | None:
        # Any other session is read from the library when somebody listens to it, with its notes.
        hub = self._streams.in_memory(run.session)
        return hub if hub is not None and hub.epoch == run.epoch else None
