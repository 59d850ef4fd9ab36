"""The cache of slots is invisible: whatever passes and slots, each path gets its own logits.

The oracle is the reference decoder, which sees a path as one whole pass in fresh slots.
"""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.engines.onnx import build
from streamd.whisper.engine import Decoder
from streamd.whisper.mel import log_mel
from tests.golden import load
from tests.support.checkpoints import network
from tests.support.decoders import CheckedEngine, run_pass

N_CTX = 64
N_SLOTS = 150
"""More than one growth of the ONNX pool."""

KINDS = {"reference": CheckedEngine, "onnx": build}
both_engines = pytest.mark.parametrize("kind", KINDS)
tokens_of = st.lists(st.integers(0, 1907), min_size=1, max_size=12)


@cache
def prepared(kind: str):
    """An engine with the random model, and the features of one clip."""
    model = load.model("random")
    engine = KINDS[kind](network(model.dims, model.weights, alignment_heads=model.alignment_heads))
    mel = log_mel(load.samples("lamp", 192), model.dims.n_mels)[:, : 2 * N_CTX]
    return engine, engine.encode(mel, audio_ctx=N_CTX)


def new_decoder(kind: str, n_slots: int = N_SLOTS) -> Decoder:
    engine, features = prepared(kind)
    return engine.decoder(features, n_slots)


@cache
def oracle(path: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and alignment of each token of a path."""
    k = len(path)
    order = np.arange(k)
    decoder = new_decoder("reference", n_slots=k)
    return run_pass(decoder, np.array(path), order, order, np.tri(k, dtype=np.bool_), order)


@both_engines
@given(tokens_of, tokens_of)
@settings(max_examples=10)
def test_a_decoder_goes_on_behind_the_slots_of_another(kind, text, more):
    path, n = [*text, *more], len(text)
    earlier, decoder = new_decoder(kind), new_decoder(kind)
    chain(earlier, path[::-1], list(range(len(path))), [])  # whose slots are all written anew
    chain(earlier, text, list(range(n)), [])
    assert decoder.adopt(earlier, n)
    nodes = [(path[i], i, i) for i in range(n, len(path))]
    logits, alignment = feed(decoder, nodes, [set(range(i)) for i in range(n, len(path))])
    expected_logits, expected_alignment = oracle(tuple(path))
    np.testing.assert_allclose(logits, expected_logits[n:], atol=1e-3)
    np.testing.assert_allclose(alignment, expected_alignment[n:], atol=1e-3)


@both_engines
def test_a_decoder_of_another_kind_is_refused(kind):
    other = next(name for name in KINDS if name != kind)
    assert not new_decoder(kind).adopt(new_decoder(other), 1)


def feed(
    decoder: Decoder,
    nodes: list[tuple[int, int, int]],
    seen: list[set[int]],
    want: list[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One pass of (token, position, slot) nodes that see the given slots and themselves."""
    tokens, positions, slots = (np.array(column) for column in zip(*nodes, strict=True))
    visible = np.zeros((len(nodes), decoder.n_slots), np.bool_)
    for row, of_row in enumerate(seen):
        visible[row, [*of_row, slots[row]]] = True
    rows = np.arange(len(nodes)) if want is None else np.array(want)
    return run_pass(decoder, tokens, positions, slots, visible, rows)


def chain(decoder: Decoder, tokens: list[int], slots: list[int], cuts: list[int]):
    """Feed a path in passes that end at `cuts`; logits and alignment of all its tokens."""
    ends = sorted({0, *(cut for cut in cuts if cut < len(tokens)), len(tokens)})
    results = []
    for start, end in pairwise(ends):
        nodes = [(tokens[i], i, slots[i]) for i in range(start, end)]
        seen = [set(slots[:i]) for i in range(start, end)]
        results.append(feed(decoder, nodes, seen))
    return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4, rtol=0)


@both_engines
@given(tokens=tokens_of, cuts=st.lists(st.integers(1, 11)), data=st.data())
def test_any_passes_in_any_slots_equal_one_full_forward(kind, tokens, cuts, data):
    slots = data.draw(
        st.lists(
            st.integers(0, N_SLOTS - 1), min_size=len(tokens), max_size=len(tokens), unique=True
        )
    )
    assert_equal(chain(new_decoder(kind), tokens, slots, cuts), oracle(tuple(tokens)))


@both_engines
def test_one_by_one_to_the_end_of_the_context(kind):
    n = load.model("random").dims.n_text_ctx
    tokens = [int(token) for token in np.random.default_rng(5).integers(0, 1908, n)]
    found = chain(new_decoder(kind), tokens, list(range(n)), list(range(n)))
    assert_equal(found, oracle(tuple(tokens)))


