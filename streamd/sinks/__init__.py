"""Outputs of transcript events: the terminal, standard output, files.

A sink receives the events in the order of the stream. What it writes is computed by pure functions;
the classes that hold a stream are thin, write at once and flush. They block as long as their stream
blocks, and none may be called from two threads at a time.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from streamd.events import Event


class Sink(Protocol):
    """Shows or stores events."""

    def write(self, event: Event) -> None:
        """Show or store `event`, or ignore it."""

    def close(self) -> None:
        """Complete the output; nothing is written after this."""


class CaptionSink(Sink, Protocol):
    """A sink on standard output, which may have to share the terminal with log lines."""

    def redraw(self) -> None:
        """Draw the present captions again: call it when the terminal was resized."""
        return

    def above(self) -> AbstractContextManager[None]:
        """Let other output, such as a log line, appear above the captions."""
        return nullcontext()
