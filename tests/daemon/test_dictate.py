"""Dictation into a real window: speech from a pipe, xdotool, and a terminal on a virtual screen."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.support import recorded

PROGRAM = [str(Path(sys.executable).with_name("streamd")), "dictate"]
LAMP = "Would you please turn on the living room lamp?"
LAMP_FILE = Path(__file__).parents[1] / "golden/lamp.flac"
PACKAGES = "xvfb xdotool xterm"


@dataclass(frozen=True)
class Window:
    """A terminal that has the focus; `typed` is the file with the lines that were typed."""

    typed: Path
    environ: dict[str, str]

    def press_enter(self) -> str:
        """End the line, as dictation never does, and return it once it is there."""
        subprocess.run(["xdotool", "key", "Return"], env=self.environ, check=True)
        while not (text := self.typed.read_text(encoding="utf-8")).endswith("\n"):
            threading.Event().wait(0.05)
        return text


@pytest.fixture
def window(tmp_path) -> Iterator[Window]:
    if not all(map(shutil.which, ["Xvfb", "xdotool", "xterm"])):
        reason = f"needs a virtual screen: apt-get install {PACKAGES}"
        if os.environ.get("STREAMD_REQUIRE_SYSTEM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-nolisten", "tcp", "-screen", "0", "800x600x24"]
    server = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with os.fdopen(read) as ready:
            display = f":{ready.readline().strip()}"
        environ = {**os.environ, "DISPLAY": display, "LC_ALL": "C.UTF-8"}
        environ.pop("WAYLAND_DISPLAY", None)
        typed = tmp_path / "typed.txt"
        typed.touch()
        shell = ["xterm", "-T", "letter", "-e", "sh", "-c", f"cat > '{typed}'"]
        terminal = subprocess.Popen(shell, env=environ, stderr=subprocess.DEVNULL)
        try:
            find = ["xdotool", "search", "--sync", "--onlyvisible", "--name", "^letter$"]
            subprocess.run([*find, "windowfocus", "--sync"], env=environ, check=True, timeout=60)
            yield Window(typed, environ)
        finally:
            terminal.kill()
            terminal.wait()
    finally:
        server.kill()
        server.wait()


@contextmanager
def dictating(window: Window, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*PROGRAM, *args],
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


def test_sentences_are_typed_into_the_focused_window(window):
    with dictating(window, "-") as streamd:
        out, err = streamd.communicate(pcm(lamp(), recorded.samples()), timeout=120)
    assert streamd.returncode == 0, err
    assert b"typing into the focused window with xdotool" in err
    said = " ".join(out.decode().split())
    assert said == f"{LAMP} {recorded.SENTENCE}"
    assert window.press_enter() == f"{said}\n"


def test_push_to_talk_types_only_what_is_said_between_two_signals(window):
    with dictating(window, "--push-to-talk", "-") as streamd:

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
    done = subprocess.run([*PROGRAM, str(sound)], env=environ, capture_output=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"neither WAYLAND_DISPLAY nor DISPLAY is set" in done.stderr
