"""Greedy decoding that verifies a draft, and sampling.

The given tokens and the draft are run in one pass. As long as greedy decoding picks the draft's
tokens, the next logits are there already. Then each token is run with a guess of the next ones,
which is verified like the draft. So the tokens are those of decoding one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from streamd.whisper.paths import Cache, Path, Prefill, log_sum, token_prob
from streamd.whisper.rules import Row, Rules

_N_AHEAD = 3
"""Tokens that are guessed: a pass of four takes hardly longer than one of one."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """How to sample: the temperature (above 0), the number of transcripts, and a generator."""

    temperature: float
    n_paths: int
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess of the whole transcript, and what to guess where it was wrong.

    Its tokens are kept if their probability is at least 1 - `stability` of the best one's. `mark`
    is a full stop; at most `longest` tokens are sampled.
    """

    tokens: Sequence[int]
    stability: float
    mark: int
    longest: int

    def after(self, tokens: Sequence[int]) -> Sequence[int]:
        """Guess what follows the sampled `tokens`: the draft after the same token, or a full stop.

        Whisper ends most windows with one.
        """
        last, n = tokens[-1], len(tokens) - 1
        same = [at for at, token in enumerate(self.tokens) if token == last]
        nearest = min(same, key=lambda at: abs(at - n), default=len(self.tokens))
        guess = self.tokens[nearest + 1 :]
        if not guess and last != self.mark:
            guess = (self.mark,)
        return guess[: min(_N_AHEAD, self.longest - len(tokens) - 1)]


def greedy(
    cache: Cache, prefill: Prefill, *, draft: Draft, rules: Rules, stop: Callable[[Path], bool]
) -> tuple[Path, int]:
    """Take the most probable token until the end of text, or until `stop` says so of the path.

    `prefill` are the given tokens and the draft, with the logits (1 + len(draft), n_vocab) after
    the last given token and after each one of the draft. Returns the path, and how many tokens of
    the draft it kept.
    """
    (run, logits), guess, stability = prefill, draft.tokens, draft.stability
    n_run = len(run.slots) - len(guess)
    path, right, accepted = run.cut(n_run), 0, None
    while True:
        guessed = guess[right] if right < len(guess) else None
        path = _pick(path, logits[right], rules=rules, guessed=guessed, stability=stability)
        is_right = not path.ended and path.tokens[-1] == guessed
        right += is_right
        if path.ended or stop(path):
            return path, right if accepted is None else accepted
        if is_right:
            # It was run already: take its slot, row and frame.
            kept = run.cut(n_run + right)
            path = replace(path, slots=kept.slots, rows=kept.rows, frames=kept.frames)
            continue
        accepted = right if accepted is None else accepted
        cache.keep([path])
        guess, stability = draft.after(path.tokens), 0.0
        run, logits = cache.try_out(path, guess)
        n_run, right = len(run.slots) - len(guess), 0
        path = run.cut(n_run)


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


def _pick(path: Path, row: Row, *, rules: Rules, guessed: int | None, stability: float) -> Path:
    allowed = rules(row, path.tokens)
    token = int(allowed.argmax())
    if guessed is not None and stability > 0.0:
        difference = float(allowed[token] - allowed[guessed])
        if np.exp(-difference) >= 1.0 - stability:
            token = guessed
    return _take(path, row, allowed, token, rules=rules)


def _take(path: Path, row: Row, allowed: Row, token: int, *, rules: Rules) -> Path:
    logprob = float(allowed[token] - log_sum(allowed))
    if token == rules.eot:
        return path.end(logprob)
    text = row[: rules.eot]
    return path.append(token, logprob, token_prob(text, log_sum(text), token, logprob))
