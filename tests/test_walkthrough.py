"""Every command of README, first ten minutes, library and voice agents, as a person runs it.

They run in a home and a copy of the repository of their own, with a microphone that hears recorded
speech and a hub on loopback.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamd.models import store
from tests.support import huggingface_folder, pulseaudio, recorded
from tests.support.hub import Repo, hub, repo_of
from tests.support.nats import free_port

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "build/real/base"
"""OpenAI's base, which ``make test-real`` gets."""
SAID = "laid aside .* each year"
TEXT = r"\w+ \w+ \w+"
PORTS = ("8765", "10300")
"""Of the pages; others may use them here."""


@dataclass(frozen=True)
class Run:
    """What a command prints, as patterns; with `ends` it has to end then by itself.

    Otherwise Ctrl-C ends it. `files` are those that it writes, with the text `written`, and
    `beside` is what runs meanwhile. `code` is how it ends.
    """

    stdout: str = ""
    stderr: str = ""
    ends: bool = True
    files: tuple[str, ...] = ()
    written: str = SAID
    beside: str = ""
    code: int = 0


def live(stdout: str = SAID, stderr: str = "microphone: ", files: tuple[str, ...] = ()) -> Run:
    return Run(stdout, stderr, ends=False, files=files)


SERVING = "listening on ws://127.0.0.1"
WATCHING = Run(TEXT, ends=False, beside="streamd tests/speech/recording.flac")
RUNS = {
    "python3 -m venv ~/streamd": Run(),
    "~/streamd/bin/pip install .": Run(),
    "source ~/streamd/bin/activate": Run(),
    "streamd doctor": Run("ok microphone .* the loudest of 2 s is -"),
    "streamd --speakers --play tests/speech/demo.flac": Run(TEXT, SERVING, ends=False),
    "streamd models list": Run(r"tiny\.en .*bundled"),
    "streamd models get base.en": Run("", r"base\.en is here"),
    "streamd models get base": Run("", "base is here"),
    "streamd bench -m base.en": Run("n_streams"),
    "streamd bench": Run("step_ms"),
    "streamd devices": Run("USB"),
    "streamd": live(),
    "streamd --device USB": live(stderr="microphone: USB"),
    "streamd -m base": live(),
    "streamd -m base -l german": live(TEXT),
    "streamd --share": live(stderr="others can listen at http"),
    "streamd --device monitor": live(stderr="microphone: monitor"),
    "streamd -o talk.srt -o talk.txt": live(files=("talk.srt", "talk.txt")),
    "streamd transcribe film.mp4 -o film.srt": Run(SAID, files=("film.srt",)),
    "streamd transcribe talk.mp3 -o talk.vtt": Run(SAID, files=("talk.vtt",)),
    "streamd serve --wyoming 0.0.0.0:10300": Run("", SERVING, ends=False),
    "streamd serve": Run("", SERVING, ends=False),
    "streamd > talk.txt": live("", files=("talk.txt",)),
    "streamd -m base.en --print-config > streamd.toml": Run(
        files=("streamd.toml",), written="base.en"
    ),
    "export STREAMD_CONFIG=$PWD/streamd.toml": Run(),
    "make demo": Run("John Dashwood", SERVING, ends=False, code=-signal.SIGINT),
    "streamd watch ws://127.0.0.1:8765": WATCHING,
    "pip install .": Run(),
    "streamd talk.flac": Run(SAID),
    "arecord -f S16_LE -r 16000 -t raw | streamd -": live(stderr=SERVING),
}
NOT_HERE = {
    "apt-get install libportaudio2": "`make system-packages` has",
    "pip install streamd": "is another program",
}


def commands(page: str) -> list[str]:
    """Return the commands of a page, in its order: those of code blocks, and those in the text."""
    text = (ROOT / page).read_text().partition("## Project layout")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    shell = "".join(block for language, block in blocks if not language).splitlines()
    lines = [re.split(r" {2,}| +# ", line)[0] for line in shell]
    program = r"(?:\.venv/bin/|~/)?(?:streamd|make|uv|pip|apt-get)"
    return list(dict.fromkeys([*lines, *re.findall(rf"`({program} [^`]+)`", text)]))


PAGES = ("docs/first-ten-minutes.md", "README.md", "docs/library.md", "docs/voice-agents.md")
EVERY = dict.fromkeys(line for page in PAGES for line in commands(page))
HERE = [line for line in EVERY if line not in NOT_HERE]


