"""On models of true shapes with random weights, and the engine that ships: openai-whisper's tokens.

Vocabularies, prompts, languages and alignment heads are those of the models that people have.
"""

import gc
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamd.engine import ModelDimensions
from streamd.engine.catalog import usual_heads
from streamd.engine.model import only_language
from streamd.engine.onnx import OnnxEngine, OnnxFeatures, build
from streamd.engine.vocabulary import openai_vocabulary
from streamd.engine.weights import parameter_shapes
from streamd.mel import log_mel
from streamd.options import DecodingOptions
from streamd.search.decode import (
    Context,
    Decoded,
    decode,
    detect_language,
    needs_fallback,
    slots_needed,
    with_fallback,
)
from streamd.search.tokenizer import Tokenizer
from streamd.search.words import align
from tests.golden import load
from tests.golden.shapes import SHAPES, shaped_weights

DOCUMENT = json.loads((load.HERE / "shapes.json").read_text())
N_SAMPLED = 16


@dataclass
class Model:
    """One of the shapes, built when it is first needed and kept for the tests of this file."""

    name: str

    def __post_init__(self) -> None:
        self.dims = ModelDimensions(*SHAPES[self.name].dims)
        self._features: dict[tuple[str, int], OnnxFeatures] = {}
        self.vocabulary = openai_vocabulary(Path(self.name), self.dims.n_vocab)

    @cached_property
    def engine(self) -> OnnxEngine:
        weights = shaped_weights(SHAPES[self.name], parameter_shapes(self.dims))
        heads = usual_heads(Path(self.name), self.dims)
        return build(self.dims, weights, alignment_heads=heads, threads=1)

    def tokenizer(self, task: str = "transcribe") -> Tokenizer:
        only = only_language(self.dims)
        return Tokenizer(
            self.vocabulary,
            self.dims.n_vocab,
            multilingual=only is None,
            language=only or "de",
            task=task,
        )

    def features(self, clip: str, n_ctx: int) -> OnnxFeatures:
        if (clip, n_ctx) not in self._features:
            mel = log_mel(load.samples(clip, n_ctx), self.dims.n_mels)
            self._features[clip, n_ctx] = self.engine.encode(mel, n_ctx)
        return self._features[clip, n_ctx]

    def decode(
        self, case: dict[str, Any], *, temperature: float, rng: np.random.Generator
    ) -> Decoded:
        """As openai-whisper's options say."""
        chosen = dict(case["options"])
        tokenizer = self.tokenizer(chosen.pop("task", "transcribe"))
        options = our_options(chosen)
        features = self.features(case["clip"], case.get("n_ctx", 1500))
        context = Context(
            max_tokens=N_SAMPLED,
            prompt=tuple(chosen.get("prompt", ())),
            prefix=tuple(chosen.get("prefix", ())),
            language=chosen.get("language", tokenizer.language) or self.language(features),
        )
        n_slots = slots_needed(context, options=options, n_text_ctx=self.dims.n_text_ctx)
        return decode(
            self.engine.decoder(features, n_slots),
            tokenizer,
            options=options,
            context=context,
            temperature=temperature,
            rng=rng,
        )

    def language(self, features: OnnxFeatures) -> str:
        return next(iter(self.languages(features)))

    def languages(self, features: OnnxFeatures) -> dict[str, float]:
        return detect_language(self.engine.decoder(features, 1), self.tokenizer())


def our_options(chosen: dict[str, Any]) -> DecodingOptions:
    """openai-whisper's options as ours; times in seconds become frames."""
    ours = {
        key: chosen[key] for key in ("beam_size", "patience", "length_penalty") if key in chosen
    }
    ours |= {key: chosen[key] for key in ("best_of", "suppress_blank") if key in chosen}
    if "suppress_tokens" in chosen:
        ours["suppress_tokens"] = tuple(chosen["suppress_tokens"] or ())
    if "max_initial_timestamp" in chosen:
        seconds = chosen["max_initial_timestamp"]
        ours["max_initial_timestamp"] = None if seconds is None else round(seconds * 50)
    timestamps = not chosen.get("without_timestamps", False)
    return DecodingOptions(text_only=False, timestamps=timestamps, loops=None, **ours)


@lru_cache(maxsize=1)
def model(name: str) -> Model:
    """Only the last one is kept, since it has a quarter of a gigabyte: tests go model by model."""
    gc.collect()
    return Model(name)


