"""What the sessions demand of a store of finals.

Of a store that several machines (nodes) share, another one may take a session over at any time.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol

from streamd.errors import StreamdError
from streamd.events import Final, Note, SessionEvent
from streamd.streams.journal.lines import Claimant, Fed
from streamd.types import ResumeState


class JournalError(StreamdError):
    """The journal cannot be read or written; nothing may be published that is not in it."""


Release = Callable[[SessionEvent], None]

Moved = Callable[[JournalError | None], None]
"""Called when another node has taken the session, or with the reason why it cannot be stored."""


class Journal(Protocol):
    """The journal of one run of a session. All calls come from one thread."""

    epoch: str
    started: datetime
    seq: int
    """Number of the last final that is stored; `seg` and `end_ms` are its segment and time."""
    seg: int
    end_ms: int
    fed: Fed
    ended: str
    """The reason why the run is over; empty while it is not."""
    finalised_ms: int
    """Time of the session before which all audio is silence or in finals.

    It is stored with every event. Set it before the final of the audio is stored: then the final
    and the time are stored at once, and a session that is resumed after a crash gets each word
    exactly once. `mark` stores it without an event.
    """
    resume_state: ResumeState | None
    """What another session needs to go on there; set it with `finalised_ms`."""
    moves: bool
    """Whether another node can go on with the run."""

    @property
    def lag_ms(self) -> int:
        """How long the oldest of the events that are not stored yet has waited."""

    @property
    def kept_ms(self) -> int:
        """Time before which no audio is needed, even after a crash: where the stored one begins."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more; finals can still be read."""

    @property
    def first(self) -> int:
        """Number of the oldest final that is kept."""

    def store(self, event: SessionEvent, release: Release) -> None:
        """Store a final, gap or note, then call `release`; others are only released.

        Released is in the order of the calls, at once or when everything before is stored. Raises
        `JournalError` if it cannot be stored; then the journal holds nothing of it.
        """

    def revise(self, final: Final) -> None:
        """Store a final again, whose speakers have changed. Raises as `store` does."""

    def notes(self) -> Iterator[Note]:
        """Give the notes about finals, which may be old; the newest ones last."""

    def attach(self, sound: str, start_ms: int, at_ms: int) -> None:
        """Store which file has the audio from `start_ms` on, and at which of its own times."""

    def feed(self, fed: Fed) -> None:
        """Store who feeds the session now, if that is new. Raises as `store` does."""

    def mark(self) -> None:
        """Store `finalised_ms` and `resume_state` if less audio is needed then.

        Raises as `store` does.
        """

    def end(self, reason: str) -> None:
        """Store that the run is over; the session's name begins another one next time."""

    def close(self) -> None:
        """Write no more; another process may resume the session. Raises as `store` does."""

    def read(self, after: int, upto: int) -> Iterator[Final]:
        """Give the finals with ``after < seq <= upto`` that are still kept."""

    def joined(self, relay: Callable[[Fed | SessionEvent], None], moved: Moved) -> None:
        """Say where events of other nodes go, and what to call when one takes the session."""


class Journals(Protocol):
    """The journals of all sessions; without other nodes, unless the store says otherwise."""

    async def run(self) -> None:
        """Do what storing takes besides, until cancelled. Raises `JournalError` if that fails."""

    def open(self, session: str) -> Journal:
        """Return the journal of a session: resumed if its last run did not end, else a new one.

        Raises `JournalError` if it cannot be written.
        """

    def recall(self, session: str) -> Journal | None:
        """Return the journal of a session's last run, or None; of a run that ended it is closed.

        Raises `JournalError` if it cannot be read.
        """

    def audio_ms(self, session: str, epoch: str) -> int | None:
        """Return the length of a run that has ended; None if it has not, or is unknown."""

    async def written(self) -> None:
        """Return when all is stored that was to be."""
        return

    async def prepare(self, session: str, claimant: Claimant | None, *, have: str) -> str | None:
        """Learn what other nodes have stored; await it before `recall` and `open`.

        `have` is the epoch that the caller knows. A `claimant` takes the session over if it may.
        Returns the epoch of the last run, None if there is none or no other node. Raises
        `JournalError` if nothing can be learnt now.
        """
        return None

    def is_fed_elsewhere(self, session: str) -> bool:
        """Whether another node has the session, so that no client can feed it here."""
        return False

    @property
    def trouble(self) -> str:
        """Why nothing is stored at the moment; empty if it is."""
        return ""
