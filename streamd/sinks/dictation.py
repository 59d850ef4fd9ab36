"""Types what is said into the window that has the keyboard's focus.

The text reaches the program that types by its standard input, so that no list of processes shows
it.
"""

import logging
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from streamd.errors import ConfigError, StreamdError
from streamd.events import Event, Final
from streamd.sinks.text import blank_between, clean

log = logging.getLogger(__name__)

_TYPISTS = {
    # Without the modifiers of the hot key that may be held down.
    "xdotool": ("type", "--clearmodifiers", "--file", "-"),
    "wtype": ("-",),
    "ydotool": ("type", "--file", "-"),
    "osascript": ("-",),
}
"""The programs that type, and their arguments. macOS's own has not been tried."""
_PATIENCE_S = 30.0
"""How long a program may take for the text of a final."""


def typists(platform: str, environ: Mapping[str, str]) -> list[str]:
    """Return the installed programs that type in this session, the best one first.

    Raises `ConfigError` if there is none.
    """
    session, wanted = "", []
    if platform == "darwin":
        wanted = ["osascript"]
    elif environ.get("WAYLAND_DISPLAY"):
        session, wanted = "Wayland", ["wtype", "ydotool"]
    elif environ.get("DISPLAY"):
        session, wanted = "X11", ["xdotool", "ydotool"]
    else:
        raise ConfigError(
            "dictate types into a window, and there is no display: neither WAYLAND_DISPLAY nor "
            "DISPLAY is set; run it in a desktop session"
        )
    if found := [name for name in wanted if shutil.which(name, path=environ.get("PATH"))]:
        return found
    names = " or ".join(wanted)
    raise ConfigError(f"no program here can type into a {session} window: install {names}")


class TypingSink:
    """Types finals, with a blank between them, until somebody says the stop phrase.

    `programs` are those of `typists`: one that fails is replaced by the next. `stop` is called when
    the phrase was said; nothing is typed once `is_stopped`, since an interrupt is typed in another
    window than the text.
    """

    def __init__(
        self,
        programs: Sequence[str],
        phrase: str,
        *,
        stop: Callable[[], object],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._programs, self._phrase = list(programs), _ending(phrase)
        self._stop, self._is_stopped = stop, is_stopped
        self._before = ""  # what was typed last

    def write(self, event: Event) -> None:
        """Type the text of a final. Raises `StreamdError` if no program can."""
        if not isinstance(event, Final) or self._is_stopped():
            return
        text = clean(event.text)
        said = self._phrase.search(text) if self._phrase else None
        if said:
            text = text[: said.start()].rstrip()
        if text:
            self._type(blank_between(self._before, text) + text)
            self._before = text
        if said:
            log.info("stopped, as was said")
            self._stop()

    def close(self) -> None:
        """Do nothing."""

    def _type(self, text: str) -> None:
        while True:
            name, *others = self._programs
            problem = _run(name, text)
            if not problem:
                return
            if not others:
                raise StreamdError(f"{name} cannot type here: {problem}")
            log.warning("%s cannot type here: %s; trying %s", name, problem, others[0])
            self._programs = others


def _run(name: str, text: str) -> str:
    """Have a program type the text; return what is wrong, in a line, or nothing."""
    given = _apple_script(text) if name == "osascript" else text
    try:
        done = subprocess.run(
            [name, *_TYPISTS[name]],
            input=given.encode(),
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except OSError as error:
        return str(error.strerror)
    except subprocess.TimeoutExpired:
        return f"it did not end within {_PATIENCE_S:.0f} s"
    said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
    return (said or f"exit code {done.returncode}") if done.returncode else ""


def _apple_script(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'tell application "System Events" to keystroke "{quoted}"'


def _ending(phrase: str) -> re.Pattern[str] | None:
    """Return what finds the words of a phrase at the end of a text, however they are written."""
    words = re.findall(r"\w+", phrase)
    said = r"\W+".join(map(re.escape, words))
    return re.compile(rf"(?<!\w){said}\W*\Z", re.IGNORECASE) if words else None