def check_decode(model: Model, case: dict[str, Any]) -> None:
    found = model.decode(case, temperature=0.0, rng=np.random.default_rng(0))
    assert list(found.tokens) == case["tokens"]
    assert found.language == case["language"]
    assert found.no_speech_prob == pytest.approx(case["no_speech_prob"], rel=1e-3, abs=1e-7)
    # right behind a prefix openai-whisper forbids the end of the text, which we do not
    tolerance = 1e-2 if "prefix" in case["options"] else 1e-4
    assert found.avg_logprob == pytest.approx(case["avg_logprob"], abs=tolerance)


class Nudged(np.random.Generator):
    """Draws numbers that are a little larger or smaller."""

    def __init__(self, seed: int, by: float) -> None:
        super().__init__(np.random.PCG64(seed))  # as default_rng
        self.by = by

    def random(self, *args: Any, **kwargs: Any) -> Any:
        return np.clip(super().random(*args, **kwargs) + self.by, 0.0, np.nextafter(1.0, 0.0))


def check_sample(model: Model, case: dict[str, Any]) -> None:
    """The same numbers draw the same tokens, and the same of the samples is the best one.

    A number may fall on the border between two tokens. On which side depends on how the processor
    rounds, so either one will do.
    """
    temperature = case["options"]["temperature"]
    for by in (0.0, -1e-6, 1e-6):
        found = model.decode(case, temperature=temperature, rng=Nudged(case["seed"], by))
        if list(found.tokens) == case["tokens"]:
            break
    assert list(found.tokens) == case["tokens"]
    assert found.avg_logprob == pytest.approx(case["avg_logprob"], abs=1e-4)


def check_fallback(model: Model, case: dict[str, Any]) -> None:
    """The attempt that ``whisper.transcribe`` takes, from the same numbers."""
    rng = np.random.default_rng(case["seed"])
    options = DecodingOptions(
        compression_ratio_threshold=case["limit"], logprob_threshold=-100.0, loops=None
    )

    def attempt(temperature: float) -> Decoded:
        return model.decode(case, temperature=temperature, rng=rng)

    first = attempt(0.0)
    assert needs_fallback(first, options)
    found = with_fallback(first, attempt, options)
    assert (found.temperature, list(found.tokens)) == (case["temperature"], case["tokens"])
    assert found.compression_ratio == pytest.approx(case["compression_ratio"])
    assert found.temperature > 0


def check_language(model: Model, case: dict[str, Any]) -> None:
    probs = model.languages(model.features(case["clip"], case["n_ctx"]))
    assert next(iter(probs)) == case["language"]
    assert probs == pytest.approx(case["probs"], abs=1e-5)


def check_word_times(model: Model, case: dict[str, Any]) -> None:
    tokenizer = model.tokenizer()
    decoder = model.engine.decoder(
        model.features(case["clip"], case["n_ctx"]), len(case["tokens"]) + 5
    )
    words = align(
        decoder,
        tokenizer,
        case["tokens"],
        language=tokenizer.language,
        n_frames=case["n_frames"],
    )
    assert [word.text for word in words] == [text for text, *_ in case["words"]]
    expected = np.array([(start, end) for _, start, end, _ in case["words"]])
    assert np.abs([(word.start, word.end) for word in words] - expected).max() <= 1
    probs = [prob for *_, prob in case["words"]]
    assert [word.prob for word in words] == pytest.approx(probs, rel=1e-3)


CHECKS = {
    "decode": check_decode,
    "sample": check_sample,
    "fallback": check_fallback,
    "language": check_language,
    "words": check_word_times,
}


@pytest.mark.parametrize(
    ("name", "kind", "case"),
    [
        pytest.param(name, kind, case, id=f"{name}-{kind}-{number}")
        for name in SHAPES
        for kind in CHECKS
        for number, case in enumerate(DOCUMENT[name].get(kind, []))
    ],
)
def test_as_openai_whisper(name, kind, case):
    CHECKS[kind](model(name), case)


@pytest.mark.parametrize("name", SHAPES)
def test_the_cases_are_not_all_alike(name):
    """What random weights write must differ, end, and mark times, or it would prove nothing."""
    decoded = DOCUMENT[name]["decode"]
    texts = {tuple(case["tokens"]) for case in decoded}
    assert len(texts) > len(decoded) // 2
    assert any(len(text) < N_SAMPLED for text in texts)
    assert any(len(set(text)) > N_SAMPLED // 2 for text in texts)
    eot = SHAPES[name].n_text_tokens
    assert any(sum(token > eot for token in text) >= 3 for text in texts)
