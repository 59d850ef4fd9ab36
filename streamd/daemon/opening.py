"""Opens the configured model on its engine, and moves it to a faster one while captions run.

The engine for the CPU is prepared once and mapped at later starts.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.acceleration import accelerates, candidates, check_compute, judge
from streamd.daemon.recording import FileTranscriber
from streamd.engines import Precision, memory, precision
from streamd.engines.precision import LiveCost
from streamd.engines.prepared import cache_key, open_engine
from streamd.engines.supervised.switchover import Switchover
from streamd.errors import ConfigError
from streamd.models import ModelDimensions, store
from streamd.models.catalog import dimensions, published_wer, quality
from streamd.models.model import Model, Outline
from streamd.models.store.cache import StorePaths, places
from streamd.models.store.layouts import layout_of
from streamd.streams import Chooser
from streamd.streams.auto_step import STEPS_MS
from streamd.system.disk import megabytes
from streamd.system.heap import return_early
from streamd.system.processor import memory_bytes
from streamd.types import WindowRecognizer, ms_from_frames
from streamd.whisper.engine import AnyEngine
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.vocabulary import Vocabularies

if TYPE_CHECKING:
    from streamd.daemon.families import OpenFamily

log = logging.getLogger(__name__)

MOST_BUSY = 0.6
"""The share of its processors' time that a server can use before windows are late: with 6 streams
of `base` and 12 of `tiny.en` less than 1 % of them are (benchmarks/RESULTS.md)."""


def open_model(
    config: Config, *, wait: bool = False, recordings: bool = False
) -> tuple[Model, AnyEngine]:
    """Open the configured model; return it with its engine.

    Where there is something faster than the CPU (`acceleration`), the model runs on the CPU first,
    until that is ready and right; with `wait`, this returns only then. On the CPU, the engine for
    `recordings` has half of the threads, and an urgent one all of them: two windows are computed at
    a time. Raises `ConfigError` if `--compute` cannot be used here,
    `ModelError` or `EngineError` if the model cannot.
    """
    return_early()
    o = config.decoding
    start = time.perf_counter()
    n_threads = build.threads(config)
    on_cpu = not accelerates(config)
    check_compute(config)
    known = cache_key(o.model)
    if known is not None and not memory.fits(known[2], assumed_precision(config)):
        takes, has = memory.live_bytes(known[2], assumed_precision(config)), memory_bytes()
        line = "model %s takes about %s of memory, and this machine has %s: it may be very slow"
        log.warning(line, o.model, megabytes(takes), megabytes(has))
    if recordings and o.compute == "auto" and not on_cpu:
        # Several windows at once are decoded on the CPU only, which is faster for small models.
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
    ways = [] if on_cpu else candidates(config, opened.model, opened.engine)
    if not ways:
        return opened.model, opened.engine
    switching = Switchover(opened.engine)
    enough = keeps_up(config, opened.model.dims)
    judged = judge(config, opened.model, opened.engine, is_fast_enough=enough)
    switching.start(ways, judged)
    if wait:
        switching.settled.wait()
    return opened.model, switching


def best_model(config: Config, here: StorePaths) -> str | None:
    """Return the name of the best model on this machine that suits the options, or None.

    There must be memory for it. For captions in real time it is one that keeps up, by an estimate
    that is made once, and a model that was made for streaming if that has fewer errors, as
    published, than the best Whisper.
    """

    def fits(dims: ModelDimensions) -> bool:
        return memory.fits(dims, assumed_precision(config))

    def keeps_up_here(dims: ModelDimensions) -> bool:
        return fits(dims) and (config.decoding.compute == "gpu" or keeps_up(config, dims))

    if not config.input.realtime or config.decoding.compute == "ane":
        return store.best(here, config.decoding, keeps_up=lambda each: fits(each.dims))
    whisper = store.best(here, config.decoding, keeps_up=lambda each: keeps_up_here(each.dims))
    most_wrong = published_wer(whisper) if whisper else math.inf
    streaming = store.best_family(
        here, config.decoding, most_wrong, keeps_up=lambda like: keeps_up_here(dimensions(like))
    )
    return streaming or whisper


def larger_model(config: Config, here: StorePaths) -> str:
    """Return the largest model on this machine that suits the options, if it is larger than theirs.

    Otherwise theirs, as well if that is of another family than Whisper. There must be memory.
    """
    name = config.decoding.model
    path = store.find(name, here)
    if path is None or store.is_family(name, here):
        return name
    chosen = quality(layout_of(path).outline(path))

    def is_better(_: str, other: Outline) -> bool:
        fits = memory.fits(other.dims, assumed_precision(config))
        return fits and quality(other) > chosen

    return store.best(here, config.decoding, among=is_better) or name


def assumed_precision(config: Config) -> Precision:
    """The precision by which memory is estimated: int8, unless float32 is asked for."""
    return "float32" if config.decoding.precision == "float32" else "int8"


def keeps_up(config: Config, dims: ModelDimensions) -> bool:
    """Return whether live captions are likely not to lag with a model of these dimensions.

    An automatic step gets longer before a smaller model is taken.
    """
    return live_cost(config, dims).busy_s <= MOST_BUSY


def live_cost(config: Config, dims: ModelDimensions) -> LiveCost:
    """Estimate what a live stream takes of this machine's CPU; the longest step, if it is auto."""
    step = config.session.step
    frames = step or config.session.length  # or an utterance at a time
    step_ms = STEPS_MS[-1] if step is None else ms_from_frames(frames)
    return precision.live_cost(dims, threads=build.threads(config), step_ms=step_ms)


