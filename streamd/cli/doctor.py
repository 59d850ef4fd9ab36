"""``streamd doctor``: what there is on this machine, and how to get what is missing."""

import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import streamd
from streamd.assets import asset
from streamd.cli.choosing import best_here
from streamd.config import OPTIONS, SETTINGS, Config, value_of
from streamd.daemon import build
from streamd.daemon.opening import LIBRARY, CoreML, built_for_core_ml
from streamd.disk import CACHE_VARIABLE, cache_folder, megabytes
from streamd.engine import store
from streamd.engine.catalog import dimensions
from streamd.engine.check import compare, contexts_in_use
from streamd.engine.prepared.precision import choose_precision
from streamd.engine.store import cache, imports
from streamd.engine.store.cache import places
from streamd.errors import StreamdError
from streamd.options import DecodingOptions
from streamd.processor import machine
from streamd.sources.microphone import list_devices

_PACKAGES = ("onnxruntime", "numpy", "websockets", "sounddevice", "soundfile", "webrtcvad-wheels")
_USUAL = "base.en"
"""The size whose precision is told, as it is the one that people are offered."""
_FAST = ("avx2", "asimddp", "avx512_vnni", "avx_vnni", "i8mm")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: "ok"; "--", something is missing that many do without; "!!", something is wrong.

    `cure` says what to do, unless all is well.
    """

    state: Literal["ok", "--", "!!"]
    name: str
    told: str
    cure: str = ""

    def __str__(self) -> str:
        cure = f": {self.cure}" if self.cure else ""
        return f"{self.state}  {self.name:12} {self.told}{cure}"


def examine(config: Config) -> Iterator[Finding]:
    """Look at everything in turn; what raises is a finding too."""
    examinations: tuple[tuple[str, Callable[[Config], Iterator[Finding]]], ...] = (
        ("processor", _processor),
        ("versions", _versions),
        ("options", _options),
        ("files", _files),
        ("cache", _cache),
        ("engine", _engine),
        ("precision", _precision),
        ("models", _models),
        ("core ml", _core_ml),
        ("microphone", _microphone),
        ("port", _port),
        ("ffmpeg", _ffmpeg),
    )
    for name, examination in examinations:
        try:
            yield from examination(config)
        except StreamdError as error:
            yield Finding("!!", name, str(error))


def _processor(config: Config) -> Iterator[Finding]:
    found = machine()
    told = f"{found.cpu}, {found.cores} cores, load {found.load}: {' '.join(found.flags)}"
    if any(flag in found.flags for flag in _FAST) or not Path("/proc/cpuinfo").exists():
        yield Finding("ok", "processor", told)
    else:
        cure = "models will run several times slower than elsewhere; choose a small one"
        yield Finding("--", "processor", f"{found.cpu} without AVX2", cure)


def _versions(config: Config) -> Iterator[Finding]:
    found = [f"streamd {streamd.__version__}", f"Python {platform.python_version()}"]
    missing = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    yield Finding("ok", "versions", ", ".join([*found, platform.platform()]))
    if missing:
        yield Finding("!!", "versions", f"{', '.join(missing)} missing", "install streamd again")


def _options(config: Config) -> Iterator[Finding]:
    """The configuration was read, or we would not be here."""
    every = {**{name: option.field for name, option in OPTIONS.items()}, **SETTINGS}
    changed = [
        f"{name} {field.written(value)}"
        for name, field in every.items()
        if (value := value_of(config, field)) != field.default
    ]
    yield Finding("ok", "options", ", ".join(changed) or "all as they are by default")


def _files(config: Config) -> Iterator[Finding]:
    for name in (*store.BUNDLED, "golden", "web"):
        asset(name)
    yield Finding("ok", "files", "the bundled model, its check and the web page are here")


def _cache(config: Config) -> Iterator[Finding]:
    folder = cache_folder()
    if folder is None:
        cure = f"let {CACHE_VARIABLE} name a folder that only you can write to"
        yield Finding("!!", "cache", "no folder of your own, so every start is slow", cure)
        return
    n_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    yield Finding("ok", "cache", f"{folder}, {megabytes(n_bytes)}")


def _engine(config: Config) -> Iterator[Finding]:
    """The bundled model on ONNX Runtime computes what the reference does."""
    begun_s = time.perf_counter()
    model = store.load_model(store.BUNDLED[0])
    engine = build.engine(config, model)
    asked = "float32" if config.decoding.engine == "reference" else config.decoding.precision
    precision = choose_precision(model.dims, asked, threads=build.threads(config)).precision
    sounds = contexts_in_use(DecodingOptions(), model.dims.n_audio_ctx)
    (compared,), _ = compare(model, engine, build.tokenizer(config, model), sounds[:1])
    seconds = time.perf_counter() - begun_s
    told = (
        f"{model.name} loaded and compared with numpy in {seconds:.1f} s: {precision}, "
        f"{compared.numerics.kl:.1g} nats apart"
    )
    if compared.numerics.acceptable(precision):
        yield Finding("ok", "engine", told)
    else:
        yield Finding("!!", "engine", told, "try another version of onnxruntime")


def _precision(config: Config) -> Iterator[Finding]:
    choice, threads = config.decoding.precision, build.threads(config)
    verdict = choose_precision(dimensions(_USUAL), choice, threads=threads)
    told = f"{verdict.precision} for models like {_USUAL}, {threads} threads"
    if verdict.float32_ms is None or verdict.int8_ms is None:
        yield Finding("ok", "precision", f"{told}, as asked for")
    else:
        faster = verdict.float32_ms / verdict.int8_ms
        yield Finding("ok", "precision", f"{told}; int8 is {faster:.1f} times as fast as float32")


def _models(config: Config) -> Iterator[Finding]:
    here = places()
    names = [
        *(name for name, _ in imports.every(here.imported)),
        *(cache.name_of(path) or repo.id for repo, path in cache.whispers(here.cache)),
    ]
    name = config.decoding.model or best_here(config, here)
    if name and not config.decoding.model and store.is_bundled(name, here):
        name = None
    if name and store.find(name, here):
        others = f"; here too: {', '.join(sorted({*names} - {name}))}" if {*names} - {name} else ""
        yield Finding("ok", "models", f"{name} is used{others}")
    elif name:
        yield Finding("!!", "models", f"{name} is not here", f"streamd models get {name}")
    else:
        cure = f"streamd models get {_USUAL}"
        yield Finding("--", "models", f"only the bundled {store.BUNDLED[0]}, the smallest", cure)


def _core_ml(config: Config) -> Iterator[Finding]:
    """On a Mac: where each part of the model runs, and why."""
    if sys.platform != "darwin":
        return
    name = config.decoding.model or best_here(config, places()) or store.BUNDLED[0]
    decoding = replace(config.decoding, model=name)
    built = built_for_core_ml(replace(config, decoding=decoding), CoreML())
    if built is None:
        cure = f"streamd models build {name} --engine coreml, and no --compute cpu"
        yield Finding("--", "core ml", f"{name} runs on the CPU", cure)
        return
    from streamd.cli.packages import functions, trials  # only a Mac needs it

    placement, known = trials(built)
    for line in (*known, *functions(built, placement, LIBRARY)):
        yield Finding("ok", "core ml", line)


def _microphone(config: Config) -> Iterator[Finding]:
    if not config.input.source:
        yield Finding("ok", "microphone", "none wanted")
        return
    devices = list_devices()
    if devices:
        default = next((device for device in devices if device.default), devices[0])
        yield Finding("ok", "microphone", f"{len(devices)} found, {default} is used")
    else:
        cure = "plug one in, or caption files and what clients send"
        yield Finding("!!", "microphone", "none found", cure)


def _port(config: Config) -> Iterator[Finding]:
    host, port = config.bind.host, config.bind.port
    try:
        with socket.create_server((host, port)):
            yield Finding("ok", "port", f"{port} on {host} is free")
    except OSError as error:
        cure = f"{error.strerror}; another program, or another streamd: choose with --port"
        yield Finding("--", "port", f"{port} on {host} cannot be opened", cure)


def _ffmpeg(config: Config) -> Iterator[Finding]:
    if shutil.which("ffmpeg"):
        yield Finding("ok", "ffmpeg", "here, for videos and for m4a, mp4, webm and so on")
    else:
        cure = "apt install ffmpeg, dnf install ffmpeg or brew install ffmpeg"
        yield Finding(
            "--", "ffmpeg", "not here, so no videos, and no m4a, mp4, webm and so on", cure
        )
