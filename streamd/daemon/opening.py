"""Opens the configured model on its engine, and moves it to Core ML while captions run.

The engine is prepared once and mapped at later starts. What only Macs need is imported on demand.
"""

import atexit
import logging
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from subprocess import PIPE, Popen
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from streamd.config import Config
from streamd.daemon import build
from streamd.engines import precision
from streamd.engines.prepared import open_engine
from streamd.engines.voices import Listener
from streamd.errors import ConfigError, ModelError
from streamd.models import ModelDimensions, store
from streamd.models.model import Model
from streamd.models.store.cache import StorePaths
from streamd.streams import Chooser
from streamd.system.heap import return_early
from streamd.types import ms_from_frames
from streamd.whisper.engine import Engine
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.vocabulary import Vocabulary

if TYPE_CHECKING:
    from streamd.engines.coreml.package import BuiltModel

log = logging.getLogger(__name__)

LIBRARY = "coremltools"
"""As in `engine.coreml.package`, which is not imported on other machines."""
_OLDEST_MACOS = 15
"""The first with states, which the packages use."""
_NEWEST_PYTHON = (3, 14)
"""The first without wheels of coremltools 9."""
_OLDEST_LIBRARY = 9
"""The first with ``MLState.write_state``."""


MOST_BUSY = 0.6
"""The share of its processors' time that a server can use before windows are late: with 6 streams
of `base` and 12 of `tiny.en` less than 1 % of them are (benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True)
class CoreML:
    """The module that runs Core ML; one other than coremltools needs no Mac.

    `answer_s`: how long a worker may take for a pass before it counts as hung.
    """

    library: str = LIBRARY
    answer_s: float = 20.0


def open_model(
    config: Config,
    *,
    wait_for_core_ml: bool = False,
    core_ml: CoreML | None = None,
    recordings: bool = False,
) -> tuple[Model, Engine[Any]]:
    """Open the configured model; return it with its engine.

    On a Mac, a model that is built for Core ML, or is to be built now, runs on the CPU first, until
    Core ML is ready; with `wait_for_core_ml` this returns only then, for measurements. On the
    CPU, the engine for `recordings` has half of the threads, and an urgent one all of them: two
    windows are computed at a time. Raises `ConfigError` if the configured engine cannot be used
    here, `ModelError` or `EngineError` if the model cannot.
    """
    return_early()
    o = config.decoding
    core_ml = core_ml or CoreML()
    builds = config.build.missing and lacks_packages(config, core_ml)
    built = None if builds else built_for_core_ml(config, core_ml)
    start = time.perf_counter()
    n_threads, on_cpu = build.threads(config), built is None and not builds
    opened = open_engine(
        o.model,
        threads=max(1, n_threads // 2) if recordings and on_cpu else n_threads,
        precision=o.precision,
        urgent_threads=build.urgent_threads(config) if on_cpu else 0,
        recordings=recordings,
    )
    seconds = time.perf_counter() - start
    name = opened.model.name
    log.log(
        logging.DEBUG if opened.how == "prepared" else logging.INFO,
        f"model {name} ready in {seconds:.1f} s ({opened.precision}, {opened.how})",
    )
    if on_cpu:
        return opened.model, opened.engine
    engine = _with_core_ml(
        config, opened.engine, built, core_ml=core_ml, wait_for_core_ml=wait_for_core_ml
    )
    return opened.model, engine


def best_model(config: Config, here: StorePaths) -> str | None:
    """Return the name of the best model on this machine that suits the options, or None.

    For captions in real time it is one that keeps up, by an estimate that is made once.
    """
    if not config.input.realtime or _may_use_core_ml(config):
        return store.best(here, config.decoding)
    return store.best(here, config.decoding, keeps_up=lambda each: keeps_up(config, each.dims))


def keeps_up(config: Config, dims: ModelDimensions) -> bool:
    """Return whether live captions are likely not to lag with a model of these dimensions."""
    return live_cpu_s(config, dims) <= MOST_BUSY * build.threads(config)


def live_cpu_s(config: Config, dims: ModelDimensions) -> float:
    """Estimate the CPU seconds per second of a live stream on this machine's CPU."""
    step = config.session.step or config.session.length  # or an utterance at a time
    threads = build.threads(config)
    return precision.live_cpu_s(dims, threads=threads, step_ms=ms_from_frames(step))


def _may_use_core_ml(config: Config) -> bool:
    o = config.decoding
    return o.engine != "onnx" and o.compute != "cpu" and not unavailable()


Recognizers = tuple[list[Listener], Chooser]
"""A recognizer for each worker, and what checks the choices of sessions."""


def recognizers(
    config: Config, model: Model, engine: Engine[Any], expected: Vocabulary | None
) -> Recognizers:
    """Return recognizers on one engine, with the phrases of all sessions. Raises `ConfigError`."""
    working = set[Recognizer[Any]]()

    def new() -> Recognizer[Any]:
        lists = build.vocabularies(config, model, expected)
        return build.recognizer(config, model, engine, working=working, lists=lists)

    workers = [build.answering(new()) for _ in range(build.workers(config))]
    return workers, build.chooser(config, model)


