"""Dictation into a real window: speech from a pipe, and a terminal on a virtual screen.

One is under X11, and one under Wayland: sway without a screen, which ydotool does not reach.
"""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import soundfile

from streamd.events import Final
from streamd.rewriting import Rewriter, built_in, read_rules
from streamd.sinks.dictation import TypingSink
from tests.support import recorded
from tests.support.programs import PROGRAM, lacking

COMMAND = [PROGRAM, "dictate"]
LAMP = "Would you please turn on the living room lamp?"
LAMP_FILE = Path(__file__).parents[1] / "golden/lamp.flac"
NOBODY = 65534
RULES = read_rules([built_in()])
STROKES = {"42:1": "-M shift", "42:0": "-m shift", "110:1": "-P Insert", "110:0": "-p Insert"}
STROKES |= {"14:1": "-P BackSpace", "14:0": "-p BackSpace"}
"""What ydotool presses and releases, as wtype names it."""


@dataclass(frozen=True)
class Window:
    """A terminal that has the focus; `typed` is the file with the lines that were typed."""

    typed: Path
    environ: dict[str, str]
    enter: tuple[str, ...]

    def press_enter(self) -> str:
        """End the line, as dictation never does, and return it once it is there."""
        subprocess.run(self.enter, env=self.environ, check=True)
        while not (text := self.typed.read_text(encoding="utf-8")).endswith("\n"):
            threading.Event().wait(0.05)
        return text


def need(*packages: str, programs: Sequence[str]) -> None:
    """Skip the test, or fail, where a program is missing."""
    if not all(map(shutil.which, programs)):
        lacking(f"needs a virtual screen: apt-get install {' '.join(packages)}")


