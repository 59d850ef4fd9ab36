"""What only a Mac can show: ``make test-mac``, or ``make test-mac MODEL=base.en``."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import soundfile

from streamd.cli.bench import n_edits, spoken
from streamd.cli.packages import functions
from streamd.config import load
from streamd.daemon import acceleration, build
from streamd.daemon.opening import open_model
from streamd.engines.coreml.golden import check_golden
from streamd.engines.coreml.runtime.hybrid import HybridEngine, load_encoder, plan, prepare
from streamd.engines.supervised.worker import Worker
from streamd.errors import EngineError
from streamd.sources.microphone import Microphone, list_devices
from streamd.types import FRAME, Mel, Window, text_of
from streamd.whisper.engine import Reuse
from tests.macos.conftest import CORE_ML, MODEL, is_virtual

pytestmark = [pytest.mark.macos, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
SPEECH = ROOT / "tests" / "speech"
LEAST_SHARE = 0.9


def refused(why: str) -> NoReturn:
    """Fail; but skip on a virtual machine, which has no Neural Engine."""
    if is_virtual():
        pytest.skip(f"virtual: {why}")
    pytest.fail(why)


def memory(worker: Worker) -> str:
    """What the worker takes by our count, which a bound is for, and by macOS's own tool."""
    told = f"{worker.used_bytes() / 1e6:.0f} MB"
    if tool := shutil.which("footprint"):
        said = subprocess.run([tool, str(worker.pid)], capture_output=True, text=True, check=False)
        if found := re.search(r"Footprint: (.+?) \(", said.stdout):
            told += f" (footprint: {found[1]})"
    return told


@pytest.fixture(scope="module")
def on_cpu(built, report):
    """The CPU's engine, what it reads, and what makes recognizers like the one that did."""
    config = load({"model": MODEL, "compute": "cpu"}, {})
    model, cpu = open_model(config)
    recognizer = partial(build.recognizer, config, model)
    texts = read(recognizer(cpu))
    report("clips", f"CPU alone: {errors(texts)}")
    return recognizer, texts, cpu


def read(recognizer) -> list[str]:
    """What is heard in the clips."""
    return [text_of(recognizer.recognize(window).words) for window, _ in windows()]


def errors(texts: list[str]) -> str:
    pairs = [(spoken(s), spoken(text)) for (_, s), text in zip(windows(), texts, strict=True)]
    rate = 100 * sum(n_edits(*pair) for pair in pairs) / sum(len(words) for words, _ in pairs)
    return f"word error rate {rate:.1f} % on {len(texts)} clips"


def test_the_encoder_computes_what_it_should(built, report, on_cpu):
    recognizer, expected, cpu = on_cpu
    try:
        begun_s = time.monotonic()
        prepare(built, library=CORE_ML)
        compiled_s = time.monotonic() - begun_s
        worker, told = load_encoder(built, library=CORE_ML, answer_s=300.0)
        loaded_s = time.monotonic() - begun_s - compiled_s
    except EngineError as error:
        report("golden", f"{error}")
        refused(str(error))
    report(
        "golden",
        f"{len(built.functions)} functions compiled in {compiled_s:.1f} s, loaded in "
        f"{loaded_s:.1f} s, {memory(worker)}; {told}",
    )
    with energy(report):
        for _ in range(10):
            check_golden(partial(worker.call, "encode"), built)
    engine = HybridEngine(built, worker, cpu)
    for n_ctx in built.meta.contexts:
        mel = np.zeros((built.meta.dims.n_mels, 2 * n_ctx), np.float32)
        encode = partial(engine.encode, mel, audio_ctx=n_ctx)
        report("latency", f"a window of {n_ctx} positions: {_best_ms(encode)}")
    report("", f"a step of 0.5 s after 12 s: {_best_ms(_steps(engine, mel))}")
    texts = read(recognizer(engine))
    same = sum(map(str.__eq__, texts, expected))
    report("clips", f"{errors(texts)}, {same} texts as on the CPU")
    engine.close()


def _steps(engine: HybridEngine, mel: Mel) -> Callable[[], object]:
    """Steps of a window, each after the one before it."""
    known = [engine.encode(mel[:, :1200])]

    def step() -> None:
        known.append(engine.encode(mel[:, :1250], Reuse(known.pop(), 525)))

    return step


