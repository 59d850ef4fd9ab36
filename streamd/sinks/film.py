"""A karaoke film of a sound file: its sound, and its words on a dark ground. ffmpeg makes it."""

import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from streamd.errors import ConfigError, StreamdError
from streamd.events import Eos, Event
from streamd.sinks.cues import Cues, Layout, written
from streamd.sinks.karaoke import HEIGHT, WIDTH, dialogue, fitting, sample, script
from streamd.sinks.text import clean

_GROUND = f"color=c=0x10141c:s={WIDTH}x{HEIGHT}:r=25"
_ENCODED = ("-vf", "ass=karaoke.ass", "-c:v", "libx264", "-pix_fmt", "yuv420p")
_ONE_PICTURE = ("-f", "lavfi", "-i", _GROUND, *_ENCODED, "-frames:v", "1", "-f", "null", "-")
_MAX_SHOWN = 20
_NO_GLYPH = re.compile(r"failed to find any fallback with glyph 0x([0-9A-F]+)", re.I)

log = logging.getLogger(__name__)


class Film:
    """A film (mp4), made when the last word is said; a film that is there already stays until then.

    Parameters
    ----------
    path : where to; its folder must exist
    layout : how much text a picture holds
    sound : the sound file that is transcribed; empty if it is something else

    Raises
    ------
    ConfigError
        There is no sound, no ffmpeg, one that lacks what is needed, or no room for the film.
    """

    def __init__(self, path: Path, layout: Layout, *, sound: str) -> None:
        if not sound or Path(sound).is_fifo():
            raise ConfigError(
                f"{path}: a film needs the sound: name one sound file, no microphone or pipe"
            )
        if path.is_dir():
            raise ConfigError(f"{path}: cannot be written: Is a directory")
        ffmpeg = shutil.which("ffmpeg")
        if ffmpeg is None:
            raise ConfigError(
                f"{path}: films are made by ffmpeg, which is not here; "
                "install it, for example: apt-get install ffmpeg"
            )
        self._ffmpeg = ffmpeg
        self._path, self._sound = path, Path(sound).absolute()
        self._part = path.absolute().with_name(f".{path.name}.part")
        self._layout = fitting(layout)
        self._cues = Cues(self._layout)
        self._dialogues: list[str] = []
        self._letters: set[str] = set()
        self._end_ms = 0
        done = self._run(_ONE_PICTURE, "")
        if done.returncode:
            raise ConfigError(f"{path}: this ffmpeg cannot make films: {_complaint(done.stderr)}")
        try:
            self._part.touch()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error

    def write(self, event: Event) -> None:
        """Note what is said; at the end of the session make the film, which takes a while.

        Raises
        ------
        StreamdError
            ffmpeg could not make it.
        """
        for cue in self._cues.of(event):
            self._dialogues.append(dialogue(cue, self._layout))
            self._letters.update(written(cue.pieces))
            self._end_ms = cue.end_ms
        if isinstance(event, Eos):
            whole = event.reason == "end"
            if whole or (event.reason == "stop" and self._dialogues):
                self._make(whole=whole)

    def close(self) -> None:
        """Without the end of the session there is no film."""
        with suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _make(self, *, whole: bool) -> None:
        """`whole`: of all the sound, or else up to the last word."""
        log.info("%s: ffmpeg makes the film", self._path)
        self._tell_of_missing_letters()
        upto = () if whole else ("-t", f"{self._end_ms / 1000:.3f}")
        command = (
            *("-i", f"file:{self._sound}", "-f", "lavfi", "-i", _GROUND),
            *("-map", "1:v", "-map", "0:a:0", *_ENCODED, "-preset", "veryfast"),
            *("-c:a", "aac", "-shortest", *upto, "-movflags", "+faststart"),
            *("-f", "mp4", "-y", f"file:{self._part}"),
        )
        done = self._run(command, "".join(self._dialogues))
        if done.returncode:
            complaint = _complaint(done.stderr)
            raise StreamdError(f"{self._path}: ffmpeg cannot make the film: {complaint}")
        try:
            os.replace(self._part, self._path)
        except OSError as error:
            raise StreamdError(f"{self._path}: cannot be written: {error.strerror}") from error

    def _tell_of_missing_letters(self) -> None:
        """Before the film is made: there libass would complain in each picture anew."""
        letters = "".join(sorted(self._letters))
        done = self._run(_ONE_PICTURE, sample(letters), level="warning")
        missing = dict.fromkeys(chr(int(code, 16)) for code in _NO_GLYPH.findall(done.stderr))
        if missing:
            shown = "".join(missing)[:_MAX_SHOWN]
            log.warning(
                "%s: no font has %s: install one, such as fonts-noto-cjk", self._path, clean(shown)
            )

    def _run(
        self, command: Sequence[str], dialogues: str, *, level: str = "error"
    ) -> subprocess.CompletedProcess[str]:
        # In a folder of its own: a filter's file name would have to be escaped thrice.
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


def _complaint(said: str) -> str:
    """The first thing that ffmpeg said, without what part of it spoke."""
    lines = [re.sub(r"^(\[[^]]*\] )+", "", line).strip() for line in said.splitlines()]
    return clean(next(filter(None, lines), "it does not say why"))
