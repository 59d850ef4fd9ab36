"""Scripted hypotheses: the words that were promised, on a real engine, at any length of window."""

import json
from typing import ClassVar

import numpy as np
import pytest

from streamd.cli.bench import (
    PACE,
    ScriptedRecognizer,
    bench_step,
    measure_encoder,
    measure_steps,
    noise,
    step_json,
    step_table,
    steps,
)
from streamd.config import load
from streamd.daemon import build
from streamd.models.store import load_model
from streamd.types import FRAME, Window


@pytest.fixture(scope="module")
def parts():
    config, model = load({"threads": "1"}, {}), load_model("tiny.en")
    options = build.decoding_options(config, model)
    return build.engine(config, model), build.tokenizer(config, model), options


@pytest.fixture
def recognizer(parts):
    return ScriptedRecognizer(*parts)


def window(start, end, **known):
    return Window(start, end, noise(end - start), **known)


def test_a_window_of_five_seconds_has_twenty_words_at_their_time(recognizer):
    hypothesis = recognizer.recognize(window(0, 250, last=True))
    assert len(hypothesis.tokens) == len(hypothesis.words) == 20
    assert len(set(hypothesis.tokens)) == 20
    middles = [(word.start + word.end) / 2 for word in hypothesis.words]
    assert middles == pytest.approx([(n + 0.5) * PACE for n in range(20)], abs=PACE)
    assert hypothesis.suspect is None


def test_the_words_of_a_stream_are_the_same_wherever_a_window_begins(recognizer):
    whole = recognizer.recognize(window(0, 500, last=True)).tokens
    assert recognizer.recognize(window(250, 500, last=True)).tokens == whole[20:]
    assert recognizer.recognize(window(100, 400, last=True)).tokens == whole[8:32]
    prefix = whole[8:12]
    assert recognizer.recognize(window(100, 400, last=True, prefix=prefix)).tokens == whole[12:32]
    prompted = window(250, 500, last=True, prompt=whole[:20])
    assert recognizer.recognize(prompted).tokens == whole[20:]


def test_of_a_window_that_goes_on_the_newest_word_is_misheard(recognizer):
    right = recognizer.recognize(window(0, 250, last=True)).tokens
    guess = recognizer.recognize(window(0, 250)).tokens
    assert guess[:-1] == right[:-1]
    assert guess[-1] not in right
    again = recognizer.recognize(window(0, 275, draft=guess))
    assert again.tokens[:20] == right
    assert again.accepted_draft == 19


def test_a_step_verifies_its_draft_in_one_pass(recognizer):
    each = steps(recognizer)
    _, first, n_first = next(each)
    _, second, n_second = next(each)
    assert (n_first, n_second) == (20, 20)
    assert first.passes == 21
    assert second.passes == 4  # the draft and its correction, two new words, and the end
    assert second.encode_s > 0
    assert second.decode_s > 0


def test_a_step_without_a_draft_decodes_each_token(recognizer):
    times = measure_steps(recognizer, n_steps=2, draft=False)
    assert (times.tokens, times.passes) == (20, 21)
    assert times.best_ms <= times.step_ms <= times.p95_ms


def test_the_bench_of_a_step_shows_all_rows():
    result = bench_step(load({"threads": "1", "model": "tiny.en"}, {}), n_steps=2)
    assert result.full.encode_ms > result.step.encode_ms
    assert (result.step.passes, result.undrafted.passes) == (4, 21)
    assert result.rtf == pytest.approx(result.step.step_ms / 500, abs=1e-4)
    table = step_table(result)
    assert f"{result.step.step_ms:.1f}" in table
    assert f"{result.encoder_ms:.1f}" in table
    assert f"{result.rtf:.2f}" in table
    figures = json.loads(step_json(result))
    assert figures["step"]["step"]["tokens"] == 20
    assert figures["machine"]["cores"] >= 1


def test_the_encoder_alone_is_run_at_the_full_context(parts):
    engine, *_ = parts

    class Noted:
        dims = engine.dims
        seen: ClassVar[list[tuple[int, ...]]] = []

        def encode(self, mel, *, audio_ctx=0):
            self.seen.append(mel.shape)

    measure_encoder(Noted(), n=3)
    assert Noted.seen == [(engine.dims.n_mels, 3_000)] * 4


def test_noise_is_the_same_every_time():
    assert len(noise(3)) == 3 * FRAME
    assert np.array_equal(noise(3), noise(3))
