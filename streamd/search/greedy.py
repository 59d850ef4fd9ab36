"""Greedy decoding that verifies a draft, and sampling.

The draft is run together with what is given, in one pass. Greedy decoding then goes over its
positions one by one as it would anyway: while the token it picks is the draft's, the next logits
are there already; at the first other token the rest of the draft is dropped from the cache and
decoding goes on step by step. The tokens are those of greedy decoding without a draft, always.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamd.search.paths import Cache, Path, Started, log_softmax, text_prob
from streamd.search.rules import Row, Rules


@dataclass(frozen=True, slots=True)
class Lottery:
    """How to sample: the temperature above 0, how many transcripts, and the source of chance."""

    temperature: float
    n_paths: int
    rng: np.random.Generator


def greedy(
    cache: Cache,
    started: Started,
    *,
    draft: Sequence[int],
    rules: Rules,
    stop: Callable[[Path], bool],
    stability: float = 0.0,
) -> tuple[Path, int]:
    """Take the likeliest token until the end of text.

    Parameters
    ----------
    started : the given tokens and then `draft`, run in one pass, with the logits of what follows
        the given tokens and each token of the draft: (1 + len(draft), n_vocab)
    stop : asked after each token, with the path behind it; True ends the decode
    stability : take the draft's token if its probability is at least 1 - stability of the best
        one's; 0 is exactly greedy

    Returns
    -------
    the path, which has not `ended` if `stop` ended it, and how many tokens of the draft it kept
    """
    run, logits = started
    n_given = len(run.slots) - len(draft)
    path, row, accepted = run.cut(n_given), logits[0], 0
    while True:
        favourite = draft[accepted] if accepted == len(path.tokens) < len(draft) else None
        path = _pick(path, row, rules=rules, favourite=favourite, stability=stability)
        as_drafted = not path.ended and path.tokens[-1] == favourite
        accepted += as_drafted
        if path.ended or stop(path):
            return path, accepted
        if as_drafted:
            known = run.cut(n_given + accepted)
            path = replace(path, slots=known.slots, rows=known.rows, frames=known.frames)
            row = logits[accepted]
        else:
            cache.keep([path])
            (path,), rows = cache.extend([path])
            row = rows[0]


def sample(
    cache: Cache,
    started: Started,
    *,
    rules: Rules,
    lottery: Lottery,
    max_tokens: int,
) -> list[Path]:
    """Draw independent transcripts.

    `started.logits` are (1, n_vocab), what follows the given tokens. Logits divided by the
    temperature plus Gumbel noise have their maximum at a token drawn from the softmax.
    """
    alive = [started.path] * lottery.n_paths
    rows = np.repeat(started.logits, lottery.n_paths, axis=0)
    done: list[Path] = []
    while alive:
        drawn = []
        for path, row in zip(alive, rows, strict=True):
            allowed = rules(row, path.tokens)
            noise = lottery.rng.gumbel(size=len(row))
            noisy = allowed / np.float32(lottery.temperature) + noise
            drawn.append(_take(path, row, allowed, int(noisy.argmax()), rules=rules))
        done += [path for path in drawn if path.ended or len(path.tokens) >= max_tokens]
        alive = [path for path in drawn if not path.ended and len(path.tokens) < max_tokens]
        if alive:
            cache.keep(alive)
            alive, rows = cache.extend(alive)
    return done


def _pick(path: Path, row: Row, *, rules: Rules, favourite: int | None, stability: float) -> Path:
    allowed = rules(row, path.tokens)
    token = int(allowed.argmax())
    if favourite is not None and stability > 0.0:
        behind = float(allowed[token] - allowed[favourite])
        if np.exp(-behind) >= 1.0 - stability:
            token = favourite
    return _take(path, row, allowed, token, rules=rules)


def _take(path: Path, row: Row, allowed: Row, token: int, *, rules: Rules) -> Path:
    logprob = float(log_softmax(allowed)[token])
    if token == rules.eot:
        return path.end(logprob)
    probs = np.exp(log_softmax(row[: rules.eot]))
    return path.append(token, logprob, text_prob(probs, token))
