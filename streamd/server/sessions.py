"""What the server needs from the daemon: sessions to listen to and sessions to feed."""

from collections.abc import Sequence
from typing import Protocol

from streamd.events import EndReason, GapReason
from streamd.hub import Hub
from streamd.types import Frames

MAX_FEED_FRAMES = 50
"""One second: large enough to be cheap, small enough for `room` to bound the backlog."""


class IngestSession(Protocol):
    """One session that a client feeds. All calls come from the event loop's thread."""

    hub: Hub

    @property
    def began_ms(self) -> int:
        """Session time at which the client's audio begins: 0 unless an earlier run is resumed."""

    def feed(self, frames: Frames) -> None:
        """Take the next (n, 320) frames, at most `MAX_FEED_FRAMES`; await `room` first."""

    async def room(self) -> None:
        """Return once the backlog is below its limit; until then the client is not read."""

    async def flush(self) -> None:
        """Publish everything fed so far as finals; the session continues."""

    def gap(self, duration_ms: int, why: GapReason) -> None:
        """Record that the client lost audio."""

    def settle(self) -> int:
        """Store and return the time (ms) before which no audio is needed, even after a crash."""

    async def finish(self, reason: EndReason) -> None:
        """Publish everything fed so far as finals, then call ``hub.close(reason)``.

        The server calls it exactly once, also when the client vanished, and feeds nothing after
        it.
        """


class Sessions(Protocol):
    """All sessions of the daemon."""

    def hub(self, session: str) -> Hub | None:
        """Return the hub of a session to listen to, or None if there is no such session."""

    def names(self) -> Sequence[str]:
        """Return the names of the sessions that have a hub, oldest first."""

    def unready(self) -> Sequence[str]:
        """Return the reasons why new clients should use another server; empty if there is none."""

    @property
    def lag_ms(self) -> int:
        """How far the engine is behind in the session that has waited longest."""

    def open(self, session: str, *, epoch: str | None = None) -> IngestSession:
        """Begin a session that a client feeds, or resume one that another process left.

        `epoch` is the run of the session that the client fed before. If that run is resumed, the
        client sends again what was not settled.

        Raises `WireError` with `session_busy` if another client feeds it, or `too_many_streams`.
        """
