"""What the server needs from the daemon: sessions to hear and sessions to speak into."""

from collections.abc import Sequence
from typing import Protocol

from streamd.hub import Hub
from streamd.types import Frames


class Ingest(Protocol):
    """One session that is fed through the network. All calls come from the event loop's thread."""

    hub: Hub

    @property
    def began_ms(self) -> int:
        """Time of the session at which the client's audio begins: 0, unless it goes on."""
        ...

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames, at most `MAX_FEED_FRAMES`; called after `room` only."""
        ...

    async def room(self) -> None:
        """Return once the backlog is under its limit; until then the client is not read."""
        ...

    async def flush(self) -> None:
        """Make everything that was fed final, publish it, and go on with the session."""
        ...

    def gap(self, duration_ms: int, why: str) -> None:
        """Take note of audio that the client lost."""
        ...

    def settle(self) -> int:
        """Note and give the time (ms) before which no audio is needed, not even after a crash."""
        ...

    async def finish(self, reason: str) -> None:
        """Make everything that was fed final, publish it, then ``hub.close(reason)``.

        Called exactly once, also when the client vanished ("disconnect"); nothing is fed after it.
        `reason` is "stop", "disconnect", "error", "limit" or "shutdown".
        """
        ...


class Streams(Protocol):
    """All sessions of the daemon."""

    def hub(self, session: str) -> Hub | None:
        """The hub of a session that can be heard, or None."""
        ...

    def names(self) -> Sequence[str]:
        """The sessions that can be heard now, oldest first."""
        ...

    def unready(self) -> Sequence[str]:
        """Why another client had better go elsewhere; nothing if it is welcome."""
        ...

    @property
    def lag_ms(self) -> int:
        """How far the engine is behind in the session that waits longest."""
        ...

    def open(self, session: str, *, epoch: str | None = None) -> Ingest:
        """Begin a session that a client will feed, or go on with one that another process left.

        `epoch`: the run of the session that the client fed until then. If it is gone on with, the
        client sends again what was not settled.

        Raises
        ------
        WireError : `session_busy` when somebody feeds it already, `too_many_streams`
        """
        ...


MAX_FEED_FRAMES = 50
"""A second: large enough to be cheap, small enough that `Ingest.room` bounds the backlog."""
