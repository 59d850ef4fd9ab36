"""Greedy decoding that verifies a draft, and sampling.

The given tokens and the draft are run in one pass. As long as greedy decoding picks the draft's
tokens, the next logits are there already. Then each token is run with a guess of the next ones,
which is verified like the draft. So the tokens are those of decoding one by one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamd.whisper.engine import Search
from streamd.whisper.logit_rules import REFUSED, Row, Rules
from streamd.whisper.paths import Cache, Path, Prefill
from streamd.whisper.vocabulary import Expected


@dataclass(frozen=True, slots=True)
class Sampler:
    """How to sample: the temperature (above 0), the number of transcripts, and a generator."""

    temperature: float
    n_paths: int
    rng: np.random.Generator


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess of the whole transcript, and what to guess where it was wrong.

    `mark` is a full stop, or None if it is not guessed; at most `longest` tokens are sampled. Those
    from `timestamp_begin` on are timestamps. After the draft, `n_ahead` tokens at the most are
    guessed at a time.
    """

    tokens: Sequence[int]
    mark: int | None
    longest: int
    timestamp_begin: int
    n_ahead: int

    def after(self, tokens: Sequence[int]) -> Sequence[int]:
        """Guess what follows the sampled `tokens`: the draft after the same token, or a full stop.

        Whisper ends most windows with one. Where a segment ends, most often the next one begins.
        """
        last, n = tokens[-1], len(tokens) - 1
        same = [at for at, token in enumerate(self.tokens) if token == last]
        nearest = min(same, key=lambda at: abs(at - n), default=len(self.tokens))
        guess = self.tokens[nearest + 1 :]
        if not guess and last >= self.timestamp_begin:
            guess = (last,) if n and tokens[-2] < self.timestamp_begin else ()
        elif not guess and self.mark is not None and last != self.mark:
            guess = (self.mark,)
        return guess[: min(self.n_ahead, self.longest - len(tokens) - 1)]


