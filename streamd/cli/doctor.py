"""``streamd doctor``: checks this machine, and says how to fix what is wrong."""

import asyncio
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from streamd.cli.bench import n_edits, spoken
from streamd.cli.model_check import MAX_WRONG
from streamd.config import OPTIONS, SETTINGS, Config, value_of
from streamd.daemon import build
from streamd.daemon.acceleration import (
    CORE_ML,
    accelerates,
    candidates,
    check_compute,
    judge,
    step_ms,
)
from streamd.daemon.opening import best_model, family_file
from streamd.daemon.phrases import with_vocabulary
from streamd.engines.golden_clips import clips, transcribed
from streamd.engines.mlx.gpu import unavailable
from streamd.engines.precision import choose_precision
from streamd.engines.prepared import open_engine, open_in_memory
from streamd.engines.supervised.remote import RemoteEngine
from streamd.engines.supervised.switchover import Candidate, Judge
from streamd.errors import SourceError, StreamdError, how_to_install
from streamd.events import encode
from streamd.models import store
from streamd.models.catalog import dimensions
from streamd.models.families import FAMILY_MODELS, has_library
from streamd.models.store import cache, imports
from streamd.models.store.cache import places
from streamd.sources import Lost, Source
from streamd.sources.confined import missing_confinement
from streamd.sources.microphone import list_devices, silence_fix
from streamd.system import stdio
from streamd.system.disk import CACHE_VARIABLE, asset, cache_folder, megabytes
from streamd.system.processor import machine
from streamd.types import FRAME_MS, WindowRecognizer
from streamd.version import __version__
from streamd.whisper.engine import Engine

_PACKAGES = (
    "onnxruntime",
    "numpy",
    "websockets",
    "sounddevice",
    "soundfile",
    "av",
    "webrtcvad-wheels",
)
_USUAL = "base.en"
"""The model that doctor recommends, and whose precision it reports."""
_AGAIN = "get its file again, unless it was made for another language"
_LISTEN_S = 2
"""How long the microphone is recorded."""
_FAST = {"avx2", "asimddp", "avx512_vnni", "avx_vnni", "i8mm"}


class Finding(NamedTuple):
    """The result of a check, which is printed as one line.

    `state` is "ok", "--" for something optional that is missing, or "!!" for a problem. `fix` says
    what to do about it.
    """

    state: Literal["ok", "--", "!!"]
    text: str
    fix: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.state}  {self.name:12} {self.text}{self.fix and f': {self.fix}'}"


def report(config: Config) -> int:
    """Print what `examine` finds, a line each; return 1 if there is a problem, else 0."""
    n_wrong = 0
    for finding in examine(config):
        line = encode(finding._asdict()) if config.output.json else str(finding)
        stdio.put(sys.stdout, f"{line}\n")
        n_wrong += finding.state == "!!"
    return int(n_wrong > 0)


def examine(config: Config) -> Iterator[Finding]:
    """Check everything in turn; an error in a check is a finding, too."""
    software = (_processor, _versions, _options, _files, _cache, _engine, _precision, _models)
    for check in (*software, _families, _gpu, _microphone, _uploads, _port):
        name = check.__name__.removeprefix("_").replace("_", " ")
        try:
            for finding in check(config):
                yield finding._replace(name=name)
        except StreamdError as error:
            yield Finding("!!", str(error), name=name)


def _processor(config: Config) -> Iterator[Finding]:
    found = machine()
    if _FAST & {*found.flags} or not Path("/proc/cpuinfo").exists():
        flags = " ".join(found.flags)
        yield Finding("ok", f"{found.cpu}, {found.cores} cores, load {found.load}: {flags}")
    else:
        fix = "models run several times slower than with it; choose a small one"
        yield Finding("--", f"{found.cpu} without AVX2", fix)


def _versions(config: Config) -> Iterator[Finding]:
    program = f"streamd {__version__}, Python {platform.python_version()}"
    verbose = config.output.verbose
    packages = (f"{name} {version(name)}" for name in (_PACKAGES if verbose else _PACKAGES[:1]))
    system = platform.platform() if verbose else f"{platform.system()} {platform.machine()}"
    yield Finding("ok", ", ".join([program, *packages, system]))


def _options(config: Config) -> Iterator[Finding]:
    changed = [
        f"{name} {field.shown(value)}"
        for name, field in {**OPTIONS, **SETTINGS}.items()
        if name != "json" and (value := value_of(config, field)) != field.default
    ]
    yield Finding("ok", ", ".join(changed) or "all have their defaults")


