"""What the Core ML engine gives is what the CPU's does, whatever the search does with it."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from streamd.options import DecodingOptions, LoopLimits
from streamd.types import FRAME, Hypothesis, Window
from streamd.whisper.mel import log_mel
from streamd.whisper.recognizer import Recognizer
from streamd.whisper.tokenizer import Tokenizer
from tests.golden import load
from tests.support.coreml_runs import core_ml, model, on_cpu

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(400)]

# Random weights find nothing probable.
PLAIN = DecodingOptions(temperatures=(0.0,), least_evidence=-100.0)
TOLERANCE = 1e-5


@cache
def tokenizer() -> Tokenizer:
    n_vocab = model().dims.n_vocab
    return Tokenizer(model().vocabulary, n_vocab, multilingual=False, language="en")


@cache
def cpu():
    return on_cpu()


@cache
def clip(name: str, n_frames: int = 0, **known) -> Window:
    sound = load.samples(name, 600)
    n_frames = n_frames or len(np.trim_zeros(sound, "b")) // FRAME
    return Window(50, 50 + n_frames, sound[: n_frames * FRAME], **known)


@pytest.fixture(scope="module")
def engines(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    with (
        core_ml(built, folder, "state") as state,
        core_ml(built, folder, "mix") as mix,
    ):
        yield {"state": state, "mix": mix}


def assert_same(found: Hypothesis, expected: Hypothesis) -> None:
    assert found.tokens == expected.tokens
    assert (found.suspect, found.temperature) == (expected.suspect, expected.temperature)
    assert [word.text for word in found.words] == [word.text for word in expected.words]
    for word, other in zip(found.words, expected.words, strict=True):
        assert abs(word.start - other.start) <= 1
        assert abs(word.end - other.end) <= 1
        assert word.prob == pytest.approx(other.prob, abs=1e-3)
    assert found.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-3)
    assert found.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-3)


def forward(engine, mel, tokens, cuts):
    """All of `tokens`, in passes that end at `cuts`; logits of every third token."""
    k = len(tokens)
    decoder = engine.decoder(engine.encode(mel, audio_ctx=mel.shape[1] // 2), k)
    logits, alignments = [], []
    for first, end in zip([0, *cuts], [*cuts, k], strict=True):
        order = np.arange(first, end)
        visible = np.arange(k) <= order[:, None]
        want = np.arange(end - first)[::3]
        found, alignment = decoder.step(tokens[order], order, order, visible, want)
        logits.append(found)
        alignments.append(alignment)
    return np.concatenate(logits), np.concatenate(alignments)


@pytest.mark.parametrize("form", ["state", "mix"])
@pytest.mark.parametrize(
    ("n_ctx", "cuts"), [(192, [1, 2, 10]), (384, [70, 71, 140, 148]), (500, [33, 90])]
)
def test_every_pass_gives_what_it_gives_on_the_cpu(engines, form, n_ctx, cuts):
    mel = log_mel(load.samples("lamp", 600)[: n_ctx * FRAME], 80)
    tokens = np.random.default_rng(n_ctx).integers(0, 1000, cuts[-1] + 1)
    found = forward(engines[form], mel, tokens, cuts)
    for one, other in zip(found, forward(cpu(), mel, tokens, cuts), strict=True):
        assert one.shape == other.shape
        assert one.dtype == np.float32
        assert np.linalg.norm(one - other) < TOLERANCE * np.linalg.norm(other)


@dataclass
class InFull:
    """Computes the whole context, as if there were no states of silence."""

    engine: Any

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def encode(self, mel, **known):
        return self.engine.encode(mel, audio_ctx=1500, **known)


SEARCHES = {
    "greedy": (clip("cards"), {}),
    "another length": (clip("digits", 380), {}),
    "a right draft": (clip("cards", draft=(6, 6, 5, 6, 4, 6)), {"in_full": True}),
    "a wrong draft": (clip("cards", draft=(6, 6, 9, 6, 4, 6)), {"in_full": True}),
    "prompt and prefix": (
        clip("cards", prompt=(736, 286, 817, 681) * 20, prefix=(433, 334)),
        {"in_full": True},
    ),
    **{
        f"beam {size}": (clip("cards", last=True), {"beam_size": size, "in_full": True})
        for size in range(2, 9)
    },
    "a beam of many words": (clip("digits", 300, last=True), {"beam_size": 5}),
    "fallback": (
        clip("cards", 100, last=True),
        {"temperatures": (0.0, 1.0), "loops": LoopLimits(stuck_tokens=2), "best_of": 1},
    ),
    "chance": (clip("cards", 90, last=True), {"temperatures": (0.8,), "in_full": True}),
}


WITH_OUR_CACHE = ("a wrong draft", "prompt and prefix", "beam 5", "chance")


@pytest.mark.parametrize(
    ("search", "form"),
    [*((search, "state") for search in SEARCHES), *((each, "mix") for each in WITH_OUR_CACHE)],
)
def test_searches_give_what_they_give_on_the_cpu(engines, search, form):
    window, options = SEARCHES[search][0], dict(SEARCHES[search][1])
    kind = InFull if options.pop("in_full", False) else lambda engine: engine
    ours, theirs = (
        Recognizer(kind(engine), tokenizer(), replace(PLAIN, **options))
        for engine in (engines[form], cpu())
    )
    found, expected = ours.recognize(window), theirs.recognize(window)
    assert expected.words
    assert ours.counters == theirs.counters
    assert theirs.counters.accepted == {"a right draft": 6, "a wrong draft": 2}.get(search, 0)
    assert_same(found, expected)


def test_windows_of_several_threads_do_not_disturb_each_other(engines):
    windows = [clip(name, n) for name in ("cards", "lamp", "digits") for n in (90, 120)]

    def recognize(engine, window):
        return Recognizer(engine, tokenizer(), PLAIN).recognize(window)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda window: recognize(engines["mix"], window), windows))
    for one, window in zip(found, windows, strict=True):
        assert_same(one, recognize(cpu(), window))


@pytest.mark.parametrize("shape", [(79, 42), (80, 0), (80, 3001)])
def test_the_wrong_shape_is_refused(engines, shape):
    with pytest.raises(ValueError, match=f"log-mel of shape {re.escape(str(shape))}"):
        engines["state"].encode(np.zeros(shape, np.float32))