def greedy(
    cache: Cache,
    prefill: Prefill,
    *,
    draft: Draft,
    rules: Rules,
    stop: Callable[[Path], bool],
    expected: Expected | None = None,
) -> Search[Path]:
    """Take the most probable token until the end of text, or until `stop` says so of the path.

    `prefill` are the given tokens and the draft, with the logits (1 + len(draft), n_vocab) after
    the last given token and after each one of the draft. Where an expected phrase is nearly as
    probable as what the model prefers, it is tried to its end.
    """
    ahead = _Ahead(prefill, draft.tokens)
    path, trial = ahead.path, None
    while True:
        allowed = rules(ahead.row, path.tokens)
        token = int(allowed.argmax())
        if expected:
            trial = trial or _Trial(expected, path, ahead, draft.n_ahead)
            chosen = trial.choose(allowed, path, token)
            if chosen is None or (trial.is_open and len(path.tokens) + 1 >= draft.longest):
                path, ahead = trial.give_up()
                continue
            token, trial = chosen, trial if trial.is_open else None
        path = _take(path, ahead.row, allowed, token, rules=rules)
        if path.ended or stop(path):
            return path
        if ahead.guessed == token:
            # It was run already: take its slot, row and frame.
            ahead = _Ahead(ahead.run, ahead.guess, ahead.n_right + 1)
            run = ahead.path
            path = path.run(run.slots, run.rows, run.frames)
            continue
        cache.keep([path] if trial is None else [path, trial.ahead.run.path])
        guess = (trial.must_follow() if trial else ()) or draft.after(path.tokens)
        guess = guess[: draft.longest - len(path.tokens) - 1]
        ahead = _Ahead((yield from cache.try_out(path, guess)), guess)
        path = ahead.path


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Tokens that were run with a guess of what follows them, of which `n_right` are right.

    The logits of `run` (1 + len(guess), n_vocab) are those after the last sampled or given token,
    and after each one of the guess.
    """

    run: Prefill
    guess: Sequence[int]
    n_right: int = 0

    @property
    def row(self) -> Row:
        """The logits after what is right."""
        row: Row = self.run.logits[self.n_right]
        return row

    @property
    def path(self) -> Path:
        """The path up to what is right."""
        run = self.run.path
        return run.cut(len(run.slots) - len(self.guess) + self.n_right)

    @property
    def guessed(self) -> int | None:
        """The next token of the guess."""
        return self.guess[self.n_right] if self.n_right < len(self.guess) else None


_MOST_TRIES = 3
"""Phrases, told apart by their first tokens, that are tried in one place."""


class _Trial:
    """A phrase that is tried where the model prefers something else.

    `path` and `ahead` are from before it, and are what counts again if it breaks off. The phrase
    may be less probable than what the model prefers, token by token, by what it is worth in all.
    """

    def __init__(self, expected: Expected, path: Path, ahead: _Ahead, n_ahead: int) -> None:
        self.ahead, self.is_open, self._n_ahead = ahead, False, n_ahead
        self._expected, self._path = expected, path
        self._tried: list[int] = []
        self._node, self._cost = expected.vocabulary.root, 0.0

    def choose(self, allowed: Row, path: Path, preferred: int) -> int | None:
        """The next token, with a phrase or without; None if the phrase breaks off."""
        if not self.is_open:
            return self._begin(allowed, path, preferred)
        vocabulary = self._expected.vocabulary
        token, worth = vocabulary.best_next(allowed, self._node)
        if (whole := float(self._node.whole)) > 0:
            # It has gained all that. To go on must pay for itself.
            worth, self._cost = worth - whole, 0.0
        if token >= 0 and self._cost + float(allowed[preferred] - allowed[token]) <= worth:
            self._cost += float(allowed[preferred] - allowed[token])
            (self._node,) = vocabulary.then((self._node,), token)[:1]
            return token
        if whole > 0 and not vocabulary.goes_on(preferred):
            self.is_open = False
            return preferred
        return None

    def _begin(self, allowed: Row, path: Path, preferred: int) -> int:
        if len(self._tried) == _MOST_TRIES:
            return preferred
        nodes = self._expected.open(path.tokens)
        boosted = self._expected.vocabulary.boosted(allowed, nodes)
        boosted[self._tried] = REFUSED
        token = int(boosted.argmax())
        following = self._expected.vocabulary.then(nodes, token)
        if boosted[token] <= boosted[preferred] or not following:
            return preferred
        self._tried.append(token)
        self._node, self._cost = following[0], float(allowed[preferred] - allowed[token])
        self.is_open = True
        return token

    def give_up(self) -> tuple[Path, _Ahead]:
        """Go back to where the phrase began."""
        self.is_open = False
        return self._path, self.ahead

    def must_follow(self) -> tuple[int, ...]:
        """The tokens without which the phrase breaks off."""
        return self._expected.vocabulary.only_next(self._node, self._n_ahead)


def sample(
    cache: Cache, prefill: Prefill, *, rules: Rules, sampler: Sampler, max_tokens: int
) -> Search[list[Path]]:
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
            extended, rows = yield from cache.extend(list(alive.values()))
            alive = dict(zip(alive, extended, strict=True))
    return done


def draw(logits: Row, uniform: float) -> int:
    """The token whose share of the softmax, laid end to end, contains `uniform` in [0, 1)."""
    shares = np.exp(logits.astype(np.float64) - logits.max()).cumsum()
    # Rounding must not reach the end.
    at = min(uniform * shares[-1], np.nextafter(shares[-1], 0.0))
    return int(np.searchsorted(shares, at, side="right"))


def _take(path: Path, row: Row, allowed: Row, token: int, *, rules: Rules) -> Path:
    """The path with a token, and with its probabilities: under the rules, and as `token_prob`."""
    top, eot, refused = allowed.max(), rules.eot, rules.refused
    shares = allowed - top
    np.exp(shares, out=shares)
    text = float(shares[:eot].sum())
    logprob = float(allowed[token] - top) - math.log(text + float(shares[eot:].sum()))
    if token == eot:
        return path.end(logprob)
    if token > eot:
        return path.append(token, logprob, math.exp(logprob))
    # Among all text tokens: as the rules refuse few, or all, a second sum over all is not needed.
    text += float(np.exp(row[refused].astype(np.float64) - top).sum() - shares[refused].sum())
    own = math.exp(row[token] - top)
    # The sum has float32's range: a sample may be more improbable.
    return path.append(token, logprob, own / max(text, own))