@both_engines
@given(data=st.data())
def test_each_path_of_a_tree_gets_its_own_logits(kind, data):
    n = data.draw(st.integers(1, 14), label="nodes")
    tokens = data.draw(st.lists(st.integers(0, 1907), min_size=n, max_size=n))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(n)]
    slots = data.draw(st.permutations(range(n + 3)))
    ancestors: list[list[int]] = []
    for i, parent in enumerate(parents):
        ancestors.append([*ancestors[parent], parent] if parent >= 0 else [])
        assert all(a < i for a in ancestors[i])
    decoder = new_decoder(kind)
    ends = sorted({0, n, *data.draw(st.lists(st.integers(1, n)), label="passes")})
    for start, end in pairwise(ends):
        nodes = [(tokens[i], len(ancestors[i]), slots[i]) for i in range(start, end)]
        seen = [{slots[a] for a in ancestors[i]} for i in range(start, end)]
        logits, alignment = feed(decoder, nodes, seen)
        for row, i in enumerate(range(start, end)):
            path = tuple(tokens[a] for a in [*ancestors[i], i])
            expected = oracle(path)
            assert_equal((logits[row], alignment[row]), (expected[0][-1], expected[1][-1]))


@both_engines
@given(kept=tokens_of, rejected=tokens_of, tail=tokens_of, cuts=st.lists(st.integers(1, 11)))
def test_freed_slots_do_not_leak(kind, kept, rejected, tail, cuts):
    """A rejected draft's slots are written again by what replaces it, partly in the same pass."""
    decoder = new_decoder(kind)
    slots = list(range(40))
    chain(decoder, kept + rejected, slots, [len(kept)])
    path = kept + tail
    ends = sorted({0, *(cut for cut in cuts if cut < len(tail)), len(tail)})
    for start, end in pairwise(ends):
        places = range(len(kept) + start, len(kept) + end)
        nodes = [(path[i], i, slots[i]) for i in places]
        found = feed(decoder, nodes, [set(slots[:i]) for i in places])
        expected = oracle(tuple(path))
        assert_equal(found, (expected[0][list(places)], expected[1][list(places)]))


@both_engines
def test_decoders_of_one_engine_do_not_meet(kind):
    one, other = new_decoder(kind), new_decoder(kind)
    for i in range(6):
        seen = [set(range(i))]
        found = feed(one, [(10 + i, i, i)], seen)
        feed(other, [(99 - i, i, i)], seen)
        expected = oracle(tuple(10 + j for j in range(i + 1)))
        assert_equal(found, (expected[0][-1:], expected[1][-1:]))


@both_engines
def test_wanted_rows_come_in_their_order(kind):
    nodes = [(7, 0, 0), (8, 1, 1), (9, 2, 2)]
    seen = [set(), {0}, {0, 1}]
    logits, alignment = feed(new_decoder(kind), nodes, seen, want=[2, 0])
    expected = oracle((7, 8, 9))
    assert_equal((logits, alignment), (expected[0][[2, 0]], expected[1]))


@both_engines
def test_more_slots_change_nothing_that_was_cached(kind):
    """The pool may grow between two passes."""
    decoder = new_decoder(kind)
    feed(decoder, [(1, 0, 3), (2, 1, 0)], [set(), {3}])
    found = feed(decoder, [(3, 2, N_SLOTS - 1)], [{3, 0}])
    assert_equal(found, [part[-1:] for part in oracle((1, 2, 3))])


@pytest.mark.parametrize(
    ("nodes", "seen", "complaint"),
    [
        ([(1908, 0, 0)], [set()], "token outside"),
        ([(-1, 0, 0)], [set()], "token outside"),
        ([(5, 96, 0)], [set()], "position outside"),
        ([(5, 0, 0), (6, 1, 0)], [set(), {0}], "written twice"),
        ([(5, 0, 0)], [{4}], "never written"),
        ([(5, 0, 0), (6, 1, 1)], [{1}, {0}], "later query"),
    ],
)
def test_the_reference_refuses_a_pass_that_makes_no_sense(nodes, seen, complaint):
    with pytest.raises(ValueError, match=complaint):
        feed(new_decoder("reference"), nodes, seen)


def test_the_reference_wants_every_query_to_see_itself():
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="attend to itself"):
        run_pass(new_decoder("reference", 2), one, one, one, np.zeros((1, 2), np.bool_), one)
