"""Karaoke as Advanced SubStation subtitles: each word fills with colour while it is spoken.

Pure; `film` has ffmpeg's libass draw it. Format: https://aegisub.org/docs/latest/ass_tags/.
"""

import re
import unicodedata

from streamd.sinks.cues import Cue, Layout, Piece, written
from streamd.sinks.subtitles import JOINER
from streamd.sinks.text import cells

WIDTH, HEIGHT = 1280, 720
"""Pixels of the picture."""
_MARGIN = 60
_MAX_SIZE, _MIN_SIZE = 60, 24
"""Of the font: in libass the height from the deepest to the highest point, in pixels."""
_EM = 0.86
"""Of the font's size, in DejaVu Sans; the next three are shares of it, in bold letters."""
_NARROW_EM, _USUAL_EM, _CAPITAL_EM, _WIDE_EM = 0.42, 0.7, 0.83, 1.1
_MEAN_EM = 0.63
"""Of English text."""
_MAX_LINE_CELLS = 60
"""What is longer would be too small."""


def script(dialogues: str, layout: Layout) -> str:
    """The whole file.

    The font is the system's own, and libass takes characters that it lacks from others. The last
    number of the style lets a line begin where its language does, right or left.
    """
    return f"""\
[Script Info]
ScriptType: v4.00+
PlayResX: {WIDTH}
PlayResY: {HEIGHT}
WrapStyle: 0

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, \
Bold, Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, \
Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Sans,{_size(layout)},&H0048D8FF,&H00B8B8B8,&H00000000,&H00000000,\
-1,0,0,0,100,100,0,0,1,0,0,5,{_MARGIN},{_MARGIN},{_MARGIN},-1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
{dialogues}"""


def fitting(layout: Layout) -> Layout:
    """The layout, with lines that fit into the picture."""
    n_cells = min(layout.line_cells, _MAX_LINE_CELLS)
    return Layout(line_cells=n_cells, max_lines=layout.max_lines, max_words=layout.max_words)


def dialogue(cue: Cue, layout: Layout) -> str:
    """The cue as one line of the script; `layout` has to be a `fitting` one."""
    clock_cs = cue.start_ms // 10

    def draw(piece: Piece) -> str:
        nonlocal clock_cs
        begins_cs = max(min(piece.start_ms, cue.end_ms) // 10, clock_cs)
        ends_cs = max(min(piece.end_ms, cue.end_ms) // 10, begins_cs)
        waits = f"{{\\k{begins_cs - clock_cs}}}" if begins_cs > clock_cs else ""
        # What is written from the right would be filled from the wrong side: it changes at once.
        fills = "k" if _is_rightward(piece.text) else "kf"
        clock_cs = ends_cs
        return f"{waits}{{\\{fills}{ends_cs - begins_cs}}}{_escaped(piece.text)}"

    widest = max(_ems(written(line)) for line in cue.lines) * _EM
    room = WIDTH - 2 * _MARGIN
    size = f"{{\\fs{room / widest:.1f}}}" if widest * _size(layout) > room else ""
    text = "\\N".join(written(line, draw) for line in cue.lines)
    times = f"{_time(cue.start_ms)},{_time(cue.end_ms)}"
    return f"Dialogue: 0,{times},Default,,0,0,0,,{size}{text}\n"


def sample(letters: str) -> str:
    """A line of the script that shows each of these, small, in the first picture."""
    return f"Dialogue: 0,{_time(0)},{_time(1000)},Default,,0,0,0,,{{\\fs8}}{_escaped(letters)}\n"


def _size(layout: Layout) -> int:
    """Of a font in which a line of usual text fills the picture's width."""
    room = WIDTH - 2 * _MARGIN
    return max(_MIN_SIZE, min(_MAX_SIZE, int(room / (layout.line_cells * _MEAN_EM * _EM))))


def _ems(text: str) -> float:
    """The width that a line takes, rather too large."""
    return sum(map(_em, text))


def _em(char: str) -> float:
    if char in " ijlftr.,;:'!|()[]":
        return _NARROW_EM
    if char in "mwMW@%…—" or cells(char) > 1:
        return _WIDE_EM
    if unicodedata.combining(char):
        return 0.0
    return _CAPITAL_EM if char.isupper() else _USUAL_EM


def _is_rightward(text: str) -> bool:
    return any(unicodedata.bidirectional(char) in ("R", "AL") for char in text)


def _escaped(text: str) -> str:
    # A backslash has no escape; before an invisible character it means nothing.
    text = text.replace("\\", f"\\{JOINER}")
    return re.sub(r"[{}]", r"\\\g<0>", text)


def _time(t_ms: int) -> str:
    minutes, ms = divmod(t_ms, 60_000)
    return f"{minutes // 60}:{minutes % 60:02}:{ms // 1000:02}.{ms % 1000 // 10:02}"
