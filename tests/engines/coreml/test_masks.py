"""What the host puts into a pass: masks that the Neural Engine's softmax can take, nothing else."""

from pathlib import Path

import numpy as np
import pytest

from streamd.engines.coreml.package import MASKED, BuiltModel
from streamd.engines.coreml.runtime.programs import fill, new_inputs
from streamd.engines.coreml.runtime.worker import Step
from tests.coreml.verify.tree import Tree
from tests.support import coreml_odd as odd

RANDOM = np.random.default_rng(4)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> BuiltModel:
    """As much of a built model as passes need: no packages, but tables."""
    folder: Path = tmp_path_factory.mktemp("tables")
    dims = odd.DIMS
    for name, n in (("embedding", dims.n_vocab), ("positions", dims.n_text_ctx)):
        table = RANDOM.standard_normal((n, dims.n_text_state)).astype(np.float16)
        np.save(folder / f"{name}.npy", table)
    return BuiltModel(folder, odd.META)


def passes(built):
    """A pass of each size for each function that takes it."""
    for function in built.functions:
        if function.kind in ("step", "align"):
            for n in range(1, function.k + 1):
                tree = Tree.grown(np.arange(99), n=n, n_slots=function.n_slots)
                yield function, tree


def filled(built, function, tree) -> dict[str, np.ndarray]:
    inputs, part = new_inputs(function), tree.passed
    for array in inputs.values():
        array[...] = np.nan  # of the pass before
    tokens, positions = tree.tokens[part], tree.positions[part]
    step = Step(0, tokens, positions, tree.slots[part], tree.seen[part], np.arange(tree.n))
    x = built.embedding[tokens].astype(np.float32) + built.positions[positions]
    fill(inputs, function, step, x)
    return inputs


def test_masks_hide_or_do_not_and_hide_nothing_from_everybody(built):
    n = 0
    for function, tree in passes(built):
        inputs = filled(built, function, tree)
        mask = inputs["mask"]
        assert set(np.unique(mask)) <= {0.0, np.float32(MASKED)}
        assert (mask == 0).any(axis=-1).all(), "a query that sees nothing would be no number"
        assert all(np.isfinite(array).all() for array in inputs.values())
        unused = range(tree.n, function.k)
        assert all(np.array_equal(inputs["x"][..., i], inputs["x"][..., 0]) for i in unused)
        assert all(np.array_equal(mask[:, :, i], mask[:, :, 0]) for i in unused)
        n += 1
    assert n == 3 * (2 + 16 + 32 + 32)


def test_engine_and_check_say_the_same_of_a_pass(built):
    """They do not share a line: what both have in mind is the layout's promise."""
    for function, tree in passes(built):
        found, wanted = filled(built, function, tree), tree.inputs(function, built)
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            rows = slice(0, tree.n if name == "mask" else None)
            np.testing.assert_array_equal(found[name][:, :, rows], array[:, :, rows])
