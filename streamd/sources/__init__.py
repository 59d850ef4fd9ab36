"""Audio sources: a `microphone`, a `file` or address, `stdin`.

A source delivers whole frames in order, every sample once, and reports audio that it lost (`Lost`).
Audio from the network comes through the server instead.
"""

from typing import Protocol, Self

from streamd.sources.frames import FrameStream, Lost

__all__ = ["Lost", "Source"]


class Source(Protocol):
    """A stream of audio: enter it, iterate over it once, leave it.

    Iterating yields (n, 320) frames, n >= 1, and `Lost` where audio is missing. It may be cancelled
    and continued without losing anything. When audio ends in a failure, iterating yields what was
    captured before it raises `SourceError`.

    `live` audio arrives whether or not the consumer is ready, so it must always be read at once;
    other sources wait for the consumer. `duration_ms` is None if it is unknown.
    """

    name: str
    live: bool
    duration_ms: int | None

    async def __aenter__(self) -> Self:
        """Open it; a live source captures from here on. Raises `SourceError`."""

    async def __aexit__(self, *_: object) -> None:
        """Close it and drop what was not consumed."""

    def __aiter__(self) -> FrameStream:
        """Iterate over the frames; it ends after `stop`, or at the end of the audio."""

    def stop(self) -> None:
        """End the audio now. Keep iterating: what was captured before still comes."""