@contextmanager
def running(command: Sequence[str], **given: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is killed in the end."""
    with subprocess.Popen(command, **given) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def x11(typed: Path) -> Iterator[Window]:
    need("xvfb", "xdotool", "xterm", programs=["Xvfb", "xdotool", "xterm"])
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-nolisten", "tcp", "-screen", "0", "800x600x24"]
    with running(command, pass_fds=[write], stderr=subprocess.DEVNULL):
        os.close(write)
        with os.fdopen(read) as ready:
            display = f":{ready.readline().strip()}"
        environ = {**os.environ, "DISPLAY": display, "LC_ALL": "C.UTF-8"}
        environ.pop("WAYLAND_DISPLAY", None)
        shell = ["xterm", "-T", "letter", "-e", "sh", "-c", f"cat > '{typed}'"]
        with running(shell, env=environ, stderr=subprocess.DEVNULL):
            find = ["xdotool", "search", "--sync", "--onlyvisible", "--name", "^letter$"]
            subprocess.run([*find, "windowfocus", "--sync"], env=environ, check=True, timeout=60)
            yield Window(typed, environ, ("xdotool", "key", "Return"))


@contextmanager
def wayland(typed: Path) -> Iterator[Window]:
    """Of ydotool, which needs a device of the kernel, there is a stand-in that presses its keys."""
    packages = ("sway", "foot", "wtype", "wl-clipboard")
    need(*packages, programs=["sway", "foot", "wtype", "wl-copy"])
    environ = {**os.environ, "LC_ALL": "C.UTF-8"}
    root = os.geteuid() == 0
    with TemporaryDirectory(prefix="sway") as sockets:  # pytest's folders are too long for a socket
        config = Path(sockets) / "config"
        config.write_text(
            "output HEADLESS-1 resolution 800x600\nxwayland disable\n"
            "exec echo $WAYLAND_DISPLAY\nfor_window [app_id=letter] exec echo has the focus\n"
        )
        environ |= {"XDG_RUNTIME_DIR": sockets, "WLR_BACKENDS": "headless", "HOME": sockets}
        environ |= {"WLR_LIBINPUT_NO_DEVICES": "1", "WLR_RENDERER": "pixman"}
        if root:  # as whom sway refuses to start
            os.chown(sockets, NOBODY, NOBODY)
        other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        command = [*(other if root else ()), "sway", "-c", str(config)]
        with running(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as sway:
            environ["WAYLAND_DISPLAY"] = sway.stdout.readline().decode().strip()
            shell = ["foot", "--app-id", "letter", "sh", "-c", f"cat > '{typed}'"]
            keyboard = ["wtype", "-s", "600000"]  # without one, a seat tells of no selection
            with (
                running(keyboard, env=environ),
                running(shell, env=environ, stderr=subprocess.DEVNULL),
            ):
                assert sway.stdout.readline()
                yield Window(typed, environ, ("wtype", "-k", "Return"))


@pytest.fixture
def window(request, tmp_path) -> Iterator[Window]:
    screen = getattr(request, "param", x11)
    typed = tmp_path / "typed.txt"
    typed.touch()
    with screen(typed) as opened:
        yield opened


@contextmanager
def dictating(window: Window, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*COMMAND, *args],
        env=window.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        yield process
        process.kill()


def lamp() -> np.ndarray:
    return soundfile.read(LAMP_FILE, dtype="float32")[0]


def pcm(*sounds: np.ndarray) -> bytes:
    """The sounds as a pipe takes them, with 1.5 s of silence after each."""
    silence = np.zeros(24_000, np.float32)
    parts = [part for sound in sounds for part in (sound, silence)]
    return (np.concatenate(parts) * 32767).astype("<i2").tobytes()


@pytest.mark.parametrize("window", [x11, wayland], indirect=True)
def test_sentences_are_typed_into_the_focused_window(window):
    with dictating(window, "-") as streamd:
        out, err = streamd.communicate(pcm(lamp(), recorded.samples()), timeout=120)
    assert streamd.returncode == 0, err
    assert b"typing into the focused window with %s" % window.enter[0].encode() in err
    said = " ".join(out.decode().split())
    assert said == f"{LAMP} {recorded.SENTENCE}"
    assert window.press_enter() == f"{said}\n"


@pytest.fixture
def ydotool(tmp_path, monkeypatch):
    """Stands for ydotool: presses its keys with wtype."""
    program = tmp_path / "ydotool"
    cases = " ".join(f'{stroke}) set -- "$@" {keys};;' for stroke, keys in STROKES.items())
    program.write_text(
        f"#!/bin/sh\nshift\nstrokes=$*\nset -- -s 50\n"
        f'for stroke in $strokes; do case $stroke in {cases} esac; done\nexec wtype "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("window", "program"),
    [(x11, "xdotool"), (wayland, "wtype"), (wayland, "wl-copy")],
    indirect=["window"],
)
def test_any_letter_is_typed_and_taken_back(window, program, ydotool, monkeypatch):
    for name, value in window.environ.items():
        if name != "PATH":
            monkeypatch.setenv(name, value)
    rewriter = Rewriter(RULES)
    sink = TypingSink([program], "", RULES, stop=lambda: None, is_stopped=lambda: False)
    for seg, text in enumerate(
        ["„Größe“, Äpfel und naïve Straßen", "Übermütig läuft er.", "Streich das.", "für 5 €."]
    ):
        said = Final(seg=seg, start_ms=0, end_ms=1000, text=text, language="de")
        sink.write(rewriter.rewritten(said, ""))
    assert window.press_enter() == "„Größe“, Äpfel und naïve Straßen für 5 €.\n"


def test_push_to_talk_types_only_what_is_said_between_two_signals(window):
    with dictating(window, "--set", "dictation.push_to_talk=true", "-") as streamd:

        def says(text: bytes) -> None:
            while text not in (line := streamd.stderr.readline()):
                assert line, "it has ended"

        says(b"push to talk")
        says(b"typing into")
        streamd.send_signal(signal.SIGUSR1)
        says(b"resumed")
        streamd.stdin.write(pcm(lamp()))
        streamd.stdin.flush()
        assert streamd.stdout.readline().decode().strip() == LAMP
        streamd.send_signal(signal.SIGUSR1)
        says(b"paused")
        streamd.stdin.write(pcm(recorded.samples()))
        streamd.stdin.close()
        assert streamd.wait(timeout=120) == 0
        assert streamd.stdout.read().decode().strip().startswith("[")  # the gap
    assert window.press_enter() == f"{LAMP}\n"


def test_the_spoken_stop_phrase_ends_the_program(window):
    phrase = "the living room lamp"
    with dictating(window, "--set", f"dictation.stop_phrase={phrase}", "-") as streamd:
        _, err = streamd.communicate(pcm(lamp(), recorded.samples()), timeout=120)
    assert (streamd.returncode, b"stopped, as was said" in err) == (0, True), err
    assert window.press_enter() == "Would you please turn on\n"


def test_without_a_screen_one_line_says_so(tmp_path):
    # In debug mode asyncio complains of a busy machine.
    others = ("DISPLAY", "WAYLAND_DISPLAY", "PYTHONASYNCIODEBUG")
    environ = {k: v for k, v in os.environ.items() if k not in others}
    sound = recorded.wav(tmp_path / "a.wav", recorded.samples())
    done = subprocess.run([*COMMAND, str(sound)], env=environ, capture_output=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"neither WAYLAND_DISPLAY nor DISPLAY is set" in done.stderr
