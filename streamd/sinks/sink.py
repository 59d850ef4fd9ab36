"""What every sink does, and every format of a file."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Protocol

from streamd.events import Event, Final, Gap, Item, Sound, SpeakerName
from streamd.labels import Names, by_speaker, renamed


class Format(Protocol):
    """Turns the events of one stream, in order, into the text of one file that begins `header`."""

    header: str = ""
    names: Names = MappingProxyType({})
    repeats: bool = False
    """Whether a stream of this format tells of a sound again when it is over."""
    at_end: bool = False
    """Whether nothing can be written before all was said: then `whole` makes the file."""

    def end(self, *, complete: bool) -> str:
        """Return the end of the file; while more events may come, each event replaces it."""
        return ""

    def whole(self, said: Sequence[Item]) -> bytes:
        """Return a file of all that was said."""
        text = self.header + "".join(map(self.append, said)) + self.end(complete=True)
        return text.encode(errors="replace")

    def rest(self, final: Final) -> str:
        """Return what `append` has kept back of a final, if it cannot be added later."""
        return ""

    def append(self, event: Event) -> str:
        """Return the text that `event` adds; empty if there is none.

        A `SpeakerName` counts for what follows.
        """
        if isinstance(event, SpeakerName):
            self.names = renamed(self.names, event)
        if isinstance(event, Gap):
            return self._gap(event)
        if isinstance(event, Sound):
            return self._sound(event)
        if not isinstance(event, Final) or not event.text:
            return ""
        return "".join(self._final(part) for part in self._parts(event))

    def _parts(self, final: Final) -> Sequence[Final]:
        """Return what is written as a final each: the parts of a final that one speaker says."""
        return by_speaker(final)

    def _final(self, final: Final) -> str:
        return ""

    def _gap(self, gap: Gap) -> str:
        return ""

    def _sound(self, sound: Sound) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class About:
    """What a document says besides what was said: its title, when it began, names by number."""

    title: str = "Transcript"
    started: datetime | None = None
    names: Names = field(default_factory=dict)
    line_numbers: bool = False


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

    def meter(self, peak: float) -> None:
        """Show the level of the microphone, 0 to 1, while there are no captions."""
        return

    def status(self, line: Callable[[int], str] | None) -> None:
        """Show a line below the captions, made for the columns of the terminal; None removes it."""
        return

    def above(self) -> AbstractContextManager[None]:
        """Let other output, such as a log line, appear above the captions."""
        return nullcontext()
