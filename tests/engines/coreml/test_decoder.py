"""The slots of a search in a cache of fixed size: what is lost is computed again, never wrong."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.engines.coreml.package import MAX_TOKENS
from streamd.engines.coreml.runtime.core_ml_engine import CoreMLDecoder
from streamd.engines.coreml.runtime.worker import Step, WorkerLostError
from streamd.models import ModelDimensions
from streamd.models.silence import Extent

N_TEXT_CTX = 40
N_COLUMNS = 64
DIMS = ModelDimensions(80, 1500, 8, 1, 1, 7, N_TEXT_CTX, 8, 1, 1)
NOTHING = 0


def fingerprint(token: int, position: int, seen: frozenset[int]) -> int:
    """What a slot holds: another number for another token, position or past."""
    return hash((token, position, seen))


@dataclass
class Cache:
    """A worker's cache, whose columns hold numbers that say all of their past; and it dies.

    It is a window, too, its engine, the worker and the only cache slot.
    """

    dims = DIMS
    extent = Extent(n=0, first=0)

    dies: list[bool] = field(default_factory=list)
    columns: dict[int, int] = field(default_factory=dict)
    passes: int = 0

    owner: CoreMLDecoder | None = None

    @property
    def engine(self):
        return self

    cache_slots = engine

    def take(self, worker, window, decoder):
        if self.owner is not decoder:
            self.owner = decoder
            decoder.forget()
        return 0

    def with_worker(self, attempt):
        while True:
            try:
                return attempt(self)
            except WorkerLostError:
                self.columns.clear()
                self.owner = None

    def step(self, step: Step, n_keys: int):
        self.passes += 1
        if self.dies and self.dies.pop():
            raise WorkerLostError
        k = len(step.tokens)
        assert 0 < k <= MAX_TOKENS
        assert step.visible.shape == (k, N_COLUMNS)
        assert len(set(step.columns)) == k
        rows = []
        for token, position, column, row in zip(
            step.tokens, step.positions, step.columns, step.visible, strict=True
        ):
            seen = set(np.flatnonzero(row)) - {column}
            assert seen <= self.columns.keys(), "sees what is not there"
            value = fingerprint(token, position, frozenset(self.columns[other] for other in seen))
            self.columns[column] = value
            rows.append(value)
        values = np.array(rows, np.int64)[:, None, None]
        return values[step.want, 0].repeat(DIMS.n_vocab, 1), values.repeat(3, 2)


class Tree:
    """A search that follows several paths, as `streamd.whisper.paths` does."""

    def __init__(self, decoder: CoreMLDecoder, n_paths: int) -> None:
        self.decoder, self.paths = decoder, [[] for _ in range(n_paths)]
        self.values: dict[int, int] = {}  # what each slot should hold

    def run(self, which: list[int], tokens: list[int], *, shared: bool = False) -> None:
        """Append a token to each of these paths; or all tokens to all paths, which are one yet."""
        held = {slot for path in self.paths for slot in path}
        free = [slot for slot in range(self.decoder.n_slots) if slot not in held][: len(tokens)]
        visible = np.zeros((len(tokens), self.decoder.n_slots), np.bool_)
        positions, expected, past = [], [], list(self.paths[which[0]])
        for n, (slot, token) in enumerate(zip(free, tokens, strict=True)):
            path = past if shared else self.paths[which[n]]
            seen = frozenset(self.values[other] for other in path)
            expected.append(fingerprint(token, len(path), seen))
            positions.append(len(path))
            path.append(slot)
            visible[n, path] = True
            if shared:
                self.values[slot] = expected[-1]
        self.values |= dict(zip(free, expected, strict=True))
        if shared:
            self.paths = [list(past) for _ in self.paths]
        want = np.arange(len(tokens))[::2]
        logits, alignment = self.decoder.step(
            np.array(tokens), np.array(positions), np.array(free), visible, want
        )
        assert logits[:, 0].tolist() == [np.float32(expected[i]) for i in want]
        assert alignment[:, 0, 0].tolist() == expected


@given(
    n_given=st.integers(1, N_TEXT_CTX - 4),
    n_paths=st.integers(1, 9),
    moves=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 4)), max_size=40),
    dies=st.lists(st.booleans(), max_size=20),
)
def test_every_query_sees_its_past(n_given, n_paths, moves, dies):
    cache = Cache(dies)
    tree = Tree(CoreMLDecoder(DIMS, cache, n_given + n_paths * N_TEXT_CTX), n_paths)
    tree.run([0], list(range(n_given)), shared=True)
    for first, copied, token in moves:
        alive = [n for n in range(n_paths) if len(tree.paths[n]) < N_TEXT_CTX]
        if not alive:
            break
        tree.paths[first % n_paths] = list(tree.paths[copied % n_paths])
        alive = [n for n in range(n_paths) if len(tree.paths[n]) < N_TEXT_CTX]
        tree.run(alive, [(token + n) % 5 for n in alive])


def test_paths_that_need_more_than_the_cache_take_turns():
    cache = Cache()
    tree = Tree(CoreMLDecoder(DIMS, cache, 5 * N_TEXT_CTX), 5)
    tree.run([0], [1, 2], shared=True)
    for n in range(N_TEXT_CTX - 2):
        tree.run(list(range(5)), [n % 7] * 5)
    assert len(tree.values) > 2 * N_COLUMNS, "more than the cache can hold"
    assert cache.passes > N_TEXT_CTX


@pytest.mark.parametrize("k", [1, MAX_TOKENS, MAX_TOKENS + 1, N_TEXT_CTX])
def test_long_passes_are_cut(k):
    cache = Cache()
    tree = Tree(CoreMLDecoder(DIMS, cache, N_TEXT_CTX), 1)
    tree.run([0], list(range(k)), shared=True)
    assert cache.passes == -(-k // MAX_TOKENS)


def test_a_decoder_that_forgets_computes_its_past_again():
    cache = Cache()
    tree = Tree(CoreMLDecoder(DIMS, cache, N_TEXT_CTX), 1)
    tree.run([0], list(range(35)), shared=True)
    cache.columns.clear()
    tree.decoder.forget()
    tree.run([0], [3])
    assert cache.passes == 2 + 3
