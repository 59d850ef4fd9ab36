"""``streamd models check NAME``: whether a model works, and what it costs, on this machine."""

import logging
import time
from collections.abc import Iterator
from typing import Any

from streamd.bench.script import ScriptedRecognizer
from streamd.bench.step import StepTimes, measure_encoder, measure_steps
from streamd.bench.words import n_edits, spoken
from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engine import Engine, ModelDimensions
from streamd.engine.check import (
    FLOAT16_MAX,
    Numerics,
    Peak,
    as_golden,
    clips,
    compare,
    golden_cases,
)
from streamd.engine.model import Model
from streamd.engine.prepared.precision import choose_precision
from streamd.engine.reference import ReferenceEngine
from streamd.engine.store import find, load_model
from streamd.engine.store.places import places
from streamd.errors import ModelError
from streamd.types import FRAME, FRAME_MS, N_AUDIO_CTX, Window, text_of

log = logging.getLogger(__name__)

_FARTHEST = {"float32": 1e-3, "int8": 0.15}
"""How far the logits may be from the reference's, by precision; rounding to int8 moves those of
random weights by 0.02 to 0.03."""
_N_STEPS = 3
_PATIENCE_MS = 5_000
"""What may take longer is not measured."""
_STEP_MS = 500


def report(config: Config) -> Iterator[str]:
    """Check the configured model, and tell line by line what was found.

    Raises
    ------
    ModelError : it cannot be loaded, or computes what it should not
    EngineError : the runtime refuses it
    """
    name = config.decoding.model
    log.info("%s: loading", name)
    model = load_model(name)
    begun_s = time.perf_counter()
    _, engine = open_model(config)
    opened_s = time.perf_counter() - begun_s
    tokenizer = build.tokenizer(config, model)
    asked = "float32" if config.decoding.engine == "reference" else config.decoding.precision
    precision = choose_precision(model.dims, asked, threads=build.threads(config)).precision
    yield from _facts(model)
    yield line("opened", f"{precision} in {opened_s:.2f} s")
    yield from _golden(name, model, engine, precision=precision, config=config)
    log.info("%s: comparing it with the reference", name)
    numerics, peaks = compare(model, engine, tokenizer)
    yield from judged(name, numerics, peaks, precision)
    if model.dims.n_audio_ctx < N_AUDIO_CTX:
        ms = model.dims.n_audio_ctx * FRAME_MS
        yield line("speed", f"not measured, no clip played: it hears only {ms} ms at once")
        return
    log.info("%s: listening to %d clips", name, len(clips()))
    yield from _heard(config, model, engine)
    log.info("%s: measuring its speed", name)
    live = ScriptedRecognizer(engine, tokenizer, build.decoding_options(config, model))
    yield from _speed(engine, measure_steps(live, n_steps=_N_STEPS))


def _facts(model: Model) -> Iterator[str]:
    dims, n = model.dims, sum(array.size for array in model.weights.values())
    yield line("model", model.name)
    yield line("dimensions", _shape(dims))
    languages = "many languages" if model.language is None else model.language
    yield line("vocabulary", f"{dims.n_vocab} tokens, {languages}")
    yield line("parameters", f"{n / 1e6:.1f} million, {4 * n / 2**20:.0f} MB in float32")


def _shape(dims: ModelDimensions) -> str:
    return (
        f"{dims.n_mels} mel bands; encoder {dims.n_audio_layer} layers of {dims.n_audio_state}, "
        f"{dims.n_audio_head} heads; decoder {dims.n_text_layer} of {dims.n_text_state}, "
        f"{dims.n_text_head}"
    )


def _golden(
    name: str, model: Model, engine: Engine[Any], *, precision: str, config: Config
) -> Iterator[str]:
    """Only the demo model has golden vectors; the reference must reproduce them all."""
    path = find(name, places())
    file = path / "model.safetensors" if path and path.is_dir() else None
    cases = golden_cases(file) if file and file.is_file() else []
    if not cases:
        yield line("golden vectors", "none for these weights")
        return
    tokenizer = build.tokenizer(config, model)
    exact = ReferenceEngine(model.dims, model.weights, alignment_heads=model.alignment_heads)
    wrong = as_golden(exact, tokenizer, cases).count(False)
    if wrong:
        raise ModelError(
            f"{name} fails its check: {wrong} of {len(cases)} golden decodes differ in the "
            "reference engine; install streamd again"
        )
    n_same = sum(as_golden(engine, tokenizer, cases))
    yield line("golden vectors", f"all {len(cases)} in the reference, {n_same} in {precision}")
    if precision == "float32" and n_same < len(cases):
        raise ModelError(
            f"{name} fails its check: {len(cases) - n_same} of {len(cases)} golden decodes differ; "
            "try another version of onnxruntime"
        )


def judged(name: str, found: Numerics, peaks: list[Peak], precision: str) -> Iterator[str]:
    """The comparison with the reference in words. Raises `ModelError` if it is too far away."""
    yield line(
        "against numpy",
        f"logits {found.logits:.2g}, alignment {found.alignment:.2g} (relative); "
        f"the same choice at {found.agreed:.0%} of the places",
    )
    if not found.logits <= _FARTHEST[precision]:
        raise ModelError(
            f"{name} fails its check: its logits in {precision} are {found.logits:.2g} from the "
            f"reference's, more than {_FARTHEST[precision]:g}; try --precision float32"
        )
    for part in ("encoder", "decoder"):
        top = max((p for p in peaks if p.where.startswith(part)), key=lambda peak: peak.value)
        yield line(f"largest in {part}", f"{top.value:.4g} in {top.where}")
        if top.value > FLOAT16_MAX:
            yield line("", f"! float16 holds only {FLOAT16_MAX:.0f}: half precision would fail")


def _heard(config: Config, model: Model, engine: Engine[Any]) -> Iterator[str]:
    recognizer = build.recognizer(config, model, engine)
    n_wrong = n_words = 0
    for clip in clips():
        n = len(clip.samples) // FRAME
        window = Window(0, n, clip.samples[: n * FRAME], last=True)
        text = text_of(recognizer.recognize(window).words)
        said = spoken(clip.text)
        n_wrong, n_words = n_wrong + n_edits(said, spoken(text)), n_words + len(said)
        yield line(f"hears {clip.name}", text or "nothing")
        yield line("", f"said: {clip.text}")
    yield line("wrong words", f"{n_wrong} of {n_words}")


def _speed(engine: Engine[Any], step: StepTimes) -> Iterator[str]:
    n_ctx = engine.dims.n_audio_ctx
    yield line("encoder", f"{step.encode_ms:.0f} ms at context {step.n_ctx}")
    if 2 * step.encode_ms * n_ctx / step.n_ctx < _PATIENCE_MS:
        yield line("", f"{measure_encoder(engine, n_ctx, n=1):.0f} ms at context {n_ctx}")
    yield line(
        "a step of 500 ms",
        f"{step.step_ms:.0f} ms for 5 s of audio and {step.tokens} tokens: "
        f"rtf {step.step_ms / _STEP_MS:.2f}",
    )
    if step.step_ms > _STEP_MS:
        yield line(
            "", f"! slower than speech; --step {-(-step.step_ms * 1.2 // 100) * 100:.0f} is not"
        )


def line(name: str, value: str) -> str:
    """What is found of what."""
    return f"{name:20} {value}"
