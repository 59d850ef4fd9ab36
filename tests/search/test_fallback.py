"""Temperature fallback: until something passes, and the best of what does not."""

import numpy as np
import pytest

from streamd.options import DecodingOptions
from streamd.search.decode import Context, Decoded, decode, is_silence, with_fallback
from streamd.search.tokenizer import Tokenizer
from tests.support.decoders import N_VOCAB, ContextDecoder, hashed, vocabulary

OPTIONS = DecodingOptions()


def decoded(**known) -> Decoded:
    values = {
        "tokens": (1,),
        "token_probs": (1.0,),
        "avg_logprob": -0.3,
        "no_speech_prob": 0.1,
        "blank": False,
        "compression_ratio": 1.2,
        "temperature": 0.0,
        "language": "en",
        "drafted": 0,
        "accepted_draft": 0,
        "alignment": np.zeros((3, 1, 5), np.float32),
        "n_given": 2,
        "frames": (0,),
        "ended": True,
        "loop": None,
    }
    return Decoded(**(values | known))


def fallback(first: Decoded, later: dict[float, Decoded]) -> tuple[Decoded, list[float]]:
    asked = []

    def attempt(temperature: float) -> Decoded:
        asked.append(temperature)
        return later.get(temperature, first)

    return with_fallback(attempt, OPTIONS), asked[1:]


def test_what_passes_is_taken_at_once():
    good = decoded()
    assert fallback(good, {}) == (good, [])


@pytest.mark.parametrize("poor", [{"avg_logprob": -1.01}, {"compression_ratio": 2.41}, {"loop": 3}])
def test_the_first_that_passes_is_taken(poor):
    good = decoded(temperature=0.4)
    found, asked = fallback(decoded(**poor), {0.4: good})
    assert found is good
    assert asked == [0.2, 0.4]


def test_few_different_tokens_are_repetitive():
    monotonous = decoded(tokens=(1, 2, 3, 4) * 12)
    varied = decoded(tokens=tuple(range(48)), temperature=0.2)
    assert fallback(monotonous, {0.2: varied}) == (varied, [0.2])
    assert fallback(decoded(tokens=(1,) * 32), {})[1] == []  # a short text may be


@pytest.mark.parametrize("silent", [{"avg_logprob": -1.01}, {"blank": True}])
def test_silence_is_not_tried_again(silent):
    quiet = decoded(no_speech_prob=0.61, **silent)
    assert is_silence(quiet, OPTIONS)
    assert fallback(quiet, {}) == (quiet, [])
    assert not is_silence(decoded(no_speech_prob=0.59, **silent), OPTIONS)
    assert not is_silence(decoded(no_speech_prob=0.61), OPTIONS)


def test_when_nothing_passes_the_best_is_taken():
    first = decoded(compression_ratio=2.6, avg_logprob=-0.2)  # digits: repetitive, but right
    later = {
        t: decoded(compression_ratio=2.5, avg_logprob=-0.2 - t, temperature=t)
        for t in (0.2, 0.4, 0.6, 0.8, 1.0)
    }
    found, asked = fallback(first, later)
    assert asked == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert found is first
    later[0.8] = decoded(avg_logprob=-1.3, temperature=0.8)  # varied, if not probable
    assert fallback(first, later)[0] is later[0.8]
    loop = decoded(loop=4, avg_logprob=-0.01)
    assert fallback(loop, later)[0] is later[0.8]


def test_attempts_go_from_greedy_to_samples():
    tokenizer = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)
    options = DecodingOptions(suppress_tokens=(), logprob_threshold=0.0, temperatures=(0.0, 0.5))
    rng = np.random.default_rng(0)

    def attempt(temperature: float) -> Decoded:
        decoder = ContextDecoder(hashed(4), 200)
        context = Context(8)
        return decode(
            decoder, tokenizer, options=options, context=context, temperature=temperature, rng=rng
        )

    found = with_fallback(attempt, options)
    assert found.avg_logprob == max(found.avg_logprob, attempt(0.0).avg_logprob)
