"""Tokens, probabilities, words and languages are those of openai-whisper.

Vocabularies, prompts, languages and alignment heads are those of the models that people have.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from streamd.options import DecodingOptions
from streamd.whisper.decode import (
    Context,
    Decoded,
    slots_needed,
)
from streamd.whisper.engine import alone
from streamd.whisper.logit_rules import Row, Rules
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.words import align, find_words
from tests.golden import load
from tests.golden.compare import DOCUMENTS, Subject, cases, subject
from tests.support.decoders import decode, with_fallback

MODELS = DOCUMENTS["golden"]


def check_decode(model: Subject, case: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Right after a prefix openai-whisper forbids a blank and the end of text; we do not.
        patch.setattr("streamd.whisper.decode.Rules", lambda *given, **_: Rules(*given))
        found = model.decode(case)
    assert list(found.tokens) == case["tokens"]
    assert found.language == case.get("language", found.language)
    # without suppressed tokens openai-whisper allows even <|startofprev|>, with some probability
    unsuppressed = model.is_reference and case["options"].get("suppress_tokens") == ""
    tolerance = 2e-3 if unsuppressed else 1e-4
    assert found.avg_logprob == pytest.approx(case["avg_logprob"], abs=tolerance)
    rel = 1e-4 if model.is_reference else 1e-3
    assert found.no_speech_prob == pytest.approx(case["no_speech_prob"], rel=rel, abs=1e-7)
    if model.is_reference and model.model.name == "tiny.en":
        # A random model writes special tokens, which are part of openai-whisper's text.
        assert model.tokenizer().decode(found.tokens).strip() == case["text"]
        assert found.compression_ratio == pytest.approx(case["compression_ratio"])


class Nudged(np.random.Generator):
    """Draws numbers that are a little larger or smaller."""

    def __init__(self, seed: int, by: float) -> None:
        super().__init__(np.random.PCG64(seed))  # as default_rng
        self.by = by

    def random(self, *args: Any, **kwargs: Any) -> Any:
        return np.clip(super().random(*args, **kwargs) + self.by, 0.0, np.nextafter(1.0, 0.0))


def drawn(case: dict[str, Any], search: Callable[[np.random.Generator], Decoded]) -> Decoded:
    """What `search` finds with the same random numbers as openai-whisper.

    A number may fall on the border between two tokens. On which side depends on how the processor
    rounds, so either one will do.
    """
    for by in (0.0, -1e-6, 1e-6):
        found = search(Nudged(case["seed"], by))
        if list(found.tokens) == case["tokens"]:
            break
    return found


def check_sample(model: Subject, case: dict[str, Any]) -> None:
    """The same numbers draw the same tokens, and the same of the samples is the best one."""
    temperature = case["options"]["temperature"]
    found = drawn(case, lambda rng: model.decode(case, temperature=temperature, rng=rng))
    assert list(found.tokens) == case["tokens"]
    assert found.avg_logprob == pytest.approx(case["avg_logprob"], abs=1e-4)


def check_fallback(model: Subject, case: dict[str, Any]) -> None:
    """The attempt that ``whisper.transcribe`` takes, from the same numbers."""
    options = DecodingOptions(
        compression_ratio_threshold=case["limit"],
        logprob_threshold=-100.0,
        least_evidence=-100.0,
        loops=False,
    )

    def search(rng: np.random.Generator) -> Decoded:
        def attempt(temperature: float) -> Decoded:
            return model.decode(case, temperature=temperature, rng=rng)

        return with_fallback(attempt, options)

    found = drawn(case, search)
    assert (found.temperature, list(found.tokens)) == (case["temperature"], case["tokens"])
    assert found.compression_ratio == pytest.approx(case["compression_ratio"])
    assert found.temperature > 0


def check_language(model: Subject, case: dict[str, Any]) -> None:
    probs = model.languages(case)
    expected = case.get("probs") or {case["language"]: case["prob"]}
    assert next(iter(probs)) == case["language"]
    assert {code: probs[code] for code in expected} == pytest.approx(expected, abs=1e-5)


def check_word_times(model: Subject, case: dict[str, Any]) -> None:
    """A pass over the known text: openai-whisper's times, but for near ties."""
    tokenizer, decoder = model.tokenizer(), model.decoder(case, len(case["tokens"]) + 5)
    language = tokenizer.language
    found = align(decoder, tokenizer, case["tokens"], language=language, n_frames=case["n_frames"])
    words = alone(found)
    assert [word.text for word in words] == [text for text, *_ in case["words"]]
    slack = {"abs": 1e-4} if model.is_reference else {"rel": 1e-3}
    assert [word.prob for word in words] == pytest.approx([p for *_, p in case["words"]], **slack)
    expected = np.array([(start, end) for _, start, end, _ in case["words"]])
    difference = np.abs([(word.start, word.end) for word in words] - expected)
    assert difference.max() <= 1
    if model.is_reference:
        assert (difference == 0).mean() > 0.7


