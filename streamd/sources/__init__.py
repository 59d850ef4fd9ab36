"""Where audio comes from: a `microphone`, a `file`, `stdin`.

A source delivers whole frames in order, every sample once, and says so when it could not (`Lost`).
It knows nothing of who listens. Audio from the network comes through the server instead.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from streamd.events import GapReason
from streamd.types import Frames


@dataclass(frozen=True, slots=True)
class Lost:
    """`duration_ms` of audio that never reached us, just before the frames that follow."""

    duration_ms: int
    why: GapReason


class Source(Protocol):
    """A stream of audio: enter it, iterate over it once, leave it.

    Iterating gives (n, 320) frames, n >= 1, and `Lost` where audio is missing. It may be cancelled
    and taken up again without losing anything. When audio ends in a failure, what was captured
    comes first, then iterating raises `SourceError`.

    `name` is for people. `live` audio arrives whether or not anybody is ready, so never hold back
    from reading it; any other source is read only as fast as it is consumed, so wait when there is
    more than the engine can take. `duration_ms` is None where it is unknown.
    """

    name: str
    live: bool
    duration_ms: int | None

    @property
    def n_padding(self) -> int:
        """Samples at the end of the last frame that are padding, known once iterating has ended."""
        ...

    async def __aenter__(self) -> Self:
        """Open it; what is live is captured from here on. Raises `SourceError` if it cannot be."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close it, dropping what was not consumed."""
        ...

    def __aiter__(self) -> AsyncIterator[Frames | Lost]:
        """Frames to come; ends after `stop`, or when there is no more audio."""
        ...

    def stop(self) -> None:
        """End the audio now. Keep iterating: all that was captured so far still comes."""
        ...
