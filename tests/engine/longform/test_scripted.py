"""Between the windows everything is as in ``whisper.transcribe``, whatever the model writes."""

import json
import zlib
from collections.abc import Sequence

import numpy as np
import pytest

from streamd.engine import ModelDimensions
from streamd.engine.longform import SpokenWord, Transcriber, clips_at, transcriber
from streamd.mel.windows import RecordingMel
from streamd.options import DecodingOptions, LongformOptions
from streamd.search.decode import Decoded
from streamd.search.tokenizer import Tokenizer
from streamd.types import Word
from tests.golden import load
from tests.golden.scripts import CASES, PUNCTUATION, Script

GOLDEN = json.loads((load.HERE / "scripted.json").read_text())["cases"]
RENAMED = {"logprob_threshold", "no_speech_threshold"}


class ScriptedSearch:
    """Takes the place of `decode` and `align`."""

    def __init__(self, seed: int, tokenizer: Tokenizer) -> None:
        self._script, self._tokenizer = Script(seed), tokenizer
        self.told: list[int] = []

    def decode(self, n_columns, tokenizer, *, options, context, temperature, rng) -> Decoded:
        self.told.append(zlib.crc32(repr(list(context.prompt)).encode()))
        written = self._script.write(n_columns)
        return Decoded(
            tokens=written.tokens,
            token_probs=(0.5,) * len(written.tokens),
            avg_logprob=written.avg_logprob,
            no_speech_prob=written.no_speech_prob,
            blank=False,
            compression_ratio=written.compression_ratio,
            temperature=temperature,
            language=context.language,
            drafted=0,
            accepted_draft=0,
            alignment=np.empty((0, 1, 1), np.float32),
            n_given=0,
            frames=(),
            ended=True,
            loop=None,
        )

    def align(self, n_columns, tokenizer, tokens, *, language, n_frames) -> list[Word]:
        assert n_frames == n_columns // 2
        if not tokens:
            return []
        return [
            Word(PUNCTUATION.get(token) or tokenizer.decode([token]), start, end, prob, (token,))
            for token, start, end, prob in self._script.align(list(tokens), n_frames)
        ]


class Engine:
    """Its features, and its decoder, are how many columns of a window hold sound."""

    def __init__(self, dims: ModelDimensions) -> None:
        self.dims = dims

    def encode(self, mel, n_ctx) -> int:
        return int((mel != 0).any(axis=0).sum())

    def decoder(self, features, n_slots) -> int:
        return features


@pytest.mark.parametrize(
    ("case", "golden"),
    [
        pytest.param(case, golden, id=f"{case[0]}")
        for case, golden in zip(CASES, GOLDEN, strict=True)
    ],
)
def test_as_openai_whisper(case, golden, monkeypatch):
    seed, seconds, chosen = case
    o = dict(chosen)
    model = load.model("random")
    tokenizer = Tokenizer(model.vocabulary, model.dims.n_vocab, multilingual=True)
    search = ScriptedSearch(seed, tokenizer)
    monkeypatch.setattr(transcriber, "decode", search.decode)
    monkeypatch.setattr(transcriber, "align", search.align)
    mel = RecordingMel(80)
    mel.append(np.zeros(int(seconds * 16_000), np.float32))
    mel.finish()
    points = [round(float(point) * 1000) for point in o.pop("clip_timestamps", "0").split(",")]
    temperature = o.pop("temperature", None)
    decoding = DecodingOptions(
        temperatures=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0) if temperature is None else (temperature,),
        audio_ctx=1500,
        **{name: o.pop(name) for name in RENAMED & {*o}},
    )
    silence = o.pop("hallucination_silence_threshold", None)
    options = LongformOptions(
        word_timestamps=o.pop("word_timestamps", False),
        hallucination_silence_ms=round(1000 * (silence or 0)),
        **o,
    )
    scribe = Transcriber(Engine(model.dims), tokenizer, decoding, options)
    heard = scribe.transcribe(mel, clips_at(points, mel.n_columns), language="en")
    end_ms = 10 * mel.n_columns
    found = [
        [*(s.seek, s.start_ms, s.end_ms), *(len(s.tokens), s.temperature), _times(s.words)]
        for window in heard
        for s in window.segments
    ]
    expected = [_within(segment, end_ms) for segment in golden["segments"] if segment[1] < end_ms]
    assert search.told == golden["told"]
    assert found == expected


def _times(words: Sequence[SpokenWord]) -> list[list]:
    return [[word.text, word.start_ms, word.end_ms] for word in words]


def _within(segment: list, end_ms: int) -> list:
    """openai-whisper also tells what lies in the padding behind the recording."""
    *numbers, words = segment
    numbers[2] = min(numbers[2], end_ms)
    return [*numbers, [[text, start_ms, min(at_ms, end_ms)] for text, start_ms, at_ms in words]]
