"""Types what is said into the window that has the keyboard's focus.

The text reaches the program that types by its standard input, so that no list of processes shows
it.
"""

import logging
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from tempfile import TemporaryFile
from unicodedata import category

from wcwidth import iter_graphemes

from streamd.errors import ConfigError, StreamdError
from streamd.events import Event, Final
from streamd.rewriting import Replacements
from streamd.sinks.text import blank_between, clean

log = logging.getLogger(__name__)

_TYPISTS = {
    # Without the modifiers of the hot key that may be held down.
    "xdotool": ("type", "--clearmodifiers"),
    # Each call brings a keymap, and without a pause the first key is read by the one before: of
    # "xx", two strokes of the key that erases left "x" in foot on sway, three times of three.
    "wtype": ("-s", "50", "-"),
    "ydotool": ("type", "--file", "-"),
    "osascript": ("-",),
}
"""The programs that type, and their arguments. macOS's own has not been tried."""
_RUNS = re.compile(r"[ -~\n]+|[À-ÖØ-Þ]|[^ -~\nÀ-ÖØ-Þ]+")
"""Letters that any keyboard has; a capital of Latin-1; others."""
_BOUND_MS = 250
"""How long xdotool leaves a letter that the keyboard lacks on the key that it binds to it. With its
own 12 ms, in xterm on a busy machine, some such letters of each sentence were lost, 6 times of 6,
with 150 ms twice of 4, with 250 ms never."""
_MOST_BOUND = 3
"""Longer runs are of a script that the keyboard has."""
_CLIPBOARD = "wl-copy"
"""Types any letter on GNOME and KDE, where ydotool knows those of US-ASCII only: the text goes
through the clipboard, and ydotool presses the keys that paste it."""
_PASTE = ("key", "42:1", "110:1", "110:0", "42:0")
"""Shift and Insert, as the kernel numbers keys: terminals, too, paste with them, but what is
selected, while other programs paste what was copied."""
_ERASERS = {
    "xdotool": (("key", "--clearmodifiers"), ("BackSpace",)),
    "wtype": (("-s", "50"), ("-k", "BackSpace")),
    "ydotool": (("key",), ("14:1", "14:0")),
}
"""What presses the key that erases: the first arguments, and those of each stroke."""
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
        session, wanted = "Wayland", ["wtype", _CLIPBOARD, "ydotool"]
    elif environ.get("DISPLAY"):
        session, wanted = "X11", ["xdotool", "ydotool"]
    else:
        raise ConfigError(
            "dictate types into a window, and there is no display: neither WAYLAND_DISPLAY nor "
            "DISPLAY is set; run it in a desktop session"
        )
    found = [name for name in wanted if shutil.which(name, path=environ.get("PATH"))]
    if _CLIPBOARD in found and "ydotool" not in found:
        found.remove(_CLIPBOARD)
    if found:
        return found
    names = "wtype, or ydotool and wl-clipboard" if session == "Wayland" else " or ".join(wanted)
    raise ConfigError(f"no program here can type into a {session} window: install {names}")