def n_streams(config: Config, *, rtf: float, cpu_s: float, on_cpu: bool = True) -> int:
    """Return how many streams ``streamd serve`` keeps up with on this machine.

    Each takes `rtf` seconds and `cpu_s` CPU seconds per second. A GPU computes one window at a
    time.
    """
    serving = replace(config, input=replace(config.input, source=False))
    n_workers = build.workers(serving)
    n_processors = min(os.cpu_count() or 1, n_workers * build.threads(serving))
    # The time counts where the process waits for another processor.
    busy = max(cpu_s / n_processors, rtf / n_workers if on_cpu else rtf)
    return max(int(MOST_BUSY / busy), int(rtf < 1))


def with_capacity(config: Config) -> Config:
    """Return the configuration with a number of streams where that is automatic.

    It follows from the estimate by which the model is chosen; on a GPU, or for a model that needs
    no estimate, the usual number holds.
    """
    if config.limits.max_streams is not None:
        return config
    most, known = config.limits.most_streams, cache_key(config.decoding.model)
    if known is not None and not accelerates(config):
        serving = replace(config, input=replace(config.input, source=False))
        cost = live_cost(serving, known[2])
        if cost.busy_s:
            most = max(1, n_streams(config, rtf=cost.busy_s, cpu_s=cost.cpu_s))
    log.info("--max-streams auto: clients that may send audio at a time: %d", most)
    return replace(config, limits=replace(config.limits, max_streams=most))


Recognizers = tuple[Sequence[WindowRecognizer], Chooser]
"""A recognizer for each worker, and what checks the choices of sessions."""


def family_file(config: Config) -> Path | None:
    """Return the file of the configured model if that is of another family than Whisper."""
    name, here = config.decoding.model, places()
    return store.find(name, here) if store.is_family(name, here) else None


def open_any(config: Config, *, recordings: bool = False) -> "OpenModel":
    """Open the configured model, of whatever family; raises as `open_model`."""
    if path := family_file(config):
        from streamd.daemon.families import open_model_file  # few users have the library

        return open_model_file(config, path)
    check_look_ahead(config)
    return OpenWhisper(config, *open_model(config, recordings=recordings))


def check_look_ahead(config: Config) -> None:
    """Raise `ConfigError` for an option that a Whisper lacks."""
    if config.decoding.look_ahead != "auto":
        raise ConfigError(f"--look-ahead-ms: {config.decoding.model} is a Whisper, which has none")


class OpenWhisper:
    """A Whisper that is open: what sessions and recordings need of it."""

    def __init__(self, config: Config, model: Model, engine: AnyEngine) -> None:
        """Closes the engine if it raises, as `ConfigError`."""
        self._config, self.model, self.engine = config, model, engine
        self.name = model.name
        try:
            words = build.tokenizer(config, model)
            # Compiled once for all recognizers.
            self._expected = Vocabularies(words).of(config.decoding.expected)
        except BaseException:
            self.close()
            raise

    def recognizers(self) -> Recognizers:
        """Return recognizers on one engine."""
        working = set[Recognizer[Any]]()
        new = partial(build.recognizer, self._config, self.model, self.engine, working=working)
        every = (new(expected=self._expected) for _ in range(build.workers(self._config)))
        return [*map(build.answering, every)], self.chooser()

    def chooser(self) -> Chooser:
        """Return what checks the choices of sessions and of recordings."""
        return build.chooser(self._config, self.model)

    def transcriber(self, config: Config, *, is_alone: Callable[[], bool]) -> FileTranscriber:
        """Return what transcribes recordings on this engine."""
        runs, expected = (self.model, self.engine), self._expected
        return FileTranscriber(config, *runs, is_alone=is_alone, expected=expected)

    def wait(self, load_s: float) -> None:
        """Wait for a faster engine than the CPU's, until `load_s` after it began to load."""
        if isinstance(self.engine, Switchover):
            self.engine.wait(load_s)

    def close(self) -> None:
        """End the processes of other engines than the CPU's."""
        if isinstance(self.engine, Switchover):
            self.engine.close()


OpenModel: TypeAlias = "OpenWhisper | OpenFamily"
"""A model of any family that is open."""
