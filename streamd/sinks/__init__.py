"""Where transcript events end: the terminal, standard output, files.

A sink is fed with events in the order of the stream and knows nothing of who produced them. What a
sink writes is computed by pure functions of this folder; the classes that hold a stream are thin,
write at once and flush. They block as long as their stream blocks, and none may be called from two
threads at a time.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from streamd.events import Event


class Sink(Protocol):
    """Something that events can be written to."""

    def write(self, event: Event) -> None:
        """Show or store `event`; what the sink has no use for, it ignores."""

    def close(self) -> None:
        """Leave everything in order: nothing is written after this."""


class CaptionSink(Sink, Protocol):
    """A sink on standard output, which log lines may share with it."""

    def redraw(self) -> None:
        """Draw again what can be redrawn: call it when the terminal was resized."""

    def above(self) -> AbstractContextManager[None]:
        """Room for other output, such as a log line: what is written inside stays above."""