def check_words_without_a_second_pass(model: Subject, case: dict[str, Any]) -> None:
    """From the rows of the decode itself: within a frame.

    They lack end-of-text, whose row tells where the last word ends: within two frames.
    """
    options, n_tokens = DecodingOptions(), len(case["tokens"])

    class Forced(Rules):
        """Allows the tokens of the case only."""

        def __call__(self, logits: Row, tokens: Sequence[int]) -> Row:
            row = super().__call__(logits, tokens)
            for wanted in case["tokens"][len(tokens) :][:1]:
                row[:] = -np.inf
                row[wanted] = logits[wanted]
                self.refused = np.arange(self.eot)
            return row

    context = Context(max_tokens=n_tokens + 1, draft=tuple(case["tokens"]))
    decoder = model.decoder(case, slots_needed(context, options=options, n_text_ctx=448))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamd.whisper.decode.Rules", Forced)
        decoded = decode(decoder, model.tokenizer(), options=options, context=context)
    assert list(decoded.tokens[:n_tokens]) == case["tokens"]
    words = find_words(decoded, model.tokenizer(), prefix=(), n_frames=case["n_frames"])
    pairs = list(zip(words, case["words"], strict=False))
    for i, (word, (text, start, end, prob)) in enumerate(pairs, 1):
        assert word.text == text
        assert word.prob == pytest.approx(prob, abs=1e-4)
        assert abs(word.start - start) <= 1
        assert abs(word.end - end) <= (2 if i == len(pairs) else 1)


CHECKS = {
    "decode": check_decode,
    "sample": check_sample,
    "fallback": check_fallback,
    "language": check_language,
    "words": check_word_times,
}


@pytest.mark.parametrize(("document", "name", "kind", "case"), cases(*CHECKS))
def test_as_openai_whisper(document, name, kind, case):
    model = subject(document, name)
    CHECKS[kind](model, case)
    # After "lamp" the model would write a question mark, not the end.
    if kind == "words" and (document, name) == ("golden", "tiny.en") and case["clip"] != "lamp":
        check_words_without_a_second_pass(model, case)


def tokenizer(name: str) -> Tokenizer:
    return subject("golden", name).tokenizer()


@pytest.mark.parametrize("name", MODELS)
def test_special_tokens(name):
    ours, golden = tokenizer(name), load.document()[name]["tokenizer"]
    renamed = {
        "sot_lm": "startoflm",
        "sot_prev": "startofprev",
        "no_speech": "nospeech",
        "no_timestamps": "notimestamps",
    }
    special = {key: getattr(ours, renamed.get(key, key)) for key in golden["special"]}
    assert special == golden["special"]
    assert list(ours.sot_sequence) == golden["sot_sequence"]
    assert list(ours.non_speech_tokens) == golden["non_speech_tokens"]


@pytest.mark.parametrize("name", MODELS)
def test_text(name):
    for case in load.document()[name]["tokenizer"]["cases"]:
        tokens = tokenizer(name).encode(case["text"])
        assert list(tokens) == case["tokens"]
        assert tokenizer(name).decode(tokens) == case["text"]
        words = tokenizer(name).split_words(tokens)
        # openai-whisper's end with end-of-text
        assert [text for text, _ in words] == case["words"][:-1]
        assert [list(ids) for _, ids in words] == case["word_tokens"][:-1]
        characters = tokenizer(name).split_words(tokens, "ja")
        assert [text for text, _ in characters] == case["unicode_words"][:-1]
