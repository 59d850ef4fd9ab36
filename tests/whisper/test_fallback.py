"""Temperature fallback: until something passes, and the best of what does not."""

import numpy as np
import pytest

from streamd.options import DecodingOptions
from streamd.whisper.decode import Context, Decoded, is_silence
from tests.support.decoders import (
    TOKENIZER,
    ContextDecoder,
    decode,
    decoded,
    hashed,
    with_fallback,
)

OPTIONS = DecodingOptions(least_evidence=-9.0)


def fallback(first: Decoded, later: dict[float, Decoded]) -> tuple[Decoded, list[float]]:
    asked = []

    def attempt(temperature: float) -> Decoded:
        asked.append(temperature)
        return later.get(temperature, first)

    return with_fallback(attempt, OPTIONS), asked[1:]


def test_what_passes_is_taken_at_once():
    good = decoded()
    assert fallback(good, {}) == (good, [])


@pytest.mark.parametrize(
    "poor",
    [{"avg_logprob": -1.01}, {"compression_ratio": 2.41}, {"loop": 3}, {"avg_logprob": -9.0}],
)
def test_the_first_that_passes_is_taken(poor):
    good = decoded(temperature=0.4)
    found, asked = fallback(decoded(**poor), {0.4: good})
    assert found is good
    assert asked == [0.2, 0.4]


def test_silence_is_not_tried_again():
    quiet = decoded(no_speech_prob=0.61, avg_logprob=-1.01)
    assert is_silence(quiet, OPTIONS)
    assert fallback(quiet, {}) == (quiet, [])
    assert not is_silence(decoded(no_speech_prob=0.59, avg_logprob=-1.01), OPTIONS)
    assert not is_silence(decoded(no_speech_prob=0.61), OPTIONS)


@pytest.mark.parametrize(
    "guess", [{"avg_logprob": -1.55}, {"avg_logprob": -1.0, "no_speech_prob": 0.55}]
)
def test_a_text_with_little_evidence_is_tried_again(guess):
    options = DecodingOptions(logprob_threshold=-9.0)
    asked = []

    def attempt(temperature: float) -> Decoded:
        asked.append(temperature)
        return decoded(**({"no_speech_prob": 0.0} | guess | {"temperature": temperature}))

    with_fallback(attempt, options)
    assert asked == list(options.temperatures)


def test_when_nothing_passes_the_best_is_taken():
    first = decoded(compression_ratio=2.6, avg_logprob=-0.2)  # digits: repetitive, but right
    later = {
        t: decoded(compression_ratio=2.5, avg_logprob=-0.1, temperature=t)
        for t in (0.2, 0.4, 0.6, 0.8, 1.0)
    }
    found, asked = fallback(first, later)
    assert asked == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert found is first
    loop = decoded(loop=4, avg_logprob=-0.01)
    assert fallback(loop, later)[0] is later[0.2], "the one with the most evidence"


def test_attempts_go_from_greedy_to_samples():
    options = DecodingOptions(suppress_tokens=(), logprob_threshold=0.0, temperatures=(0.0, 0.5))
    rng = np.random.default_rng(0)

    def attempt(temperature: float) -> Decoded:
        decoder = ContextDecoder(hashed(4), 200)
        context = Context(8)
        return decode(
            decoder, TOKENIZER, options=options, context=context, temperature=temperature, rng=rng
        )

    found = with_fallback(attempt, options)
    assert found.avg_logprob == max(found.avg_logprob, attempt(0.0).avg_logprob)
