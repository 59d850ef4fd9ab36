"""Subtitle formats: srt, vtt, lrc."""

import re
from collections.abc import Iterator
from functools import partial
from html import escape

from streamd.events import Final, Gap
from streamd.options import CueLayout
from streamd.sinks import Format
from streamd.sinks.cues import Cues, Piece, joined
from streamd.sinks.text import RAINBOW, gap_notice, rank

JOINER = "\u2060"
"""An invisible character that breaks a tag in formats without escapes."""
_TAG = re.compile(r"<(?=[a-z/!?]|$)", re.I)
_ROUND = str.maketrans("{}", "()")
_ARROW = re.compile("--+>")
_LRC_TIME = re.compile(r"[\[<](?=\s*\d)")


class _Timed(Format):
    """What srt and vtt share: blocks of a line of times and the lines of text."""

    def __init__(self, layout: CueLayout) -> None:
        self._layout, self._cues = layout, Cues(layout)

    def _blocks(self, final: Final, point: str) -> Iterator[list[str]]:
        """Yield the lines of each cue, or of each of its moments; `point` is the decimal point."""
        for cue in self._cues.of(final):
            whole = (cue.start_ms, cue.end_ms, None)
            for start_ms, end_ms, spoken in cue.moments() if self._layout.highlight else (whole,):
                times = f"{timestamp(start_ms, point)} --> {timestamp(end_ms, point)}"
                shown = partial(self._shown, spoken=spoken)
                yield [times, *(joined(line, shown) for line in cue.lines)]

    def _shown(self, piece: Piece, spoken: Piece | None) -> str:
        return f"<u>{self._draw(piece)}</u>" if piece is spoken else self._draw(piece)

    def _draw(self, piece: Piece) -> str:
        raise NotImplementedError


class Srt(_Timed):
    """SubRip. It has no comments, so gaps are left out.

    It has no escapes either: a word joiner breaks what a player would take for a tag, an arrow is
    shortened, as in openai-whisper, and braces, whose inside players hide, become parentheses.
    """

    _n_cues = 0

    def _final(self, final: Final) -> str:
        text = ""
        for times, *lines in self._blocks(final, ","):
            self._n_cues += 1
            shown = [_ARROW.sub("->", line) for line in lines]
            text += "\n".join((str(self._n_cues), times, *shown)) + "\n\n"
        return text

    def _draw(self, piece: Piece) -> str:
        return _TAG.sub(rf"\g<0>{JOINER}", piece.text.translate(_ROUND))


class Vtt(_Timed):
    """WebVTT (https://www.w3.org/TR/webvtt1/). Gaps are notes, which players do not show.

    Doubtful words have the classes ``p0`` (nearly impossible) to ``p5``; sure words have none.
    """

    def __init__(self, layout: CueLayout) -> None:
        super().__init__(layout)
        rules = (f"::cue(.p{i}) {{ color: rgb{color} }}\n" for i, color in enumerate(RAINBOW[:-1]))
        style = f"STYLE\n{''.join(rules)}\n" if layout.confidence else ""
        self.header = f"WEBVTT\n\n{style}"

    def _final(self, final: Final) -> str:
        return "".join("\n".join(lines) + "\n\n" for lines in self._blocks(final, "."))

    def _gap(self, gap: Gap) -> str:
        return f"NOTE {timestamp(gap.t_ms, '.')} {escape(gap_notice(gap), quote=False)}\n\n"

    def _draw(self, piece: Piece) -> str:
        shown = escape(piece.text, quote=False)  # of ">", too: a cue may not contain "-->"
        if self._layout.confidence and piece.prob is not None:
            i = rank(piece.prob)
            return f"<c.p{i}>{shown}</c>" if i < len(RAINBOW) - 1 else shown
        return shown


class Lrc(Format):
    """Lyrics, one line for each cue. The format has no comments, so gaps are left out.

    A bracket that a player would take for a time becomes a parenthesis.
    """

    header = "[re:streamd]\n"

    def __init__(self, layout: CueLayout) -> None:
        self._cues = Cues(layout)

    def _final(self, final: Final) -> str:
        text = ""
        for cue in self._cues.of(final):
            minutes, ms = divmod(cue.start_ms, 60_000)
            line = _LRC_TIME.sub("(", joined(cue.pieces))
            text += f"[{minutes:02}:{ms // 1000:02}.{ms % 1000 // 10:02}]{line}\n"
        return text


def timestamp(t_ms: int, point: str = ",") -> str:
    """Return a time as ``hh:mm:ss,ttt``."""
    seconds, ms = divmod(t_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"
