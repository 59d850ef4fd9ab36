"""Subtitles as text: srt, vtt, lrc. Pure; `files` writes them."""

import re

from streamd.events import Event, Gap
from streamd.sinks.cues import Cue, Cues, Layout, Piece, written
from streamd.sinks.look import RAINBOW, gap_notice, rank

JOINER = "\u2060"
"""An invisible character that takes the meaning from a tag, where a format has no escapes."""
_TAG = re.compile(r"<(?=[a-z/!?]|$)", re.I)
_ROUND = str.maketrans("{}", "()")
_ARROW = re.compile("--+>")
_LRC_TIME = re.compile(r"[\[<](?=\s*\d)")


class Srt:
    """SubRip. It has no comments, so gaps are not in it.

    Nor has it escapes: what a player would take for a tag is broken by a word joiner, an arrow is
    shortened, as openai-whisper does, and braces become round, since players hide or obey what
    stands in them.
    """

    header = tail = end = ""

    def __init__(self, layout: Layout) -> None:
        self._n_cues = 0
        self._layout = layout
        self._cues = Cues(layout)

    def append(self, event: Event) -> str:
        """The event's cues, numbered from 1."""
        return "".join(map(self._cue, self._cues.of(event)))

    def _cue(self, cue: Cue) -> str:
        text = ""
        for start_ms, end_ms, spoken in _parts(cue, self._layout):
            self._n_cues += 1

            def draw(piece: Piece, spoken: Piece | None = spoken) -> str:
                plain = _TAG.sub(rf"\g<0>{JOINER}", piece.text.translate(_ROUND))
                return f"<u>{plain}</u>" if piece is spoken else plain

            lines = (_ARROW.sub("->", written(line, draw)) for line in cue.lines)
            times = f"{timestamp(start_ms)} --> {timestamp(end_ms)}"
            text += "\n".join((str(self._n_cues), times, *lines)) + "\n\n"
        return text


class Vtt:
    """WebVTT (https://www.w3.org/TR/webvtt1/). Gaps are notes, which players do not show.

    Doubtful words are of the classes ``p0`` (nearly impossible) to ``p5``; what has none is sure.
    """

    tail = end = ""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._cues = Cues(layout)
        rules = (f"::cue(.p{i}) {{ color: rgb{color} }}\n" for i, color in enumerate(RAINBOW[:-1]))
        style = f"STYLE\n{''.join(rules)}\n" if layout.confidence else ""
        self.header = f"WEBVTT\n\n{style}"

    def append(self, event: Event) -> str:
        """The event's cues."""
        if isinstance(event, Gap):
            notice = _vtt_escaped(gap_notice(event.duration_ms, event.why))
            return f"NOTE {timestamp(event.t_ms, '.')} {notice}\n\n"
        return "".join(map(self._cue, self._cues.of(event)))

    def _cue(self, cue: Cue) -> str:
        text = ""
        for start_ms, end_ms, spoken in _parts(cue, self._layout):

            def draw(piece: Piece, spoken: Piece | None = spoken) -> str:
                shown = _vtt_escaped(piece.text)
                if self._layout.confidence and piece.prob is not None:
                    i = rank(piece.prob)
                    shown = f"<c.p{i}>{shown}</c>" if i < len(RAINBOW) - 1 else shown
                return f"<u>{shown}</u>" if piece is spoken else shown

            times = f"{timestamp(start_ms, '.')} --> {timestamp(end_ms, '.')}"
            text += "\n".join((times, *(written(line, draw) for line in cue.lines))) + "\n\n"
        return text


class Lrc:
    """Lyrics, a line for each cue. No comments, so gaps are not in it.

    A bracket that a player would take for a time becomes a round one.
    """

    header = "[re:streamd]\n"
    tail = end = ""

    def __init__(self, layout: Layout) -> None:
        self._cues = Cues(layout)

    def append(self, event: Event) -> str:
        """The event's lines."""
        text = ""
        for cue in self._cues.of(event):
            minutes, ms = divmod(cue.start_ms, 60_000)
            line = _LRC_TIME.sub("(", written(cue.pieces))
            text += f"[{minutes:02}:{ms // 1000:02}.{ms % 1000 // 10:02}]{line}\n"
        return text


def _parts(cue: Cue, layout: Layout) -> list[tuple[int, int, Piece | None]]:
    whole = (cue.start_ms, cue.end_ms, None)
    return list(cue.moments()) if layout.highlight else [whole]


def timestamp(t_ms: int, point: str = ",") -> str:
    """Time as ``hh:mm:ss,ttt``."""
    seconds, ms = divmod(t_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def _vtt_escaped(text: str) -> str:
    # Escaping ">" as well takes care of "-->", which may stand nowhere in a cue.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
