"""The slots of a search in a cache of fixed size: what is lost is computed again, never wrong."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.engines.coreml.package import MAX_TOKENS
from streamd.engines.coreml.runtime.core_ml_engine import CacheSlots, CoreMLDecoder
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
    """A worker's only cache, whose columns hold numbers that say all of their past; and it dies.

    It is all windows, too, and their engine.
    """

    dims = DIMS
    extent = Extent(n=0, first=0)
    mel = previous = None

    dies: list[bool] = field(default_factory=list)
    columns: dict[int, int] = field(default_factory=dict)
    passes: int = 0

    def __post_init__(self):
        self.cache_slots = CacheSlots(N_COLUMNS)
        self.lose()

    @property
    def engine(self):
        return self

    def with_worker(self, attempt):
        while True:
            try:
                return attempt(self.worker)
            except WorkerLostError:
                self.lose()

    def lose(self):
        """Start another worker."""
        self.columns.clear()
        self.worker = SimpleNamespace(step=self.step, encode=lambda *window: None)

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


def test_the_logits_of_some_tokens_are_theirs_among_all():
    order, visible = np.arange(3), np.tri(3, dtype=np.bool_)
    every, _ = CoreMLDecoder(DIMS, Cache(), 3).step(order, order, order, visible, order)
    some, _ = CoreMLDecoder(DIMS, Cache(), 3).step(order, order, order, visible, order, order[1:])
    np.testing.assert_array_equal(some, every[:, 1:3])


@pytest.mark.parametrize("k", [1, MAX_TOKENS, MAX_TOKENS + 1, N_TEXT_CTX])
def test_long_passes_are_cut(k):
    cache = Cache()
    tree = Tree(CoreMLDecoder(DIMS, cache, N_TEXT_CTX), 1)
    tree.run([0], list(range(k)), shared=True)
    assert cache.passes == -(-k // MAX_TOKENS)


def test_a_decoder_whose_worker_is_lost_computes_its_past_again():
    cache = Cache()
    tree = Tree(CoreMLDecoder(DIMS, cache, N_TEXT_CTX), 1)
    tree.run([0], list(range(35)), shared=True)
    cache.lose()
    tree.run([0], [3])
    assert cache.passes == 2 + 3


def following(tree: Tree, n: int, n_paths: int = 1) -> Tree:
    """A search in the next window, which has the first `n` slots of the one before."""
    found = Tree(CoreMLDecoder(DIMS, tree.decoder._window, n_paths * N_TEXT_CTX), n_paths)
    assert found.decoder.adopt(tree.decoder, n)
    found.paths = [list(range(n)) for _ in range(n_paths)]
    found.values = {slot: tree.values[slot] for slot in range(n)}
    return found


@given(
    windows=st.lists(
        st.lists(
            st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 9), st.integers(1, 4)),
            min_size=1,
            max_size=3,
        ),
        max_size=9,
    ),
    dies=st.lists(st.booleans(), max_size=20),
)
def test_adopted_text_is_what_the_decoder_before_had(windows, dies):
    """Each window has several searches, of which the next one adopts the text of the first."""
    before, n_before = Tree(CoreMLDecoder(DIMS, Cache(dies), N_TEXT_CTX), 1), 0
    for searches in windows:
        trees = []
        for n, n_given, n_sampled, n_paths in searches:
            tree = following(before, min(n, n_before), n_paths)
            tree.run([0], list(range(n_given)), shared=True)
            trees.append((tree, len(tree.paths[0])))
            for _ in range(min(n_sampled, N_TEXT_CTX - len(tree.paths[0]))):
                tree.run(list(range(n_paths)), list(range(n_paths)))
        before, n_before = trees[0]


def test_adopted_text_is_not_computed_again():
    cache = Cache()
    before = Tree(CoreMLDecoder(DIMS, cache, N_TEXT_CTX), 1)
    before.run([0], list(range(20)), shared=True)
    for _ in range(3):
        before.run([0], [1])
    Tree(CoreMLDecoder(DIMS, cache, N_TEXT_CTX), 1).run([0], list(range(32)), shared=True)
    cache.passes = 0
    first = following(before, 20)
    first.run([0], [5])
    following(before, 20).run([0], [6])
    assert cache.passes == 2, "the second try of a window adopts it as well"
    following(first, 21).run([0], [7])
    assert cache.passes == 3
    cache.lose()
    following(first, 21).run([0], [7])
    assert cache.passes == 5


def test_a_decoder_of_another_engine_is_refused():
    one, other = (CoreMLDecoder(DIMS, Cache(), N_TEXT_CTX) for _ in range(2))
    assert not one.adopt(other, 1)
    assert not one.adopt(None, 1)