@contextmanager
def energy(report) -> Iterator[None]:
    """Report the mean power of the units, if ``sudo -n powermetrics`` is allowed."""
    command = ["sudo", "-n", "powermetrics", "-i", "500", "--samplers", "cpu_power,gpu_power"]
    probe = [*command, "-n", "1"]
    sudo = shutil.which("sudo")
    if not sudo or subprocess.run(probe, capture_output=True, check=False).returncode:
        report("", "energy: not measured (sudo -n powermetrics is not allowed)")
        yield
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield
        process.terminate()
        told = process.communicate()[0]
    for unit in ("CPU", "GPU", "ANE"):
        milliwatts = [int(each) for each in re.findall(rf"^{unit} Power: (\d+) mW", told, re.M)]
        if milliwatts:
            report("", f"energy: {unit} {np.mean(milliwatts):.0f} mW in the golden vectors")


def _best_ms(call, n: int = 10) -> str:
    times = []
    for _ in range(n):
        begun_s = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun_s) * 1000)
    return f"{min(times):.1f} ms, median {np.median(times):.1f}"


def windows() -> list[tuple[Window, str]]:
    """The clips of the recorded speech and what is said there, in order."""
    samples, _ = soundfile.read(SPEECH / "recording.flac", dtype="float32")
    clips = json.loads((SPEECH / "recording.json").read_text())["clips"]
    found = []
    for clip in clips:
        start, end = (clip["start_ms"] - 200) // 20, (clip["end_ms"] + 200) // 20
        sound = samples[start * FRAME : end * FRAME]
        window = Window(start, start + len(sound) // FRAME, sound, last=True)
        found.append((window, clip["text"]))
    return found


def test_captions_go_on_while_the_encoder_takes_over(built, report, on_cpu, monkeypatch):
    recognizer, expected, _ = on_cpu
    config = load({"model": MODEL, "compute": "ane"}, {})
    monkeypatch.setattr(acceleration, "CORE_ML", CORE_ML)
    monkeypatch.setattr(acceleration, "core_ml_unavailable", lambda: "")
    _, relay = open_model(config)
    seen: dict[str, list[bool]] = {}
    is_over = False
    while not is_over:
        is_over = relay.settled.is_set()  # and once more with who is there then
        for (window, _), text in zip(windows(), expected, strict=True):
            served_by = type(relay.current).__name__
            found = text_of(recognizer(relay).recognize(window).words)
            seen.setdefault(served_by, []).append(found == text)
    for served_by, same in seen.items():
        report("switch", f"{served_by}: {sum(same)} of {len(same)} windows read as on the CPU")
    assert all(sum(same) >= 0.8 * len(same) for same in seen.values())
    if len(seen) == 1:
        refused("nothing took over")


def test_where_core_ml_runs_the_encoder_is_reported(built, report):
    for text in functions(built, CORE_ML):
        report("plan", text)
    if is_virtual():
        return
    packages = dict.fromkeys(function.package for function in built.functions)
    told = (plan(built, package, library=CORE_ML) for package in packages)
    # Core ML's plan tells of a package's default function, at most.
    found = [each for functions in told for each in functions.values() if each]
    assert all(each.get("Neural Engine", (0.0,))[0] >= LEAST_SHARE for each in found), found


def test_the_demo_captions_what_is_said(cache, report):
    command = ["make", "--silent", "demo"]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    told = done.stderr.strip().splitlines()
    report("demo", f"exit code {done.returncode}; {' / '.join(told) or 'no messages'}")
    assert done.returncode == 0
    clips = json.loads((SPEECH / "demo.json").read_text())["clips"]
    said = spoken(" ".join(clip["text"] for clip in clips))
    n_wrong = n_edits(said, spoken(re.sub(r"^Speaker \d+: ", "", done.stdout, flags=re.M)))
    report("", f"{n_wrong} of {len(said)} words wrong")
    assert n_wrong < 0.3 * len(said), done.stdout


def test_the_doctor_finds_no_error_of_ours(cache, report):
    command = [sys.executable, "-m", "streamd", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        report("doctor", line)
    assert done.returncode in (0, 1), done.stderr  # 1: something that only the user can change
    assert " gpu " in done.stdout or sys.platform != "darwin"


def test_the_microphone_hears_something(report):
    devices = list_devices()
    if not devices or is_virtual():
        pytest.skip(f"no microphone to speak into; {len(devices)} devices")

    async def listen() -> np.ndarray:
        async with Microphone() as source:
            frames = []
            async for found in source:
                if isinstance(found, np.ndarray):
                    frames.append(found)
                if sum(map(len, frames)) >= 100:
                    break
            return np.concatenate(frames)

    peak = float(np.abs(asyncio.run(listen())).max())
    report("microphone", f"{len(devices)} devices; peak in 2 s: {peak:.4f}")
    assert peak > 0, "silence without any noise: the terminal has no permission (docs/macos.md)"