def built_for_core_ml(config: Config, core_ml: CoreML) -> "BuiltModel | None":
    """Return the built form of the configured model if Core ML is to run it; None: the CPU does.

    If Core ML was asked for and cannot run here, raises `ConfigError`; if the model is not built
    for it, or damaged, `ModelError`.
    """
    o = config.decoding
    asked = _asked(config)
    if o.engine == "onnx" or o.compute == "cpu":
        return None
    if sys.platform != "darwin" and core_ml.library == LIBRARY:
        if asked:
            raise ConfigError(f"{unavailable()}; drop {asked}")
        return None
    why = unavailable(core_ml.library)
    if not why:
        from streamd.engines.coreml.package_builder import built_model

        if found := built_model(o.model):
            return found
        command = f"streamd models build {o.model} --engine coreml"
        why = f"{o.model} is not built for Core ML: {command}"
    if asked:
        raise ModelError(f"{asked}: {why}")
    log.info("on the CPU: %s", why)
    return None


def lacks_packages(config: Config, core_ml: CoreML) -> bool:
    """Whether Core ML could run the model, had it been built; `ModelError` if it is damaged."""
    o = config.decoding
    wanted = o.engine in ("auto", "coreml") and o.compute != "cpu"
    if not wanted or unavailable(core_ml.library):
        return False
    from streamd.engines.coreml.package_builder import built_model

    return built_model(o.model) is None


def unavailable(library: str = LIBRARY) -> str:
    """Say in a line why Core ML cannot run models here, and what to do; empty if it can."""
    if sys.platform != "darwin" and library == LIBRARY:
        return "Core ML exists only on macOS"
    release = platform.mac_ver()[0]
    if release and int(release.partition(".")[0]) < _OLDEST_MACOS:
        return f"Core ML models need macOS {_OLDEST_MACOS} or later; this is macOS {release}"
    if find_spec(library) is None and sys.version_info >= _NEWEST_PYTHON:
        return f"{library} does not exist for Python {platform.python_version()}: use 3.11 to 3.13"
    if find_spec(library) is None:
        return f"{library} is not installed: pip install {library}"
    if library == LIBRARY and int(version(library).partition(".")[0]) < _OLDEST_LIBRARY:
        return f"{library} {version(library)} is too old: pip install '{library}>=9.0'"
    return ""


def _asked(config: Config) -> str:
    """Return the option that asks for Core ML, if one does. Raises `ConfigError`."""
    o = config.decoding
    if o.engine == "coreml":
        if o.compute == "cpu":
            raise ConfigError("--engine coreml cannot run on the CPU alone; drop --compute cpu")
        return "--engine coreml"
    if o.compute not in ("ane", "gpu"):
        return ""
    if o.engine != "auto":
        raise ConfigError(f"--compute {o.compute} needs Core ML; drop --engine {o.engine}")
    return f"--compute {o.compute}"


def _with_core_ml(
    config: Config,
    engine: Engine[Any],
    built: "BuiltModel | None",
    *,
    core_ml: CoreML,
    wait_for_core_ml: bool,
) -> Engine[Any]:
    """Return an engine that starts as `engine` and switches to Core ML where that is right.

    Without `built` the model is built first. With `wait_for_core_ml` this returns when Core
    ML serves or was rejected, which may take minutes.
    """
    from streamd.engines.coreml.runtime.core_ml_engine import WorkerLimits
    from streamd.engines.coreml.runtime.programs import PLACEMENTS, Unit
    from streamd.engines.coreml.runtime.switchover import (
        SwitchingEngine,
        make_compiled_folder,
        take_over,
    )
    from streamd.engines.coreml.runtime.worker import Job

    switching, stopped = SwitchingEngine(engine), Event()
    limits = WorkerLimits(answer_s=core_ml.answer_s)
    unit: Unit = "ane" if config.decoding.compute == "ane" else "gpu"

    def run() -> None:
        try:
            found = built or _build(config.decoding.model)
            compiled, first = make_compiled_folder(found), PLACEMENTS[unit][0]
            job = Job(found, compiled, first, core_ml.library)
            # Handlers run in reverse order. The one that kills the workers was registered when
            # their module was imported, so this one runs first, and their end is not taken for a
            # failure of Core ML.
            atexit.register(stopped.set)
            take_over(switching, job, unit, limits=limits, is_stopped=stopped.is_set)
        except ModelError as error:
            log.warning("on the CPU: %s", error)

    thread = Thread(target=run, name="core-ml", daemon=True)
    thread.start()
    if wait_for_core_ml:
        thread.join()
    return switching


def _build(name: str) -> "BuiltModel":
    """Build a model in a process of its own, which gives way to captions; its log is ours.

    Raises `ModelError` if it was not built; the log says why.
    """
    from streamd.engines.coreml.package_builder import built_model

    run = "import sys; from streamd.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", run, "models", "build", name, "--engine", "coreml"]
    log.info("building %s for the GPU and the Neural Engine while captions go on", name)
    with Popen(["nice", *command], stderr=PIPE, text=True) as process:
        atexit.register(process.kill)
        for line in process.stderr or ():
            log.info("%s", line.strip().removeprefix("streamd: "))
    if found := built_model(name):
        return found
    raise ModelError(f"{name} was not built for Core ML")
