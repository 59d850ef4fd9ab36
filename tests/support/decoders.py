"""Decoders without a model, for tests of the search: what follows is a function of the context.

The cache is real in one respect: a query knows only the tokens in the slots that it may see. So a
slot that was freed too early, taken twice or hidden by mistake changes the transcript or fails.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from streamd.engines.reference import ReferenceDecoder, ReferenceEngine
from streamd.models.text_tokens import TextTokens
from streamd.options import DecodingOptions
from streamd.whisper import decode as searches
from streamd.whisper.decode import Context, Decoded, slots_needed
from streamd.whisper.engine import Answer, Decoder, Pass, Search, alone
from streamd.whisper.tokenizer import Tokenizer

N_TEXT = 256
"""Text tokens of `vocabulary`: the bytes."""
N_VOCAB = N_TEXT + 1608
EOT, SOT, NOSPEECH, NOTIMESTAMPS, TIMESTAMP_BEGIN = 256, 257, 361, 362, 363
Predict = Callable[[tuple[int, ...]], tuple[np.ndarray, np.ndarray]]


def vocabulary() -> TextTokens:
    return TextTokens(bytes([byte]) for byte in range(N_TEXT))


TOKENIZER = Tokenizer(vocabulary(), N_VOCAB, multilingual=False)
GREEDY = DecodingOptions(suppress_tokens=(), suppress_blank=False, temperatures=(0.0,))
"""One temperature: then a greedy decode has not one slot to spare."""


class ContextDecoder:
    """Asks `predict` for logits (n_vocab,) and alignment (n_heads, n_ctx) behind a context."""

    n_text_ctx = 448

    def __init__(self, predict: Predict, n_slots: int, n_vocab: int = N_VOCAB) -> None:
        self.n_vocab, self.n_slots = n_vocab, n_slots
        self.passes: list[int] = []
        self._predict = predict
        self._slots: list[tuple[int, int] | None] = [None] * n_slots

    def run(self, asked):
        _, tokens, positions, slots, visible, want, among = asked
        assert len(set(slots.tolist())) == len(slots), "a slot is written twice"
        self.passes.append(len(tokens))
        for slot, position, token in zip(slots, positions, tokens, strict=True):
            self._slots[slot] = (int(position), int(token))
        predictions = []
        for row, slot in zip(visible, slots, strict=True):
            assert row[slot]
            seen = sorted(self._slots[i] for i in np.flatnonzero(row))
            assert [position for position, _ in seen] == list(range(len(seen))), "a hole"
            predictions.append(self._predict(tuple(token for _, token in seen)))
        logits = np.stack([logits for logits, _ in predictions])[want]
        logits = logits if among is None else logits[:, among]
        return logits.astype(np.float32), np.stack([a for _, a in predictions]).astype(np.float32)

    def adopt(self, before, n):
        self._slots[:n] = before._slots[:n]
        return True


def hashed(seed: int, *, eot_bias: float = 5.0, n_vocab: int = N_VOCAB, sharp: float = 2.0):
    """Predictions that look random but depend on the whole context, and on nothing else."""

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([seed, *context])
        logits = rng.standard_normal(n_vocab).astype(np.float32) * sharp
        logits[EOT] += eot_bias
        return logits, rng.standard_normal((2, 40))

    return predict


def scripted(
    tokens, frames=None, *, n_ctx: int, prefix=(), nospeech: float = 0.01, prob: float = 0.9
):
    """Predictions of one transcript behind `prefix`, each token with probability `prob`.

    The rest of the probability is shared by the letters p to w, which transcripts should not have.
    `frames` are attended to when the tokens (and end-of-text) are chosen; anything that is not the
    transcript so far is followed by end-of-text. A transcript that does not end with end-of-text
    goes on with its last token for ever.
    """
    script = [*prefix, *tokens]
    if frames is None:
        frames = [5 + 10 * i for i in range(len(script) + 1)]

    def predict(context: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        if NOTIMESTAMPS not in context:
            return row(NOSPEECH, nospeech), attending(0)
        said = list(context[context.index(NOTIMESTAMPS) + 1 :])
        n = len(said)
        following = (
            script[min(n, len(script) - 1)] if said == script[:n] or n > len(script) else EOT
        )
        return row(following, prob), attending(frames[min(n, len(frames) - 1)])

    def row(token: int, probability: float) -> np.ndarray:
        logits = np.full(N_VOCAB, -40.0)
        logits[ord("p") : ord("x")] = np.log((1 - probability) / 8)
        logits[token] = np.log(probability)
        return logits

    def attending(frame: int) -> np.ndarray:
        distance = np.abs(np.arange(n_ctx) - frame)
        return np.tile(-0.5 * np.minimum(distance, 30.0), (2, 1))

    return predict


class CheckedEngine(ReferenceEngine):
    """The reference, which refuses a pass that makes no sense."""

    def decoder(self, features, n_slots):
        return CheckedDecoder(self, features, n_slots)


class CheckedDecoder(ReferenceDecoder):
    """Raises `ValueError` if the search passes invalid arguments."""

    def __init__(self, engine, features, n_slots) -> None:
        super().__init__(engine, features, n_slots)
        self._written = np.zeros(n_slots, np.bool_)

    def run(self, asked):
        _, tokens, positions, slots, visible, *_ = asked
        k = len(tokens)
        if positions.shape != (k,) or slots.shape != (k,) or visible.shape != (k, self.n_slots):
            raise ValueError(f"{k} tokens, {positions.shape}, {slots.shape}, {visible.shape}")
        for name, values, limit in (
            ("token", tokens, self.n_vocab),
            ("position", positions, self.n_text_ctx),
            ("slot", slots, self.n_slots),
        ):
            if (values < 0).any() or (values >= limit).any():
                raise ValueError(f"{name} outside 0..{limit - 1}: {values.tolist()}")
        if len(np.unique(slots)) < k:
            raise ValueError(f"slots written twice in one pass: {slots.tolist()}")
        if not visible[np.arange(k), slots].all():
            raise ValueError("a query does not attend to itself")
        if np.triu(visible[:, slots], 1).any():
            raise ValueError("a query attends to a later query of its own pass")
        self._written[slots] = True
        if visible[:, ~self._written].any():
            raise ValueError("a query attends to a slot that was never written")
        return super().run(asked)

    def adopt(self, before, n):
        self._written[:n] = True
        return super().adopt(before, n)


def run_pass(decoder: Decoder, *asked: np.ndarray) -> Answer:
    """The answer to a pass of this decoder."""
    return decoder.run(Pass(decoder, *asked))


def decode(*args: Any, **how: Any) -> Decoded:
    """The result of a search that runs alone."""
    return alone(searches.decode(*args, **how))


def run(predict: Predict, context: Context, options: DecodingOptions = GREEDY, **how: Any):
    """The result of a search with as many slots as it needs."""
    n_slots = slots_needed(context, options=options, n_text_ctx=448)
    decoder = ContextDecoder(predict, n_slots)
    return decode(decoder, TOKENIZER, options=options, context=context, **how)


def outcome(result: Decoded) -> tuple[object, ...]:
    """All of a result but how much of a draft there was."""
    names = ("tokens", "token_probs", "avg_logprob", "no_speech_prob", "frames", "ended", "loop")
    rows = [row.tolist() for row in result.alignment]
    return (*(getattr(result, name) for name in names), result.n_given, rows)


def decoded(**known: Any) -> Decoded:
    """A result that nothing is wrong with but what is given."""
    tokens = known.setdefault("tokens", (1,))
    scores = {"avg_logprob": -0.3, "no_speech_prob": 0.1, "compression_ratio": 1.2}
    how = {"temperature": 0.0, "language": "en", "n_given": 0}
    what = {"frames": (), "ended": True, "loop": None, "token_probs": (0.5,) * len(tokens)}
    return Decoded(
        **{"alignment": np.empty((0, 1, 1), np.float32), **scores, **how, **what, **known}
    )


def with_fallback(attempt: Callable[[float], Decoded], options: DecodingOptions) -> Decoded:
    """The attempt that is taken, where each one is known at once."""

    def search(temperature: float) -> Search[Decoded]:
        return attempt(temperature)
        yield  # a search that asks for no pass

    return alone(searches.with_fallback(search, options))
