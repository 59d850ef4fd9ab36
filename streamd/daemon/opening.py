"""Opens the configured model on its engine, and moves it to a faster one while captions run.

The engine for the CPU is prepared once and mapped at later starts.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.acceleration import HERE, Hardware, accelerates, check_compute, judge, stages
from streamd.engines import precision
from streamd.engines.prepared import cache_key, open_engine
from streamd.engines.supervised.switchover import SwitchingEngine
from streamd.models import ModelDimensions, store
from streamd.models.model import Model
from streamd.models.store.cache import StorePaths
from streamd.streams import Chooser
from streamd.streams.inference import WindowRecognizer
from streamd.system.heap import return_early
from streamd.types import ms_from_frames
from streamd.whisper.engine import Engine
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.vocabulary import Vocabulary

log = logging.getLogger(__name__)

MOST_BUSY = 0.6
"""The share of its processors' time that a server can use before windows are late: with 6 streams
of `base` and 12 of `tiny.en` less than 1 % of them are (benchmarks/RESULTS.md)."""


def open_model(
    config: Config,
    *,
    wait: bool = False,
    hardware: Hardware = HERE,
    recordings: bool = False,
) -> tuple[Model, Engine[Any]]:
    """Open the configured model; return it with its engine.

    Where there is something faster than the CPU (`acceleration`), the model runs on the CPU first,
    until that is ready and right; for `recordings`, and with `wait`, this returns only then. On the
    CPU, the engine for `recordings` has half of the threads, and an urgent one all of them: two
    windows are computed at a time. Raises `ConfigError` if `--compute` cannot be used here,
    `ModelError` or `EngineError` if the model cannot.
    """
    return_early()
    o = config.decoding
    start = time.perf_counter()
    n_threads = build.threads(config)
    on_cpu = not accelerates(config)
    check_compute(config, hardware)
    if recordings and o.compute == "auto" and not on_cpu:
        # Several windows at once are decoded on the CPU only, which is faster for small models.
        known = cache_key(o.model)
        on_cpu = known is not None and keeps_up(config, known[2])
    opened = open_engine(
        o.model,
        threads=max(1, n_threads // 2) if recordings else n_threads,
        precision=o.precision,
        urgent_threads=build.urgent_threads(config),
        recordings=recordings,
    )
    seconds = time.perf_counter() - start
    name = opened.model.name
    log.log(
        logging.DEBUG if opened.how == "prepared" else logging.INFO,
        f"model {name} ready in {seconds:.1f} s ({opened.precision}, {opened.how})",
    )
    ways = [] if on_cpu else stages(config, opened.model, opened.engine, hardware)
    if not ways:
        return opened.model, opened.engine
    switching = SwitchingEngine(opened.engine)
    enough = keeps_up(config, opened.model.dims)
    judged = judge(config, opened.model, opened.engine, is_fast_enough=enough)
    switching.start(ways, judged)
    if wait or recordings:
        switching.settled.wait()
    return opened.model, switching


def best_model(config: Config, here: StorePaths) -> str | None:
    """Return the name of the best model on this machine that suits the options, or None.

    For captions in real time it is one that keeps up, by an estimate that is made once.
    """
    if not config.input.realtime or config.decoding.compute in ("gpu", "ane"):
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


Recognizers = tuple[Sequence[WindowRecognizer], Chooser]
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
