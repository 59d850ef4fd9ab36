"""Markers for DaVinci Resolve: edl, an edit decision list as CMX 3600 with Resolve's comments.

Resolve reads it by *Timelines > Import > Timeline Markers from EDL*.
"""

from streamd.events import Final
from streamd.sinks import Format
from streamd.sinks.text import clean, label_of

_FRAME_RATE = 24
"""Timecodes count frames, and a list does not say how many a second has. Each number below 24 is a
frame at any rate; at 30 a marker is up to 0.2 s early."""
_BEGINS_S = 3600
"""Where Resolve's timelines begin."""


class Markers(Format):
    """A marker for each final, as long as that, whose name is who speaks and what.

    Gaps are left out. A vertical bar is what separates the fields, so it becomes a slash. Resolve
    has a field for notes, too, which is not used: it begins a line, where other programs take a
    number for that of an event.
    """

    header = "TITLE: Transcript\nFCM: NON-DROP FRAME\n\n"
    _n_markers = 0

    def _final(self, final: Final) -> str:
        self._n_markers += 1
        first = _frames(final.start_ms)
        length = max(1, _frames(final.end_ms) - first)
        times = f"{_timecode(first)} {_timecode(first + 1)}"
        shown = label_of(final.speaker, self.names) + clean(final.text)
        return (
            f"{self._n_markers:03}  001      V     C        {times} {times}\n"
            f" |C:ResolveColorBlue |M:{shown.replace('|', '/')} |D:{length}\n\n"
        )


def _frames(t_ms: int) -> int:
    return t_ms * _FRAME_RATE // 1000


def _timecode(frames: int) -> str:
    seconds, frame = divmod(frames, _FRAME_RATE)
    minutes, second = divmod(seconds + _BEGINS_S, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}:{frame:02}"
