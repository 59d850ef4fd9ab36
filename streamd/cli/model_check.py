"""``streamd models check NAME``: checks whether a model works, and measures its speed."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamd.cli.bench import StreamCost, measure, n_edits, spoken
from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.families import open_model_file
from streamd.daemon.opening import OpenWhisper, family_file, open_model
from streamd.daemon.phrases import with_vocabulary
from streamd.engines.golden_clips import GoldenClip, clips, read_by_whisper, transcribed
from streamd.engines.precision import choose_precision
from streamd.engines.supervised.switchover import Switchover
from streamd.errors import ModelError
from streamd.models.formats.gguf import speech_family
from streamd.models.model import Model
from streamd.models.store import find, in_one_form, load_model
from streamd.models.store.cache import places
from streamd.system.disk import megabytes
from streamd.types import FRAME_MS, N_AUDIO_CTX
from streamd.whisper.engine import AnyEngine
from streamd.whisper.recognizer import Recognizer

log = logging.getLogger(__name__)

MAX_WRONG = 0.5
"""Share of the clips' words that may differ from the expected text; `tiny.en` gets 2 of 33 of what
was said wrong."""
_PATIENCE_S = 3.0
"""How long the speed is measured."""


def report(config: Config) -> Iterator[str]:
    """Check the configured model, and yield the lines of a report.

    Raises `ModelError` if it cannot be loaded or fails the check, `EngineError` if the runtime
    refuses it.
    """
    name = in_one_form(config.decoding.model, places())
    config = with_vocabulary(replace(config, decoding=replace(config.decoding, model=name)))
    log.info("%s: loading", name)
    if path := family_file(config):
        yield from _family_report(config, path)
        return
    model = load_model(name)  # all of it: a prepared model is opened without its files
    begun_s = time.perf_counter()
    opened, engine = open_model(config, wait=True)
    opened_s = time.perf_counter() - begun_s
    asked, threads = config.decoding.precision, build.threads(config)
    where = engine.name if isinstance(engine, Switchover) else ""
    if config.decoding.compute == "gpu" and not where:
        raise ModelError(f"{name} is not on the GPU; the log says why")
    precision = where or choose_precision(model.dims, asked, threads=threads).precision
    yield from _facts(model)
    yield line("opened", f"{precision} in {opened_s:.2f} s")
    if model.dims.n_audio_ctx < N_AUDIO_CTX:
        ms = model.dims.n_audio_ctx * FRAME_MS
        yield line("clips", f"not played: the model hears only {ms} ms at once")
        return
    log.info("%s: listening to %d clips", name, len(clips()))
    yield from judged(name, hear(name, listener(config, opened, engine)), precision)
    log.info("%s: measuring its speed", name)
    yield from _speed(measure(config, OpenWhisper(config, opened, engine), within_s=_PATIENCE_S))


def _family_report(config: Config, path: Path) -> Iterator[str]:
    name, header, begun_s = config.decoding.model, speech_family(path), time.perf_counter()
    opened = open_model_file(config, path)
    opened_s, able = time.perf_counter() - begun_s, opened.family.abilities
    yield line("model", f"{able.variant}, {header.family}, {megabytes(path.stat().st_size)}")
    yield line("languages", ", ".join(able.languages) or "unknown")
    yield line("live", "a stream" if able.streams else "an utterance anew in each step")
    yield line("opened", f"{able.device} in {opened_s:.2f} s")
    (recognizer, *_), _ = opened.recognizers()
    heard = (HeardClip(clip, clip.text, transcribed(recognizer, clip)) for clip in clips())
    try:
        yield from judged(name, heard, able.device)
        yield from _speed(measure(config, opened, within_s=_PATIENCE_S))
    finally:
        opened.close()


def listener(config: Config, model: Model, engine: AnyEngine) -> Recognizer[Any]:
    """Return a recognizer for clips that are known to be speech.

    With the live filters, eight seconds of digits in one window pass for something that is not.
    """
    search = replace(config.search, no_speech_threshold=1.0)
    return build.recognizer(replace(config, search=search), model, engine)


@dataclass(frozen=True, slots=True)
class HeardClip:
    """A clip, and what a model made of it.

    `expected` is openai-whisper's text if the weights are the bundled ones, else what was said.
    """

    clip: GoldenClip
    expected: str
    text: str

    @property
    def n_words(self) -> int:
        """The number of expected words."""
        return len(spoken(self.expected))

    @property
    def n_wrong(self) -> int:
        """How many words are missing, added, or others, whatever their spelling."""
        return n_edits(spoken(self.expected), spoken(self.text))


def hear(name: str, recognizer: Recognizer[Any]) -> Iterator[HeardClip]:
    """Transcribe the bundled clips with the model of this name."""
    folder = find(name, places())
    known = read_by_whisper(folder) if folder else {}
    for clip in clips():
        yield HeardClip(clip, known.get(clip.name, clip.text), transcribed(recognizer, clip))


def judged(name: str, heard: Iterator[HeardClip], precision: str) -> Iterator[str]:
    """Describe what was heard; raises `ModelError` if too much of it is wrong."""
    n_words = n_wrong = 0
    for each in heard:
        yield line(f"hears {each.clip.name}", each.text or "nothing")
        yield line("", f"expected: {each.expected}")
        n_words += each.n_words
        n_wrong += each.n_wrong
    yield line("wrong words", f"{n_wrong} of {n_words} in {precision}")
    if n_wrong > MAX_WRONG * n_words:
        fix = "use --precision float32" if precision == "int8" else "get its files again"
        raise ModelError(
            f"{name} fails its check: {n_wrong} of {n_words} words of English clips are wrong in "
            f"{precision}; {fix}, unless it was made for another language"
        )


def _facts(model: Model) -> Iterator[str]:
    dims, n = model.dims, sum(array.size for array in model.weights.values())
    yield line("model", model.name)
    encoder = f"{dims.n_audio_layer} layers of {dims.n_audio_state}, {dims.n_audio_head} heads"
    decoder = f"{dims.n_text_layer} of {dims.n_text_state}, {dims.n_text_head}"
    yield line("dimensions", f"{dims.n_mels} mel bands; encoder {encoder}; decoder {decoder}")
    languages = "many languages" if model.language is None else model.language
    yield line("vocabulary", f"{dims.n_vocab} tokens, {languages}")
    yield line("parameters", f"{n / 1e6:.1f} million, {4 * n / 2**20:.0f} MB in float32")


def _speed(cost: StreamCost) -> Iterator[str]:
    yield line("a live window", f"{cost.median_ms:.0f} ms, its encoder {cost.encode_ms:.0f} ms")
    yield line("a live stream", f"{cost.cpu_s:.2f} CPU seconds per second; rtf {cost.rtf:.2f}")
    verdict = f"{cost.model} works, and keeps up with speech here"
    if cost.rtf > 1:
        verdict = (
            f"{cost.model} works, but slower than speech: use a smaller one, or a longer --step"
        )
    yield line("verdict", verdict)


def line(name: str, value: str) -> str:
    """Format a line of the report."""
    return f"{name:20} {value}"