@dataclass(frozen=True)
class Running:
    """A command that runs in `folder`, and the files with what it has printed so far."""

    process: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path

    def wait(self, wanted: dict[Path, str]) -> None:
        """Wait until the files have what is wanted, or the command has ended."""
        while not all(has(*each) for each in wanted.items()) and self.process.poll() is None:
            threading.Event().wait(0.1)

    def interrupt(self) -> None:
        """Press Ctrl-C, unless it has ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            self.process.wait()


def has(path: Path, pattern: str) -> bool:
    """Whether a file has a text, which may go over several lines."""
    return path.exists() and bool(re.search(pattern, " ".join(path.read_text().split())))


@dataclass(frozen=True)
class Machine:
    """The person's computer: their copy of the repository, and what is set there."""

    folder: Path
    env: dict[str, str]
    ports: dict[str, str]

    @contextmanager
    def running(self, command: str) -> Iterator[Running]:
        """Run a command as the shell of a terminal does; at last Ctrl-C ends it."""
        for port, free in self.ports.items():
            command = command.replace(port, free)
        print(f"$ {command}")
        with tempfile.TemporaryDirectory() as folder:
            stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
            with stdout.open("wb") as out, stderr.open("wb") as err:
                process = subprocess.Popen(
                    ["bash", "-c", command],
                    cwd=self.folder,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            running = Running(process, stdout, stderr)
            try:
                yield running
            finally:
                running.interrupt()
                print(stdout.read_text(), stderr.read_text(), f"[{process.returncode}]", sep="")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if not BASE.is_dir():
        pytest.skip("needs OpenAI's base: make test-real")
    with (
        tempfile.TemporaryDirectory(prefix="streamd-") as name,
        pulseaudio.null_sink(home := Path(name)) as sink,
        hub(_models(home)) as served,
    ):
        folder = home / "repository"
        _copy_repository(folder)
        sentence = recorded.wav(home / "sentence.wav", recorded.samples())
        picture = ("-f", "lavfi", "-i", "color=s=64x64", "-shortest")
        for file, more in {
            "talk.flac": (),
            "talk.mp3": (),
            "talk.m4a": (),
            "film.mp4": picture,
        }.items():
            command = ["ffmpeg", "-v", "error", "-i", sentence, *more, folder / file]
            subprocess.run(command, check=True)
        alsa = (home / "asound.conf").read_text()
        usb = alsa.partition("pcm.pulse")[0].replace(pulseaudio.DEVICE, "USB")
        (home / "alsa.conf").write_text(alsa + usb.partition("}")[2])
        ports = {port: str(free_port()) for port in PORTS}
        kept = ("PIP_", "UV_", "SSL_", "HTTP", "http", "LANG")
        env = {name: text for name, text in os.environ.items() if name.startswith(kept)}
        env |= {
            "HOME": str(home),
            "PATH": f"{home}/streamd/bin:{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "XDG_RUNTIME_DIR": str(home),
            "ALSA_CONFIG_PATH": str(home / "alsa.conf"),
            "HF_ENDPOINT": served.endpoint,
            "STREAMD_PORT": ports["8765"],
        }
        with _played(sink, sentence):
            yield Machine(folder, env, ports)


def _copy_repository(to: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to / name)


def _models(folder: Path) -> dict[str, Repo]:
    """Return what the hub has: base, and under the name of base.en the model in the box."""
    found = {}
    for name, source in (("base.en", "tiny.en"), ("base", str(BASE))):
        (folder / name).mkdir()
        files = huggingface_folder.write(store.load_model(source), folder / name)
        found[f"openai/whisper-{name}"] = repo_of(files)
    return found


@contextmanager
def _played(sink: pulseaudio.NullSink, sound: Path) -> Iterator[None]:
    """Let the microphone hear a sound, again and again."""
    ended = threading.Event()

    def play() -> None:
        while not ended.is_set():
            sink.play(sound)
            ended.wait(2)

    player = threading.Thread(target=play)
    player.start()
    try:
        yield
    finally:
        ended.set()
        player.join()


def test_each_command_of_the_pages_is_run() -> None:
    assert {*RUNS} == {*HERE}


@pytest.mark.walkthrough
@pytest.mark.parametrize("command", HERE)
def test_it_does_what_the_page_says(command: str, machine: Machine) -> None:
    run = RUNS[command]
    for name in run.files:
        (machine.folder / name).unlink(missing_ok=True)
    with ExitStack() as stack:
        if run.beside:
            server = stack.enter_context(machine.running(run.beside))
            server.wait({server.stderr: SERVING})
        running = stack.enter_context(machine.running(command))
        wanted = {running.stdout: run.stdout, running.stderr: run.stderr}
        wanted |= {machine.folder / name: run.written for name in run.files}
        running.wait(wanted)
        if run.ends:
            running.process.wait()
        running.interrupt()
        missing = {path.name: text for path, text in wanted.items() if not has(path, text)}
        assert (missing, running.process.returncode) == ({}, run.code)


@pytest.mark.walkthrough
def test_the_python_of_the_readme(machine: Machine) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    imports, microphone, recording = block.split("\n\n")
    for part in (microphone, recording):
        (machine.folder / "program.py").write_text(f"{imports}\n{part}\n")
        with machine.running("python -u program.py") as running:
            running.wait({running.stdout: SAID})
            assert has(running.stdout, SAID)
