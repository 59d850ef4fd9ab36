"""Ways to run a model faster than on the CPU: which there are here, and how they are judged.

What only some machines need is imported on demand.
"""

import atexit
import logging
import platform
import sys
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from subprocess import DEVNULL, PIPE, Popen
from typing import TYPE_CHECKING, Any

from streamd.config import Config
from streamd.daemon import build
from streamd.engines.golden_clips import clips, transcribed
from streamd.engines.mlx.arithmetic import Arithmetic
from streamd.engines.mlx.gpu import MlxCandidate, unavailable
from streamd.engines.precision import LIVE_WINDOW, window_timer
from streamd.engines.supervised.switchover import Candidate, FastEngine, Judge, NotFasterError
from streamd.errors import ConfigError, ModelError, how_to_install
from streamd.models.model import Model
from streamd.types import N_AUDIO_CTX
from streamd.whisper.engine import Engine, ProjectingEngine

if TYPE_CHECKING:
    from streamd.engines.coreml.package import BuiltModel

log = logging.getLogger(__name__)

CORE_ML = "coremltools"
"""As in `engines.coreml.package`, which is not imported on other machines."""
_OLDEST_MACOS = 15
"""The first that has several functions in a package."""
_NEWEST_PYTHON = (3, 14)
"""The first without wheels of coremltools 9."""
_SMALL = 512
"""The width of `base`, whose token takes two threads of a CPU 1 to 3 ms."""
_N_TIMES = 5
"""Steps that are timed on the GPU and on the CPU; the shortest counts."""


def candidates(config: Config, model: Model, cpu: Engine[Any]) -> list[Candidate]:
    """Return the ways to run this model, which was opened on the `cpu`: the first that is right.

    Call `check_compute` first.
    """
    gpu = _gpu(config, model)
    if config.decoding.compute != "ane":
        return gpu
    from streamd.engines.coreml.runtime.hybrid import CoreMLCandidate

    assert isinstance(cpu, ProjectingEngine)
    find = partial(_built, config.decoding.model)
    # Of small models, a token takes the CPU no longer, and the GPU sleeps.
    decoding = gpu if model.dims.n_text_state > _SMALL else [cpu]
    return [CoreMLCandidate(find, each, CORE_ML) for each in decoding or [cpu]]


def check_compute(config: Config) -> None:
    """Raise `ConfigError` if what `--compute` names cannot be used here."""
    compute = config.decoding.compute
    if compute == "gpu" and (why := unavailable()):
        raise ConfigError(f"{why}; or drop --compute gpu")
    if compute == "ane" and (why := core_ml_unavailable()):
        raise ConfigError(f"{why}; drop --compute ane")


def accelerates(config: Config) -> bool:
    """Return whether models may run on something faster than the CPU here."""
    compute = config.decoding.compute
    has_apple_gpu = sys.platform == "darwin" and not unavailable()
    return compute in ("gpu", "ane") or (compute == "auto" and has_apple_gpu)


def _gpu(config: Config, model: Model) -> list[Candidate]:
    """Return the ways to use the GPU."""
    o = config.decoding
    if unavailable() or not accelerates(config):
        return []
    rounded, whole = Arithmetic(bits=8), Arithmetic()
    if o.precision == "float32":
        forms = [Arithmetic("float32")]
    else:
        # 8 bits halve the time of a token, where they read the golden clips as well.
        forms = [rounded] if o.precision == "int8" else [rounded, whole]
    return [MlxCandidate(o.model, model.silence, each) for each in forms]


# -- judging --------------------------------------------------------------------------------------


def judge(config: Config, model: Model, cpu: Engine[Any], *, is_fast_enough: bool) -> Judge:
    """Return what says why an engine must not take over from the CPU.

    It must read the golden clips as they were said, or as the CPU reads them; if the CPU
    `is_fast_enough`, it must be faster, too.
    """
    decoding = replace(config.decoding, language="", task="transcribe")
    config = replace(config, decoding=decoding)

    def read(engine: Engine[Any]) -> list[str]:
        recognizer = build.recognizer(config, model, engine)
        return [transcribed(recognizer, clip) for clip in clips()]

    on_cpu = cache(partial(read, cpu))

    def judged(engine: FastEngine) -> str:
        if model.dims.n_audio_ctx == N_AUDIO_CTX:
            found = read(engine)
            if any(_letters(a) != _letters(b.text) for a, b in zip(found, clips(), strict=True)):
                for mine, other in zip(found, on_cpu(), strict=True):
                    if _letters(mine) != _letters(other):
                        return f"reads a clip as {mine!r} that the CPU reads as {other!r}"
        if is_fast_enough and config.decoding.compute == "auto":
            fast_ms, cpu_ms = step_ms(engine, cpu)
            if fast_ms >= cpu_ms:
                raise NotFasterError(f"a step takes {fast_ms:.0f} ms, on the CPU {cpu_ms:.0f}")
        return ""

    return judged


def step_ms(*engines: Engine[Any]) -> list[float]:
    """Return the time of a live stream's usual window on each engine, measured in turn."""
    # With a new window before each, since an engine may give what it kept of one to one other only.
    rounds = [[window_timer(engine, LIVE_WINDOW)() for engine in engines] for _ in range(_N_TIMES)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


# -- Core ML --------------------------------------------------------------------------------------


def core_ml_unavailable() -> str:
    """Say in a line why Core ML cannot run models here, and what to do; empty if it can."""
    if sys.platform != "darwin":
        return "Core ML exists only on macOS"
    release = platform.mac_ver()[0]
    if release and int(release.partition(".")[0]) < _OLDEST_MACOS:
        return f"Core ML models need macOS {_OLDEST_MACOS} or later; this is macOS {release}"
    if find_spec(CORE_ML) is None and sys.version_info >= _NEWEST_PYTHON:
        return f"{CORE_ML} does not exist for Python {platform.python_version()}: use 3.11 to 3.13"
    if find_spec(CORE_ML) is None:
        return f"{CORE_ML} is not installed: {how_to_install('ane')}"
    return ""


def _built(name: str) -> "BuiltModel":
    """Return a model's encoder as it was built, or build it now.

    It is built in a process of its own, which gives way to captions; its log is ours. Raises
    `ModelError` if it was not built; the log says why.
    """
    from streamd.engines.coreml.package_builder import built_model

    if found := built_model(name):
        return found
    run = "import sys; from streamd.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "models", "build", name]
    log.info("building %s for the Neural Engine while captions go on", name)
    with Popen(["nice", *command], stdout=DEVNULL, stderr=PIPE, text=True) as process:
        atexit.register(process.kill)
        for line in process.stderr or ():
            log.info("%s", line.strip().removeprefix("streamd: "))
    if found := built_model(name):
        return found
    raise ModelError(f"{name} was not built for Core ML")
