"""One way to run the golden cases with streamd, under openai-whisper's options.

The cases of golden.json (the bundled model and a tiny random one) run on the numpy engine, those of
shapes.json (random models of true shapes) on ONNX Runtime, which ships. longform.json and
scripted.json are whole recordings; their options are translated here, too.
"""

import gc
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamd.engines.onnx import build
from streamd.models import ModelDimensions
from streamd.models.catalog import usual_heads
from streamd.models.model import Model, only_language, openai_vocabulary, parameter_shapes
from streamd.options import DecodingOptions, LongformOptions
from streamd.types import Clip
from streamd.whisper.decode import Context, Decoded, detect_language, slots_needed
from streamd.whisper.longform import TranscribedWindow, Transcriber
from streamd.whisper.mel import RecordingMel, log_mel
from streamd.whisper.tokenizer import Tokenizer
from tests.golden import load
from tests.golden.shapes import SHAPES, shaped_weights
from tests.support.checkpoints import network
from tests.support.decoders import CheckedEngine, decode

DOCUMENTS = {"golden": ("tiny.en", "random"), "shapes": tuple(SHAPES)}
"""The documents with single windows, and their models."""
N_SAMPLED = 16
"""Tokens of the cases in shapes.json."""


class Subject:
    """A model of a golden file on an engine; `cases` are what openai-whisper wrote with it."""

    def __init__(self, document: str, name: str) -> None:
        self.cases = load.document(document)[name]
        self.is_reference = document == "golden"
        self._name = name
        self._features: dict[tuple[str, int], Any] = {}
        self._tokenizers: dict[str, Tokenizer] = {}

    @cached_property
    def model(self) -> Model:
        if self.is_reference:
            return load.model(self._name)
        shape = SHAPES[self._name]
        dims = ModelDimensions(*shape.dims)
        return Model(
            name=self._name,
            dims=dims,
            weights=shaped_weights(shape, parameter_shapes(dims)),
            vocabulary=openai_vocabulary(Path(self._name), dims.n_vocab),
            alignment_heads=usual_heads(Path(self._name), dims),
            language=only_language(dims),
        )

    @cached_property
    def engine(self) -> Any:
        model, heads = self.model, self.model.alignment_heads
        if self.is_reference:
            return CheckedEngine(network(model.dims, model.weights, alignment_heads=heads))
        return build(network(model.dims, model.weights, alignment_heads=heads), threads=1)

    def tokenizer(self, task: str = "transcribe") -> Tokenizer:
        if task not in self._tokenizers:
            only = self.model.language
            self._tokenizers[task] = Tokenizer(
                self.model.vocabulary,
                self.model.dims.n_vocab,
                multilingual=only is None,
                language=only or "de",
                task=task,
            )
        return self._tokenizers[task]

    def decoder(self, case: dict[str, Any], n_slots: int) -> Any:
        clip, n_ctx = case["clip"], case.get("n_ctx", 1500)
        if (clip, n_ctx) not in self._features:
            mel = log_mel(load.samples(clip, n_ctx), self.model.dims.n_mels)
            self._features[clip, n_ctx] = self.engine.encode(mel, audio_ctx=n_ctx)
        return self.engine.decoder(self._features[clip, n_ctx], n_slots)

    def languages(self, case: dict[str, Any]) -> dict[str, float]:
        return detect_language(self.decoder(case, 1), self.tokenizer())

    def decode(
        self,
        case: dict[str, Any],
        *,
        temperature: float = 0.0,
        rng: np.random.Generator | None = None,
    ) -> Decoded:
        chosen = dict(case["options"])
        tokenizer = self.tokenizer(chosen.pop("task", "transcribe"))
        n_text_ctx = self.model.dims.n_text_ctx
        n_most = n_text_ctx // 2 if self.is_reference else N_SAMPLED
        context = Context(
            max_tokens=chosen.pop("sample_len", n_most),
            prompt=tuple(chosen.pop("prompt", ())),
            prefix=tuple(chosen.pop("prefix", ())),
            language=chosen.pop("language", tokenizer.language) or next(iter(self.languages(case))),
        )
        chosen.pop("temperature", None)
        guards = {} if self.is_reference else {"loops": None}
        options = DecodingOptions(text_only=False, **guards, **decoding_options(chosen))
        n_slots = slots_needed(context, options=options, n_text_ctx=n_text_ctx)
        return decode(
            self.decoder(case, n_slots),
            tokenizer,
            options=options,
            context=context,
            temperature=temperature,
            rng=rng,
        )


@lru_cache(maxsize=1)
def subject(document: str, name: str) -> Subject:
    """Only the last one is kept, since it has a quarter of a gigabyte: tests go model by model."""
    gc.collect()
    return Subject(document, name)


def cases(*kinds: str) -> list[Any]:
    """(document, model, kind, case) for all cases of these kinds, model by model."""
    return [
        pytest.param(document, name, kind, case, id=f"{document}-{name}-{kind}-{number}")
        for document, names in DOCUMENTS.items()
        for name in names
        for kind in kinds
        for number, case in enumerate(load.document(document)[name].get(kind, []))
    ]


def decoding_options(chosen: dict[str, Any]) -> dict[str, Any]:
    """openai-whisper's options of a decode as ours; times in seconds become frames."""
    ours = dict(chosen)
    ours["timestamps"] = not ours.pop("without_timestamps", False)
    if "suppress_tokens" in ours:
        ours["suppress_tokens"] = tuple(ours["suppress_tokens"] or ())
    return ours


_LONGFORM = ("condition_on_previous_text", "initial_prompt", "word_timestamps")


def transcribe(
    engine: Any, tokenizer: Tokenizer, mel: RecordingMel, options: dict[str, Any]
) -> tuple[str, list[TranscribedWindow]]:
    """Transcribe a recording with options of ``whisper.transcribe``; return its language, too."""
    o = dict(options)
    temperature = o.pop("temperature", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    longform = LongformOptions(
        **{"word_timestamps": False} | {name: o.pop(name) for name in _LONGFORM if name in o},
    )
    decoding = DecodingOptions(
        temperatures=(temperature,) if isinstance(temperature, float) else tuple(temperature),
        best_of=o.pop("best_of", 1),  # openai-whisper's default outside its command line
        languages=(o.pop("language"),) if "language" in o else (),
        loops=False,
        **decoding_options(o),
    )
    transcriber = Transcriber(engine, tokenizer, decoding, longform)
    language, whole = transcriber.language(mel), [Clip(0, mel.n_columns)]
    return language, list(transcriber.transcribe(mel, whole, language=language))


def within(segments: Sequence[dict[str, Any]], end_ms: int) -> list[dict[str, Any]]:
    """Segments as far as the recording goes; openai-whisper has some in the padding after it."""
    return [
        segment
        | {
            "end_ms": min(segment["end_ms"], end_ms),
            "words": [
                [text, start_ms, min(word_end_ms, end_ms), *prob]
                for text, start_ms, word_end_ms, *prob in segment["words"]
            ],
        }
        for segment in segments
        if segment["start_ms"] < end_ms
    ]