class TypingSink:
    """Types finals, with a blank between them, until somebody says the stop phrase.

    `programs` are those of `typists`: one that fails is replaced by the next. Where `rules` say
    that a final begins with a phrase that takes back what was said, the final typed before is
    erased. `stop` is called when the stop phrase was said; nothing is typed once `is_stopped`,
    since an interrupt is typed in another window than the text.
    """

    def __init__(
        self,
        programs: Sequence[str],
        phrase: str,
        rules: Replacements | None = None,
        *,
        stop: Callable[[], object],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._programs, self._phrase, self._rules = list(programs), _ending(phrase), rules
        self._stop, self._is_stopped = stop, is_stopped
        self._typed: list[str] = []  # a text for each final

    def write(self, event: Event) -> None:
        """Type the text of a final. Raises `StreamdError` if no program can."""
        if not isinstance(event, Final) or self._is_stopped():
            return
        text, n_erased = event.text, 0
        if self._rules is not None:
            n_erased, text = self._rules.taken_back(text, event.language)
        for _ in range(min(n_erased, len(self._typed))):
            self._erase(self._typed.pop())
        text = "\n".join(map(clean, text.split("\n")))
        said = self._phrase.search(text) if self._phrase else None
        if said:
            text = text[: said.start()].rstrip(" ")
        if text:
            self._type_behind(text)
        if said:
            log.info("stopped, as was said")
            self._stop()

    def close(self) -> None: ...

    def _type_behind(self, text: str) -> None:
        """Type a text behind the one before; a mark that was said replaces one at its end."""
        before = self._typed[-1] if self._typed else ""
        if _is_mark(text[0]) and before and _is_mark(before[-1]):
            self._erase(before[-1])
            before = self._typed[-1] = before[:-1]
        at_once = before[-1:].isspace() or text[0].isspace() or _is_mark(text[0])
        opens = category(before[-1:] or " ") in ("Ps", "Pi")
        typed = text if at_once or opens else blank_between(before, text) + text
        self._run(lambda name: _type(name, typed))
        self._typed.append(typed)

    def _erase(self, typed: str) -> None:
        n_strokes = sum(1 for _ in iter_graphemes(typed))
        if n_strokes:
            self._run(lambda name: _erase(name, n_strokes))

    def _run(self, work: Callable[[str], str]) -> None:
        while True:
            name, *others = self._programs
            if not (problem := work(name)):
                return
            if not others:
                raise StreamdError(f"{name} cannot type here: {problem}")
            log.warning("%s cannot type here: %s; trying %s", name, problem, others[0])
            self._programs = others


def _type(name: str, text: str) -> str:
    """Have a program type the text; return what is wrong, in a line, or nothing."""
    if name == _CLIPBOARD:
        copied = _run([name], text) or _run([name, "--primary"], text)
        return copied or _run(["ydotool", *_PASTE], "")
    if name == "xdotool":
        return next(filter(None, map(_type_run, _RUNS.findall(text))), "")
    if name == "osascript":
        quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        text = f'tell application "System Events" to keystroke "{quoted}"'
    return _run([name, *_TYPISTS[name]], text)


def _type_run(run: str) -> str:
    """Have xdotool type letters of one kind of `_RUNS`, as `_type` does."""
    if "À" <= run <= "Þ":
        # A capital alone on a key is what Shift makes of that key: without, it is a small letter.
        stroke = f"key --clearmodifiers --delay {_BOUND_MS} shift+U{ord(run):04X}\n"
        return _run(["xdotool", "-"], stroke)
    is_bound = not run.isascii() and len(run) <= _MOST_BOUND
    delay = ("--delay", str(_BOUND_MS)) if is_bound else ()
    return _run(["xdotool", *_TYPISTS["xdotool"], *delay, "--file", "-"], run)


def _erase(name: str, n_strokes: int) -> str:
    """Have a program press the key that erases; return what is wrong, as `_type` does."""
    if name == "osascript":
        keys = 'tell application "System Events" to key code 51'
        return _run([name, "-"], f"repeat {n_strokes} times\n{keys}\nend repeat")
    name = "ydotool" if name == _CLIPBOARD else name
    first, each = _ERASERS[name]
    return _run([name, *first, *each * n_strokes], "")


def _run(command: Sequence[str], given: str) -> str:
    """Run a program with an input; return what is wrong, in a line, or nothing."""
    # No pipe: wl-copy goes on in the background, and would keep it open.
    with TemporaryFile() as said:
        try:
            done = subprocess.run(
                command,
                input=given.encode(),
                stdout=said,
                stderr=said,
                timeout=_PATIENCE_S,
                check=False,
            )
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        except subprocess.TimeoutExpired:
            return f"{command[0]} did not end within {_PATIENCE_S:.0f} s"
        said.seek(0)
        words = " ".join(said.read().decode(errors="replace").split())
        return (words or f"exit code {done.returncode}") if done.returncode else ""


def _is_mark(char: str) -> bool:
    """Whether this is a mark that stands behind a word."""
    return char in ",.;:?!…"


def _ending(phrase: str) -> re.Pattern[str] | None:
    """Return what finds the words of a phrase at the end of a text, however they are written."""
    words = re.findall(r"\w+", phrase)
    said = r"\W+".join(map(re.escape, words))
    return re.compile(rf"(?<!\w){said}\W*\Z", re.IGNORECASE) if words else None
