"""A karaoke video (mp4) of a sound file: its sound, and its words, which light up when spoken.

The words become Advanced SubStation subtitles (https://aegisub.org/docs/latest/ass_tags/), which
ffmpeg draws with libass.
"""

import logging
import os
import re
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from string import Template

from streamd.errors import ConfigError, StreamdError, os_error_as
from streamd.events import EndReason, Eos, Event
from streamd.options import CueLayout
from streamd.sinks.cues import Cue, Cues, Piece, joined
from streamd.sinks.text import JOINER, cells, clean

WIDTH, HEIGHT = 1280, 720
"""Size of the picture in pixels."""
_MARGIN = 60
_ROOM = WIDTH - 2 * _MARGIN
_MAX_FONT, _MIN_FONT = 60, 24
"""Font sizes as libass counts them: pixels from the deepest to the highest point."""
_EM = 0.86
"""One em by the font size, in DejaVu Sans."""
_NARROW_EM, _USUAL_EM, _CAPITAL_EM, _WIDE_EM = 0.42, 0.7, 0.83, 1.1
"""Widths of bold characters in em, rather too large."""
_MEAN_EM = 0.63
"""Mean width of a character of English text."""
_MAX_LINE_CELLS = 60
"""Longer lines would be too small to read."""

_GROUND = f"color=c=0x10141c:s={WIDTH}x{HEIGHT}:r=25"
_ENCODED = ("-vf", "ass=karaoke.ass", "-c:v", "libx264", "-pix_fmt", "yuv420p")
_ONE_PICTURE = ("-f", "lavfi", "-i", _GROUND, *_ENCODED, "-frames:v", "1", "-f", "null", "-")
_MAX_SHOWN = 20
_NO_GLYPH = re.compile(r"failed to find any fallback with glyph 0x([0-9A-F]+)", re.I)

_log = logging.getLogger(__name__)