def _files(config: Config) -> Iterator[Finding]:
    for name in (*store.BUNDLED, "golden", "web"):
        asset(name)
    yield Finding("ok", "the bundled model, its check and the web page are installed")


def _cache(config: Config) -> Iterator[Finding]:
    if (folder := cache_folder()) is None:
        fix = f"set {CACHE_VARIABLE} to a folder that only you can write to"
        yield Finding("!!", "no safe folder, so every start is slow", fix)
    else:
        n_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        yield Finding("ok", f"{folder}, {megabytes(n_bytes)}")


def _engine(config: Config) -> Iterator[Finding]:
    """Have the bundled model read a clip as openai-whisper does."""
    begun_s, name = time.perf_counter(), store.BUNDLED[0]
    decoding = replace(config.decoding, model=name, language="", task="transcribe")
    config = with_vocabulary(replace(config, decoding=decoding))
    opened = open_in_memory(
        store.load_model(name), threads=build.threads(config), precision=decoding.precision
    )
    reader = build.recognizer(config, opened.model, opened.engine)
    what, fix = f"{name} in {opened.precision}", "try another version of onnxruntime"
    yield _read_by(reader, what, begun_s, fix=fix)


def _read_by(
    reader: WindowRecognizer, what: str, begun_s: float, *, fix: str, may_err: float = 0.0
) -> Finding:
    """Have what was opened from `begun_s` on read a clip; `may_err`: in what share of the words."""
    clip = clips()[0]
    found, words = transcribed(reader, clip), spoken(clip.text)
    text = f"{what} loaded and read a clip in {time.perf_counter() - begun_s:.1f} s"
    if n_edits(words, spoken(found)) > may_err * len(words):
        return Finding("!!", f"{text}, but as {found!r} instead of {clip.text!r}", fix)
    return Finding("ok", text)


def _precision(config: Config) -> Iterator[Finding]:
    choice, threads = config.decoding.precision, build.threads(config)
    verdict = choose_precision(dimensions(_USUAL), choice, threads=threads)
    text = f"{verdict.precision} for {_USUAL}, {threads} threads"
    if verdict.float32_ms is None or verdict.int8_ms is None:
        yield Finding("ok", f"{text}, as configured")
    else:
        faster = verdict.float32_ms / verdict.int8_ms
        yield Finding("ok", f"{text}: int8 is {faster:.1f} times as fast")


def _models(config: Config) -> Iterator[Finding]:
    here = places()
    names = {
        *(name for name, _ in imports.every(here.imported)),
        *(cache.name_of(path) or repo.id for repo, path in cache.whispers(here.cache)),
        *(each.name for each in FAMILY_MODELS if store.find(each.name, here)),
    }
    name = config.decoding.model or best_model(config, here)
    if not name or (not config.decoding.model and store.is_bundled(name, here)):
        fix = f"streamd models get {_USUAL}"
        yield Finding("--", f"only {store.BUNDLED[0]}, the smallest model", fix)
    elif store.find(name, here) is None:
        yield Finding("!!", f"{name} is not here", f"streamd models get {name}")
    else:
        others = ", ".join(sorted(names - {name}))
        yield Finding("ok", f"{name} is used{others and f'; also installed: {others}'}")


def _families(config: Config) -> Iterator[Finding]:
    """Say what can run models of other families, and have the configured one read a clip."""
    if not has_library():
        fix = f"{how_to_install('families')} for Nemotron, Moonshine, Parakeet"
        yield Finding("--", "transcribe-cpp is not installed, Whisper only", fix)
        return
    from streamd.engines.families.processes import find_devices

    where = ", ".join(find_devices())
    yield Finding("ok", f"transcribe-cpp {version('transcribe-cpp')} computes on {where}")
    name = config.decoding.model or best_model(config, places()) or store.BUNDLED[0]
    config = replace(config, decoding=replace(config.decoding, model=name))
    if path := family_file(config):
        from streamd.daemon.families import open_model_file

        begun_s = time.perf_counter()
        opened = open_model_file(config, path)
        (recognizer, *_), _ = opened.recognizers()
        what = f"{name} on {opened.family.abilities.device}"
        yield _read_by(recognizer, what, begun_s, fix=_AGAIN, may_err=MAX_WRONG)
        opened.close()


