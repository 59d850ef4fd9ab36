"""``streamd models check NAME``: checks whether a model works, and measures its speed."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamd.cli.bench import StreamCost, measure, n_edits, spoken
from streamd.config import Config
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.engines.check import (
    FLOAT16_MAX,
    MAX_DISTANCE,
    MAX_KL,
    Compared,
    GoldenClip,
    average,
    clips,
    compare,
    read_by_whisper,
    sounds,
)
from streamd.engines.prepared import choose_precision
from streamd.errors import ModelError
from streamd.models.model import Model
from streamd.models.store import find, load_model
from streamd.models.store.cache import places
from streamd.types import FRAME, FRAME_MS, N_AUDIO_CTX, Window, text_of
from streamd.whisper.engine import Engine

log = logging.getLogger(__name__)

_MAX_WORSE = 0.2
"""Share of the clips' words that may be wrong in int8 in addition to those in float32."""
_PATIENCE_S = 3.0
"""The speed is measured for so long."""


def report(config: Config) -> Iterator[str]:
    """Check the configured model, and yield the lines of a report.

    Raises `ModelError` if it cannot be loaded or fails the check, `EngineError` if the runtime
    refuses it.
    """
    name = config.decoding.model
    log.info("%s: loading", name)
    model = load_model(name)
    begun_s = time.perf_counter()
    opened, engine = open_model(config)
    model = replace(model, bank=opened.bank)
    opened_s = time.perf_counter() - begun_s
    tokenizer = build.tokenizer(config, model)
    asked = "float32" if config.decoding.engine == "reference" else config.decoding.precision
    precision = choose_precision(model.dims, asked, threads=build.threads(config)).precision
    yield from _facts(model)
    yield line("opened", f"{precision} in {opened_s:.2f} s")
    log.info("%s: comparing it with the reference", name)
    rows, peaks = compare(model, engine, tokenizer, sounds(model.dims.n_audio_ctx))
    yield from _as_whisper(name, rows[-1])
    yield from judged(name, rows, peaks, precision)
    if model.dims.n_audio_ctx < N_AUDIO_CTX:
        ms = model.dims.n_audio_ctx * FRAME_MS
        yield line("speed", f"not measured, no clip played: it hears only {ms} ms at once")
        return
    log.info("%s: listening to %d clips", name, len(clips()))
    yield from _heard(config, model, engine)
    log.info("%s: measuring its speed", name)
    yield from _speed(measure(config, model, engine, within_s=_PATIENCE_S))


def _facts(model: Model) -> Iterator[str]:
    dims, n = model.dims, sum(array.size for array in model.weights.values())
    yield line("model", model.name)
    encoder = f"{dims.n_audio_layer} layers of {dims.n_audio_state}, {dims.n_audio_head} heads"
    decoder = f"{dims.n_text_layer} of {dims.n_text_state}, {dims.n_text_head}"
    yield line("dimensions", f"{dims.n_mels} mel bands; encoder {encoder}; decoder {decoder}")
    languages = "many languages" if model.language is None else model.language
    yield line("vocabulary", f"{dims.n_vocab} tokens, {languages}")
    yield line("parameters", f"{n / 1e6:.1f} million, {4 * n / 2**20:.0f} MB in float32")


def _as_whisper(name: str, full: Compared) -> Iterator[str]:
    """Compare the reference's text at full context with openai-whisper's, if that is known."""
    path = find(name, places())
    file = path / "model.safetensors" if path and path.is_dir() else None
    wanted = read_by_whisper(file).get(full.clip.name) if file and file.is_file() else None
    if wanted is None:
        yield line("openai-whisper", "nothing to compare with: not the bundled weights")
    elif wanted == full.expected:
        yield line("openai-whisper", f"reads {full.clip.name} as the reference does")
    else:
        raise ModelError(
            f"{name} fails its check: the reference reads {full.expected!r} where openai-whisper "
            f"reads {wanted!r}; install streamd again"
        )


def judged(
    name: str, rows: Sequence[Compared], peaks: Mapping[str, float], precision: str
) -> Iterator[str]:
    """Describe the comparison with the reference; raises `ModelError` if it is too far off."""
    yield from map(_described, rows)
    off = average([row.numerics for row in rows])
    yield line("mean", f"KL {off.kl:.2g} nats per token, logits {off.logits:.2g}")
    fitting = [row for row in rows if row.fits]
    n_words = sum(len(spoken(row.clip.text)) for row in fitting)
    n_found = sum(_n_wrong(row.clip, row.found) for row in fitting)
    n_expected = sum(_n_wrong(row.clip, row.expected) for row in fitting)
    if fitting:
        yield line(
            "wrong words", f"{n_found} of {n_words} in {precision}, {n_expected} in the reference"
        )
    fix = "use --precision float32" if precision == "int8" else "try another onnxruntime"
    if not off.acceptable(precision):
        distance = f"relative distance {off.logits:.2g}, more than {MAX_DISTANCE:g}"
        if precision == "int8":
            distance = f"KL {off.kl:.2g}, more than {MAX_KL:g}"
        raise ModelError(
            f"{name} fails its check: what it computes in {precision} is too far from the "
            f"reference ({distance}); {fix}"
        )
    if n_found - n_expected > _MAX_WORSE * n_words:
        raise ModelError(
            f"{name} fails its check: {n_found} of {n_words} words are wrong in {precision}, "
            f"{n_expected} in the reference; {fix}"
        )
    yield from _largest(peaks)


def _described(row: Compared) -> str:
    found = row.numerics
    return line(
        "against float32",
        f"{row.clip.name}{' at full context' if row.whole else ''}: KL {found.kl:.2g}, "
        f"logits {found.logits:.2g}, alignment {found.alignment:.2g}; "
        f"{found.agreed:.0%} of the tokens the same",
    )


def _largest(peaks: Mapping[str, float]) -> Iterator[str]:
    for part in ("encoder", "decoder"):
        where = max((name for name in peaks if name.startswith(part)), key=peaks.__getitem__)
        yield line(f"largest in {part}", f"{peaks[where]:.4g} in {where}")
        if peaks[where] > FLOAT16_MAX:
            yield line("", f"! float16 holds only {FLOAT16_MAX:.0f}: half precision would fail")


def _n_wrong(clip: GoldenClip, text: str) -> int:
    return n_edits(spoken(clip.text), spoken(text))


def _heard(config: Config, model: Model, engine: Engine[Any]) -> Iterator[str]:
    recognizer = build.recognizer(config, model, engine)
    for clip in clips():
        n = len(clip.samples) // FRAME
        samples = clip.samples[: n * FRAME]
        window = Window(0, n, samples, last=True, language="en", detect=False)
        text = text_of(recognizer.recognize(window).words)
        n_wrong, n_words = _n_wrong(clip, text), len(spoken(clip.text))
        yield line(
            f"hears {clip.name}", f"{text or 'nothing'} ({n_wrong} of {n_words} words wrong)"
        )
        yield line("", f"said: {clip.text}")


def _speed(cost: StreamCost) -> Iterator[str]:
    yield line("a live window", f"{cost.median_ms:.0f} ms, its encoder {cost.encode_ms:.0f} ms")
    yield line("a live stream", f"{cost.cpu_s:.2f} CPU seconds per second; rtf {cost.rtf:.2f}")
    if cost.rtf > 1:
        yield line("", "! slower than speech: use a smaller model, or a longer --step")


def line(name: str, value: str) -> str:
    """Format a line of the report."""
    return f"{name:20} {value}"
