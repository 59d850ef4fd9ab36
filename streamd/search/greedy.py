"""Greedy decoding that verifies a draft, and sampling.

The given tokens and the draft are run in one pass. As long as greedy decoding picks the draft's
tokens, the next logits are there already; then it continues token by token. So the tokens are those
of greedy decoding without a draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamd.search.paths import Cache, Path, Prefill, log_softmax, token_prob
from streamd.search.rules import Row, Rules


@dataclass(frozen=True, slots=True)
class Sampler:
    """How to sample: the temperature (above 0), the number of transcripts, and a generator."""

    temperature: float
    n_paths: int
    rng: np.random.Generator


def greedy(
    cache: Cache,
    prefill: Prefill,
    *,
    draft: Sequence[int],
    rules: Rules,
    stop: Callable[[Path], bool],
    stability: float = 0.0,
) -> tuple[Path, int]:
    """Take the most probable token until the end of text, or until `stop` says so of the path.

    `prefill` are the given tokens and `draft`, with the logits (1 + len(draft), n_vocab) after the
    last given token and after each one of the draft. A draft's token is taken if its probability is
    at least 1 - `stability` of the best one's. Returns the path, and how many tokens of the draft
    it kept.
    """
    run, logits = prefill
    n_given = len(run.slots) - len(draft)
    path, row, accepted = run.cut(n_given), logits[0], 0
    while True:
        drafted = draft[accepted] if accepted == len(path.tokens) < len(draft) else None
        path = _pick(path, row, rules=rules, drafted=drafted, stability=stability)
        as_drafted = not path.ended and path.tokens[-1] == drafted
        accepted += as_drafted
        if path.ended or stop(path):
            return path, accepted
        if as_drafted:
            # The draft's next token was run already: take its slot, row and frame.
            known = run.cut(n_given + accepted)
            path = replace(path, slots=known.slots, rows=known.rows, frames=known.frames)
            row = logits[accepted]
        else:
            cache.keep([path])
            (path,), rows = cache.extend([path])
            row = rows[0]


def sample(
    cache: Cache, prefill: Prefill, *, rules: Rules, sampler: Sampler, max_tokens: int
) -> list[Path]:
    """Draw independent transcripts; `prefill.logits` are (1, n_vocab)."""
    alive = dict.fromkeys(range(sampler.n_paths), prefill.path)
    rows = np.repeat(prefill.logits, sampler.n_paths, axis=0)
    done: list[Path] = []
    while alive:
        # As in openai-whisper, a transcript that ended takes its number too: with the same numbers
        # the tokens are the same.
        uniform = sampler.rng.random(sampler.n_paths)
        drawn: dict[int, Path] = {}
        for (i, path), row in zip(alive.items(), rows, strict=True):
            allowed = rules(row, path.tokens)
            token = draw(allowed / np.float32(sampler.temperature), float(uniform[i]))
            drawn[i] = _take(path, row, allowed, token, rules=rules)
        alive = {i: p for i, p in drawn.items() if not p.ended and len(p.tokens) < max_tokens}
        done += [path for i, path in drawn.items() if i not in alive]
        if alive:
            cache.keep(alive.values())
            extended, rows = cache.extend(list(alive.values()))
            alive = dict(zip(alive, extended, strict=True))
    return done


def draw(logits: Row, uniform: float) -> int:
    """The token whose share of the softmax, laid end to end, contains `uniform` in [0, 1)."""
    shares = np.exp(logits.astype(np.float64) - logits.max()).cumsum()
    # Rounding must not reach the end.
    at = min(uniform * shares[-1], np.nextafter(shares[-1], 0.0))
    return int(np.searchsorted(shares, at, side="right"))


def _pick(path: Path, row: Row, *, rules: Rules, drafted: int | None, stability: float) -> Path:
    allowed = rules(row, path.tokens)
    token = int(allowed.argmax())
    if drafted is not None and stability > 0.0:
        difference = float(allowed[token] - allowed[drafted])
        if np.exp(-difference) >= 1.0 - stability:
            token = drafted
    return _take(path, row, allowed, token, rules=rules)


def _take(path: Path, row: Row, allowed: Row, token: int, *, rules: Rules) -> Path:
    logprob = float(log_softmax(allowed)[token])
    if token == rules.eot:
        return path.end(logprob)
    probs = np.exp(log_softmax(row[: rules.eot]))
    return path.append(token, logprob, token_prob(probs, token, logprob))
