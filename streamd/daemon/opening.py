"""Opens the configured model on its engine, and moves it to a faster one while captions run.

The engine for the CPU is prepared once and mapped at later starts.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.acceleration import HERE, Hardware, accelerates, check_compute, judge, stages
from streamd.daemon.recording import FileTranscriber, RecordingTranscriber
from streamd.engines import precision
from streamd.engines.prepared import cache_key, open_engine
from streamd.engines.supervised.switchover import SwitchingEngine
from streamd.errors import ConfigError
from streamd.models import ModelDimensions, store
from streamd.models.catalog import dimensions, published_wer
from streamd.models.model import Model
from streamd.models.store.cache import StorePaths, places
from streamd.streams import Chooser
from streamd.streams.inference import WindowRecognizer
from streamd.system.heap import return_early
from streamd.types import ms_from_frames
from streamd.whisper.engine import Engine
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.vocabulary import Vocabularies

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

    For captions in real time it is one that keeps up, by an estimate that is made once, and a model
    that was made for streaming if that has fewer errors, as published, than the best Whisper.
    """
    if not config.input.realtime or config.decoding.compute == "ane":
        return store.best(here, config.decoding)

    def fits(dims: ModelDimensions) -> bool:
        return config.decoding.compute == "gpu" or keeps_up(config, dims)

    whisper = store.best(here, config.decoding, keeps_up=lambda each: fits(each.dims))
    most_wrong = published_wer(whisper) if whisper else math.inf
    streaming = store.best_family(
        here, config.decoding, most_wrong, keeps_up=lambda like: fits(dimensions(like))
    )
    return streaming or whisper


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


def family_file(config: Config) -> Path | None:
    """Return the file of the configured model if that is of another family than Whisper."""
    name, here = config.decoding.model, places()
    return store.find(name, here) if store.is_family(name, here) else None


class OpenModel(Protocol):
    """A model of any family that is open: what sessions and recordings need of it."""

    def recognizers(self) -> Recognizers:
        """Return recognizers with the phrases of all sessions. Raises `ConfigError`."""

    def chooser(self) -> Chooser:
        """Return what checks the choices of sessions and of recordings."""

    def transcriber(self, config: Config, *, is_alone: Callable[[], bool]) -> RecordingTranscriber:
        """Return what transcribes recordings with these options; see `FileTranscriber`."""

    def close(self) -> None:
        """End what it has started."""


def open_any(config: Config, known: str, *, recordings: bool = False) -> OpenModel:
    """Open the configured model, of whatever family; raises as `open_model`.

    `known` are the phrases that all sessions expect, one a line.
    """
    if path := family_file(config):
        from streamd.daemon.families import open_model_file  # few users have the library

        return open_model_file(config, path, known)
    if config.decoding.look_ahead != "auto":
        raise ConfigError(f"--look-ahead-ms: {config.decoding.model} is a Whisper, which has none")
    return OpenWhisper(config, known, *open_model(config, recordings=recordings))


class OpenWhisper:
    """See `OpenModel`."""

    def __init__(self, config: Config, known: str, model: Model, engine: Engine[Any]) -> None:
        """Raises `ConfigError`."""
        self._config, self._model, self._engine = config, model, engine
        self._expected = build.expected(config, model, known)

    def recognizers(self) -> Recognizers:
        """Return recognizers on one engine."""
        config, model = self._config, self._model
        working = set[Recognizer[Any]]()

        def new() -> Recognizer[Any]:
            lists = self._lists(config)
            return build.recognizer(config, model, self._engine, working=working, lists=lists)

        return [build.answering(new()) for _ in range(build.workers(config))], self.chooser()

    def chooser(self) -> Chooser:
        """Return what checks the choices of sessions and of recordings."""
        return build.chooser(self._config, self._model)

    def transcriber(self, config: Config, *, is_alone: Callable[[], bool]) -> FileTranscriber:
        """Return what transcribes recordings on this engine."""
        lists = self._lists(config)
        return FileTranscriber(config, self._model, self._engine, is_alone=is_alone, lists=lists)

    def close(self) -> None:
        """End the processes of other engines than the CPU's."""
        if isinstance(self._engine, SwitchingEngine):
            self._engine.close()

    def _lists(self, config: Config) -> Vocabularies:
        return build.vocabularies(config, self._model, self._expected)
