"""Subtitle formats: srt, vtt, lrc."""

import re

from streamd.events import Event, Gap
from streamd.sinks.cues import Cue, CueLayout, Cues, Piece, joined
from streamd.sinks.look import RAINBOW, gap_notice, rank

JOINER = "\u2060"
"""An invisible character that breaks a tag in formats without escapes."""
_TAG = re.compile(r"<(?=[a-z/!?]|$)", re.I)
_ROUND = str.maketrans("{}", "()")
_ARROW = re.compile("--+>")
_LRC_TIME = re.compile(r"[\[<](?=\s*\d)")


class Srt:
    """SubRip. It has no comments, so gaps are left out.

    It has no escapes either: a word joiner breaks text that a player would take for a tag, an arrow
    is shortened, as in openai-whisper, and braces become parentheses, since players hide or obey
    what is inside.
    """

    header = tail = end = ""

    def __init__(self, layout: CueLayout) -> None:
        self._n_cues = 0
        self._layout = layout
        self._cues = Cues(layout)

    def append(self, event: Event) -> str:
        """Return the event's cues, numbered from 1."""
        return "".join(map(self._cue, self._cues.of(event)))

    def _cue(self, cue: Cue) -> str:
        text = ""
        for start_ms, end_ms, spoken in _parts(cue, self._layout):
            self._n_cues += 1

            def draw(piece: Piece, spoken: Piece | None = spoken) -> str:
                plain = _TAG.sub(rf"\g<0>{JOINER}", piece.text.translate(_ROUND))
                return f"<u>{plain}</u>" if piece is spoken else plain

            lines = (_ARROW.sub("->", joined(line, draw)) for line in cue.lines)
            times = f"{timestamp(start_ms)} --> {timestamp(end_ms)}"
            text += "\n".join((str(self._n_cues), times, *lines)) + "\n\n"
        return text


class Vtt:
    """WebVTT (https://www.w3.org/TR/webvtt1/). Gaps are notes, which players do not show.

    Doubtful words have the classes ``p0`` (nearly impossible) to ``p5``; sure words have none.
    """

    tail = end = ""

    def __init__(self, layout: CueLayout) -> None:
        self._layout = layout
        self._cues = Cues(layout)
        rules = (f"::cue(.p{i}) {{ color: rgb{color} }}\n" for i, color in enumerate(RAINBOW[:-1]))
        style = f"STYLE\n{''.join(rules)}\n" if layout.confidence else ""
        self.header = f"WEBVTT\n\n{style}"

    def append(self, event: Event) -> str:
        """Return the event's cues."""
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
            text += "\n".join((times, *(joined(line, draw) for line in cue.lines))) + "\n\n"
        return text


class Lrc:
    """Lyrics, one line for each cue. The format has no comments, so gaps are left out.

    A bracket that a player would take for a time becomes a parenthesis.
    """

    header = "[re:streamd]\n"
    tail = end = ""

    def __init__(self, layout: CueLayout) -> None:
        self._cues = Cues(layout)

    def append(self, event: Event) -> str:
        """Return the event's lines."""
        text = ""
        for cue in self._cues.of(event):
            minutes, ms = divmod(cue.start_ms, 60_000)
            line = _LRC_TIME.sub("(", joined(cue.pieces))
            text += f"[{minutes:02}:{ms // 1000:02}.{ms % 1000 // 10:02}]{line}\n"
        return text


def _parts(cue: Cue, layout: CueLayout) -> list[tuple[int, int, Piece | None]]:
    whole = (cue.start_ms, cue.end_ms, None)
    return list(cue.moments()) if layout.highlight else [whole]


def timestamp(t_ms: int, point: str = ",") -> str:
    """Return a time as ``hh:mm:ss,ttt``."""
    seconds, ms = divmod(t_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def _vtt_escaped(text: str) -> str:
    # Escaping ">" also removes "-->", which a cue may not contain.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