def _gpu(config: Config) -> Iterator[Finding]:
    """Say what else than the CPU can run the model, and have it read a clip and compute a step."""
    if config.decoding.compute == "cpu":
        yield Finding("ok", "not used, as configured")
        return
    name = config.decoding.model or best_model(config, places()) or store.BUNDLED[0]
    if store.find(name, places()) is None or store.is_family(name, places()):
        return  # as `_models` and `_families` say
    if not accelerates(config):
        if _has_gpu():
            yield Finding("--", f"{name} runs on the CPU", unavailable() or "try --compute gpu")
        return
    check_compute(config)
    config = with_vocabulary(replace(config, decoding=replace(config.decoding, model=name)))
    opened = open_engine(name, threads=build.threads(config), precision=config.decoding.precision)
    model, cpu = opened.model, opened.engine
    judged = judge(config, model, cpu, is_fast_enough=False)
    every = candidates(config, model, cpu)
    for n_left, candidate in zip(reversed(range(len(every))), every, strict=True):
        found = _tried(name, candidate, judged, cpu)
        yield found._replace(state="--") if found.state == "!!" and n_left else found
        if found.state == "ok":
            break  # as captions do
    if config.decoding.compute == "ane":
        from streamd.cli.packages import functions, open_packages  # only a Mac needs it

        for line in functions(open_packages(name), CORE_ML):
            yield Finding("ok", line)


def _tried(name: str, candidate: Candidate, judged: Judge, cpu: Engine[Any]) -> Finding:
    """Load the model, judge it, and time a step beside the CPU's."""
    try:
        engine = candidate.load()
        why = judged(engine)
        fast_ms, cpu_ms = step_ms(engine, cpu)
        found = engine.figures() if isinstance(engine, RemoteEngine) else {}
        engine.close()
    except StreamdError as error:
        return Finding("!!", f"{candidate.name}: {error}", "--compute cpu")
    if why:
        return Finding("!!", f"{candidate.name} {why}", "--compute cpu, and please report it")
    about = ""
    if found:
        memory = megabytes(int(found["memory"]))
        about = f"{found['device']}, {found['library']}, {memory} for the GPU; "
    told = f"{name} on {candidate.name} read a clip right"
    return Finding("ok", f"{about}{told}; a step {fast_ms:.0f} ms (CPU {cpu_ms:.0f})")


def _has_gpu() -> bool:
    """Whether there is one that MLX may use."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return Path("/proc/driver/nvidia/version").exists()


def _microphone(config: Config) -> Iterator[Finding]:
    try:
        devices, microphone = list_devices(), build.microphone(config)
        loudest = asyncio.run(_loudest(microphone)) if devices else 0.0
    except SourceError as error:
        yield Finding("--", str(error), "files and clients need none")
        return
    if devices:
        used = f"{len(devices)} found, {microphone.name!r} is used"
        if loudest:
            level = 20 * math.log10(loudest)
            yield Finding("ok", f"{used}; the loudest of {_LISTEN_S} s is {level:.0f} dB")
        else:
            yield Finding("!!", f"{used} and gives only silence", silence_fix())
    else:
        yield Finding("--", "none found", "connect one; files and clients need none")


async def _loudest(microphone: Source) -> float:
    """Record for a while; return the largest sample. Raises `SourceError`."""
    largest, n_left = 0.0, _LISTEN_S * 1000 // FRAME_MS
    async with microphone:
        async for item in microphone:
            if isinstance(item, Lost):
                continue
            largest = max(largest, float(np.abs(item).max()))
            n_left -= len(item)
            if n_left <= 0:
                break
    return largest


def _uploads(config: Config) -> Iterator[Finding]:
    """Say what the decoder of a recording that a client sends is kept from on this machine."""
    missing = asyncio.run(missing_confinement())
    if missing:
        fix = "" if os.geteuid() else "start streamd as another user"
        yield Finding("--", f"decoded by a process of their own, but without {missing}", fix)
    else:
        yield Finding("ok", "decoded by a process that can open no file and no connection")


def _port(config: Config) -> Iterator[Finding]:
    host, port = config.bind.host, config.bind.port
    if port is None:
        yield Finding("ok", "off, as configured")
        return
    try:
        with socket.create_server((host, port)):
            yield Finding("ok", f"{port} on {host} is free")
    except OSError as error:
        fix = f"{error.strerror}; perhaps another streamd uses it: choose another with --port"
        yield Finding("--", f"{port} on {host} cannot be opened", fix)