class Video:
    """A sink that makes a video of the file `sound` after the last word.

    An existing file stays until then. Raises `ConfigError` without a sound file or a suitable
    ffmpeg, or if the video cannot be written.
    """

    def __init__(self, path: Path, layout: CueLayout, *, sound: str) -> None:
        if not sound or Path(sound).is_fifo():
            raise ConfigError(
                f"{path}: a video needs one sound file, not a microphone, a pipe or an address"
            )
        if path.is_dir():
            raise ConfigError(f"{path}: cannot be written: Is a directory")
        ffmpeg = shutil.which("ffmpeg")
        if ffmpeg is None:
            fix = "install it, for example with apt-get install ffmpeg"
            raise ConfigError(f"{path}: making a video needs ffmpeg: {fix}")
        self._ffmpeg = ffmpeg
        self._path, self._sound = path, Path(sound).absolute()
        self._part = path.absolute().with_name(f".{path.name}.part")
        self._layout = fitting(layout)
        self._cues = Cues(self._layout)
        self._shown: list[Cue] = []
        done = self._run(_ONE_PICTURE, "")
        if done.returncode:
            raise ConfigError(f"{path}: this ffmpeg cannot make videos: {_complaint(done.stderr)}")
        with os_error_as(ConfigError, f"{path}: cannot be written"):
            self._part.touch()

    def write(self, event: Event) -> None:
        """Collect finals, and make the video at the end; raises `StreamdError` if ffmpeg cannot."""
        self._shown += self._cues.of(event)
        if isinstance(event, Eos):
            whole = event.reason == EndReason.END
            if whole or (event.reason == EndReason.STOP and self._shown):
                self._make(whole=whole)

    def close(self) -> None:
        """Remove the unfinished file."""
        with suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _make(self, *, whole: bool) -> None:
        # Of all the sound if `whole`, or else up to the last word.
        _log.info("%s: ffmpeg is making the video", self._path)
        self._warn_of_missing_letters()
        end = () if whole else ("-t", f"{self._shown[-1].end_ms / 1000:.3f}")
        command = (
            *("-i", f"file:{self._sound}", "-f", "lavfi", "-i", _GROUND),
            *("-map", "1:v", "-map", "0:a:0", *_ENCODED, "-preset", "veryfast"),
            *("-c:a", "aac", "-shortest", *end, "-movflags", "+faststart"),
            *("-f", "mp4", "-y", f"file:{self._part}"),
        )
        done = self._run(command, "".join(dialogue(cue, self._layout) for cue in self._shown))
        if done.returncode:
            why = _complaint(done.stderr)
            raise StreamdError(f"{self._path}: ffmpeg cannot make the video: {why}")
        with os_error_as(StreamdError, f"{self._path}: cannot be written"):
            os.replace(self._part, self._path)

    def _warn_of_missing_letters(self) -> None:
        # Drawn once, in a picture of their own: in the video libass would complain in each picture.
        letters = sorted({letter for cue in self._shown for letter in joined(cue.pieces)})
        line = _dialogue_line(0, 1000, f"{{\\fs8}}{_escaped(''.join(letters))}")
        done = self._run(_ONE_PICTURE, line, level="warning")
        missing = dict.fromkeys(chr(int(code, 16)) for code in _NO_GLYPH.findall(done.stderr))
        if missing:
            shown = clean("".join(missing)[:_MAX_SHOWN])
            fix = "install one, such as fonts-noto-cjk"
            _log.warning("%s: no font has %s: %s", self._path, shown, fix)

    def _run(
        self, command: Sequence[str], dialogues: str, *, level: str = "error"
    ) -> subprocess.CompletedProcess[str]:
        # In a folder of its own: a path inside a filter would have to be escaped three times.
        with tempfile.TemporaryDirectory(prefix="streamd-") as folder:
            text = script(dialogues, self._layout)
            Path(folder, "karaoke.ass").write_text(text, encoding="utf-8")
            return subprocess.run(
                [self._ffmpeg, "-hide_banner", "-nostdin", "-loglevel", level, *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                check=False,
            )


def script(dialogues: str, layout: CueLayout) -> str:
    """Return the whole subtitle file.

    The font is the system's default. The style's last number lets a line begin where its language
    does, right or left.
    """
    template = Path(__file__).with_name("karaoke.ass").read_text(encoding="utf-8")
    return Template(template).substitute(
        width=WIDTH,
        height=HEIGHT,
        margin=_MARGIN,
        font_size=_font_size(layout),
        dialogues=dialogues,
    )


def fitting(layout: CueLayout) -> CueLayout:
    """Return the layout with lines that fit into the picture, without its marks."""
    n_cells = min(layout.line_cells, _MAX_LINE_CELLS)
    return replace(layout, line_cells=n_cells, highlight=False, confidence=False)


def dialogue(cue: Cue, layout: CueLayout) -> str:
    """Return the cue as one line of the file; `layout` comes from `fitting`."""
    clock_cs = cue.start_ms // 10

    def draw(piece: Piece) -> str:
        nonlocal clock_cs
        begins_cs = max(min(piece.start_ms, cue.end_ms) // 10, clock_cs)
        ends_cs = max(min(piece.end_ms, cue.end_ms) // 10, begins_cs)
        waits = f"{{\\k{begins_cs - clock_cs}}}" if begins_cs > clock_cs else ""
        # \kf fills from the left: right-to-left text changes colour at once instead.
        is_rightward = any(unicodedata.bidirectional(char) in ("R", "AL") for char in piece.text)
        fills = "k" if is_rightward else "kf"
        clock_cs = ends_cs
        return f"{waits}{{\\{fills}{ends_cs - begins_cs}}}{_escaped(piece.text)}"

    widest = max(sum(map(_em, joined(line))) for line in cue.lines) * _EM
    size = f"{{\\fs{_ROOM / widest:.1f}}}" if widest * _font_size(layout) > _ROOM else ""
    text = "\\N".join(joined(line, draw) for line in cue.lines)
    return _dialogue_line(cue.start_ms, cue.end_ms, size + text)


def _dialogue_line(start_ms: int, end_ms: int, text: str) -> str:
    return f"Dialogue: 0,{_ass_time(start_ms)},{_ass_time(end_ms)},Default,,0,0,0,,{text}\n"


def _font_size(layout: CueLayout) -> int:
    """Return the size in which a full line of usual text fills the picture's width."""
    return max(_MIN_FONT, min(_MAX_FONT, int(_ROOM / (layout.line_cells * _MEAN_EM * _EM))))


def _em(char: str) -> float:
    if char in " ijlftr.,;:'!|()[]":
        return _NARROW_EM
    if char in "mwMW@%…—" or cells(char) > 1:
        return _WIDE_EM
    if unicodedata.combining(char):
        return 0.0
    return _CAPITAL_EM if char.isupper() else _USUAL_EM


def _escaped(text: str) -> str:
    # A backslash has no escape, but before an invisible character it means nothing.
    text = text.replace("\\", f"\\{JOINER}")
    return re.sub(r"[{}]", r"\\\g<0>", text)


def _ass_time(t_ms: int) -> str:
    minutes, ms = divmod(t_ms, 60_000)
    return f"{minutes // 60}:{minutes % 60:02}:{ms // 1000:02}.{ms % 1000 // 10:02}"


def _complaint(stderr: str) -> str:
    # The first message of ffmpeg, without the name of the part that it comes from.
    lines = [re.sub(r"^(\[[^]]*\] )+", "", line).strip() for line in stderr.splitlines()]
    return clean(next(filter(None, lines), "no reason given"))
