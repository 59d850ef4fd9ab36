"""Captions for a screen that shows one at a time: the lines of cues, and how long each lasts."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from streamd.events import Event, Final, SpeakerName
from streamd.labels import renamed
from streamd.options import CueLayout
from streamd.sinks.cues import Cue, Cues, joined
from streamd.sinks.text import label_of


class ShownCues:
    """Makes cues of finals, each as soon as the final is there.

    `names` are those of speakers, until an event says otherwise.
    """

    def __init__(self, layout: CueLayout, names: Mapping[int, str]) -> None:
        self._names = names
        self._cues = Cues(layout, self._label)

    def of(self, event: Event) -> list[Cue]:
        """Return the cues of a final, of which none waits for the next one; of others, none."""
        if isinstance(event, SpeakerName):
            self._names = renamed(self._names, event)
        if not isinstance(event, Final) or not event.text:
            return []
        return [*self._cues.of(event), *self._cues.release(event.end_ms)]

    def lines(self, cue: Cue) -> list[str]:
        """Return the lines of a cue, with the name of a speaker who answers another one."""
        label = self._label(cue.speaker) if cue.is_answer else ""
        first, *others = map(joined, cue.lines)
        return [label + first, *others]

    def paced(self, event: Event) -> Iterator[tuple[list[str], int]]:
        """Yield the lines of each cue, and after how many ms the next one follows."""
        cues = self.of(event)
        lasts = [later.start_ms - cue.start_ms for cue, later in pairwise(cues)]
        yield from zip(map(self.lines, cues), [*lasts, 0], strict=False)

    def _label(self, speaker: int | None) -> str:
        return label_of(speaker, self._names)
