"""Hypotheses as paths of cache slots.

Paths that share a beginning share its slots; slots that no path needs any more are reused. The
layout is that of tree attention, as in SpecInfer (Miao et al. 2023).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.whisper.engine import Alignment, Decoder, Logits, Pass, Search
from streamd.whisper.logit_rules import Row


@dataclass(frozen=True, slots=True)
class Path:
    """One hypothesis: what it sampled, and which cache slots it attends to.

    `slots`, `rows` (alignment scores, (n_heads, n_ctx) each) and `frames` (the one that each
    attends to most) cover every token that was run: the given ones, and `tokens` except perhaps the
    last. A row belongs to the choice of the *next* token. `logprobs` are under the rules; if the
    path `ended`, they have one more entry, for end-of-text. `probs` are those of `token_prob`.
    `bonus` is what its phrases are worth (`streamd.whisper.vocabulary`).
    """

    slots: tuple[int, ...] = ()
    rows: tuple[NDArray[np.float32], ...] = ()
    frames: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    probs: tuple[float, ...] = ()
    bonus: float = 0.0
    ended: bool = False

    def append(self, token: int, logprob: float, prob: float) -> "Path":
        """The path with one more sampled token."""
        return Path(  # `replace` takes five times as long
            self.slots,
            self.rows,
            self.frames,
            (*self.tokens, token),
            (*self.logprobs, logprob),
            (*self.probs, prob),
            self.bonus,
            self.ended,
        )

    def end(self, logprob: float) -> "Path":
        """The path with end-of-text sampled, which does not count as one of its tokens."""
        return replace(self, logprobs=(*self.logprobs, logprob), ended=True)

    def cut(self, n_run: int) -> "Path":
        """The path as if only its first `n_run` tokens, given or sampled, had been run."""
        return self.run(self.slots[:n_run], self.rows[:n_run], self.frames[:n_run])

    def run(
        self, slots: tuple[int, ...], rows: tuple[NDArray[np.float32], ...], frames: tuple[int, ...]
    ) -> "Path":
        """The path with these tokens run, given or sampled."""
        return Path(
            slots, rows, frames, self.tokens, self.logprobs, self.probs, self.bonus, self.ended
        )

    @property
    def sum_logprob(self) -> float:
        """Log probability of all that was sampled."""
        return float(sum(self.logprobs))

    @property
    def score(self) -> float:
        """The log probability, and what the phrases are worth."""
        return self.sum_logprob + self.bonus


class Prefill(NamedTuple):
    """The path of tokens that were run, and the logits (m, n_vocab) that were asked for."""

    path: Path
    logits: Logits


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Given tokens of a window, which are in the first slots of its decoder, for the next window.

    `rows` (n, n_heads, n_frames) are their alignment scores; `frames` as in `Path`.
    """

    decoder: Decoder
    tokens: tuple[int, ...]
    rows: Alignment
    frames: tuple[int, ...]

    def cut(self, n: int, n_frames: int) -> "CachedTokens":
        """The first `n` of them, for a window in which `n_frames` hold audio."""
        rows = self.rows[:n, :, :n_frames]
        return replace(self, tokens=self.tokens[:n], rows=rows, frames=self.frames[:n])

    def n_shared(self, tokens: Sequence[int]) -> int:
        """With how many of its tokens `tokens` begin."""
        pairs = zip(self.tokens, tokens, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class Cache:
    """A decoder and the slots of its cache that are in use."""

    def __init__(self, decoder: Decoder, *, finds_frames: bool = True) -> None:
        """`decoder` must be new: all of its slots count as free.

        Without `finds_frames`, paths have no `frames`.
        """
        self._decoder, self._finds_frames = decoder, finds_frames
        self._free = np.ones(decoder.n_slots, np.bool_)

    def prefill(self, tokens: Sequence[int], want: Sequence[int]) -> Search[Prefill]:
        """Run given tokens in one pass; return the logits of the positions in `want`."""
        return self.follow(Path(), tokens, want)

    def resume(
        self, cached: CachedTokens, tokens: Sequence[int], *, want: Sequence[int], again: int
    ) -> Search[Prefill | None]:
        """Run `tokens` behind cached ones; None if the decoder cannot.

        Returns the path with all of them, and the logits of the cached token at place `again`,
        which is run anew, before those that `want` asks for.
        """
        n = len(cached.tokens)
        if not self._decoder.adopt(cached.decoder, n):
            return None
        self._free[:n] = False
        own, spare = self._take(len(tokens)), self._take(1)
        attended = [(*range(n), *own[: i + 1]) for i in range(len(own))]
        logits, alignment = yield self._pass(
            [*tokens, cached.tokens[again]],
            [*own, *spare],
            [*attended, (*range(again), *spare)],
            [len(tokens), *want],
        )
        self._free[spare] = True
        # For sound that is new: effectively minus infinity, but finite.
        unseen = np.finfo(np.float16).min
        earlier = np.full((n, *alignment.shape[1:]), unseen, np.float32)
        earlier[..., : cached.rows.shape[-1]] = cached.rows
        path = Path(
            slots=(*range(n), *own),
            rows=(*earlier, *alignment[:-1]),
            frames=(*cached.frames, *self._frames(alignment[:-1])),
        )
        return Prefill(path, logits)

    def try_out(self, path: Path, guess: Sequence[int]) -> Search[Prefill]:
        """Run the path's last token, which was sampled but not run, and a guess of what follows.

        Returns the path with all of them run, and the logits (1 + len(guess), n_vocab) after each.
        """
        return self.follow(path, (path.tokens[-1], *guess), range(1 + len(guess)))

    def follow(
        self,
        path: Path,
        tokens: Sequence[int],
        want: Sequence[int],
        among: Sequence[int] | None = None,
    ) -> Search[Prefill]:
        """Run tokens behind a path; return the longer path, and the logits of those in `want`.

        The logits are those of all tokens, or of the ones in `among`.
        """
        slots = self._take(len(tokens))
        attended = [(*path.slots, *slots[: i + 1]) for i in range(len(slots))]
        asked = self._pass(tokens, slots, attended, want)
        if among is not None:
            asked = asked._replace(among=np.asarray(among, np.int64))
        logits, alignment = yield asked
        frames = (*path.frames, *self._frames(alignment))
        longer = path.run((*path.slots, *slots), (*path.rows, *alignment), frames)
        return Prefill(longer, logits)

    def extend(self, paths: Sequence[Path]) -> Search[tuple[list[Path], Logits]]:
        """Run the last token of each path, which was sampled but not run, in one pass.

        Returns the longer paths, and the logits (n_paths, n_vocab) of what follows.
        """
        slots = self._take(len(paths))
        attended = [(*path.slots, slot) for path, slot in zip(paths, slots, strict=True)]
        tokens = [path.tokens[-1] for path in paths]
        logits, alignment = yield self._pass(tokens, slots, attended, range(len(paths)))
        frames = self._frames(alignment)
        extended = [
            path.run(visible, (*path.rows, row), (*path.frames, *frames[at : at + 1]))
            for at, (path, visible, row) in enumerate(zip(paths, attended, alignment, strict=True))
        ]
        return extended, logits

    def keep(self, paths: Iterable[Path]) -> None:
        """Free the slots of all other paths."""
        self._free[:] = True
        for path in paths:
            self._free[list(path.slots)] = False

    def _frames(self, alignment: Alignment) -> list[int]:
        return attended_frames(alignment) if self._finds_frames else []

    def _take(self, n: int) -> list[int]:
        slots: list[int] = np.flatnonzero(self._free)[:n].tolist()
        if len(slots) < n:
            raise RuntimeError(f"{n} cache slots needed, {len(slots)} of {len(self._free)} free")
        self._free[slots] = False
        return slots

    def _pass(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        attended: Sequence[tuple[int, ...]],
        want: Sequence[int],
    ) -> Pass:
        visible = np.zeros((len(tokens), self._decoder.n_slots), np.bool_)
        for row, columns in zip(visible, attended, strict=True):
            row[list(columns)] = True
        return Pass(
            self._decoder,
            np.asarray(tokens, np.int64),
            np.asarray([len(slots) - 1 for slots in attended], np.int64),
            np.asarray(slots, np.int64),
            visible,
            np.asarray(want, np.int64),
        )


def attended_frames(alignment: Alignment) -> list[int]:
    """The frame that each query of (k, n_heads, n_ctx) scores attends to most."""
    weights = alignment - alignment.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    frames: list[int] = weights.sum(axis=1).argmax(axis=-1).tolist()
    return frames


def log_softmax(row: Row) -> NDArray[np.float32]:
    """Log probabilities of one row of logits."""
    logprobs: NDArray[np.float32] = row - log_sum(row)
    return logprobs


def log_sum(row: Row) -> np.float32:
    """What to subtract from one row of logits to get log probabilities.

    Where one of them is wanted, the others of a vocabulary of 50,000 need not be computed.
    """
    top = row.max()
    shares = row - top
    np.exp(shares, out=shares)
    total: np.float32 = top + np.log(shares.sum())
    return total


def token_prob(text: Row, total: np.float32, token: int, logprob: float) -> float:
    """A text token's probability among the text tokens, or any other's under the rules.

    `text` are the logits of the text tokens, `total` their `log_sum`. A word's confidence is the
    mean of these, as in openai/whisper ``timing.py``.
    """
    return math.exp(text[token] - total) if token < len(text) else math.exp(logprob)
