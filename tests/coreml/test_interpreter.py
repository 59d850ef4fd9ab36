"""The interpreter computes what the operations are defined to, as precisely as is asked for."""

import coremltools as ct
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Function

from tests.coreml.interpreter import Interpreter
from tests.coreml.interpreter.half import rounded
from tests.coreml.interpreter.operations import OPERATIONS
from tests.coreml.programs import saved

RANDOM = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


X = numbers(2, 6, 4, 8)
ONCE = {
    "layer_norm": {"x": X, "axes": [1], "gamma": numbers(6), "beta": numbers(6), "epsilon": 1e-3},
    "softmax": {"x": X, "axis": 1},
    "gelu": {"x": X, "mode": "EXACT"},
    "einsum": {"values": (numbers(2, 3, 1, 5), numbers(2, 5, 1, 7)), "equation": "nchw,nwhu->nchu"},
    "split": {"x": X, "num_splits": 3, "axis": 1},
    "slice_by_index": {"x": X, "begin": [0, 1, 0, 2], "end": [2, 4, 4, 7]},
    "concat": {"values": [X, numbers(2, 6, 4, 3)], "axis": 3},
    "transpose": {"x": X, "perm": [0, 3, 2, 1]},
    "identity": {"x": X},
    "add": {"x": X, "y": numbers(6, 1, 1)},
    "mul": {"x": X, "y": numbers(2, 1, 4, 1)},
}
AGAIN = [("gelu", {"x": X, "mode": "TANH_APPROXIMATION"})]


@pytest.mark.parametrize(("kind", "given"), [*ONCE.items(), *AGAIN])
def test_an_operation_is_what_coremltools_takes_it_for(kind, given):
    """coremltools folds constants with numpy code of its own."""
    with Function({"unused": mb.placeholder((1,))}, opset_version=ct.target.iOS18):
        found = getattr(mb, kind)(**given)
        wanted = [each.val for each in (found if isinstance(found, tuple | list) else [found])]
    arrays = {
        name: np.asarray(value) if name not in ("values", "mode", "equation") else value
        for name, value in given.items()
    }
    results = OPERATIONS[kind](**arrays)
    results = results if isinstance(results, list) else [results]
    for one, other in zip(results, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)
        assert one.dtype == np.float32


def test_all_operations_are_tested():
    assert OPERATIONS.keys() == ONCE.keys() | {"conv"}  # by whole encoders in test_verify.py


def test_rounding_is_numpys():
    """For every number of half precision, all that lie between two of them, and what lies about."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    between = (finite[1:] + finite[:-1]) / 2
    odd = np.float32([65_519, 65_520, -65_520, 1e38, -1e38, 1e-40, -1e-40])
    beside = [np.nextafter(between, np.float32(far)) for far in (-np.inf, np.inf)]
    x = np.concatenate([every, between, *beside, odd])
    with np.errstate(all="ignore"):
        wanted = x.astype(np.float16).astype(np.float32)
    found = rounded(x)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


# -- programs --------------------------------------------------------------------------------


SHAPE = (1, 4, 1, 32)


def twice_and_one(x):
    return mb.add(x=mb.add(x=x, y=x), y=np.float16(1))


def test_half_precision_is_rounded_after_each_operation(tmp_path):
    interpreter = Interpreter(saved(tmp_path, twice_and_one, {"x": SHAPE}))
    x = numbers(*SHAPE)
    found = interpreter.run("main", {"x": x}, half=True)["y"]
    half = np.float16
    np.testing.assert_array_equal(found, (half(x) + half(x) + half(1)).astype(np.float32))
    assert np.abs(found - (2 * x + 1)).max() > 0


def large(x):
    return mb.mul(x=mb.mul(x=x, y=np.float16(300)), y=np.float16(300))


def test_what_is_too_large_for_half_precision_becomes_infinite(tmp_path):
    interpreter = Interpreter(saved(tmp_path, large, {"x": SHAPE}))
    seen = []
    x = np.ones(SHAPE, np.float32)
    y = interpreter.run("main", {"x": x}, notice=lambda _, v: seen.append(float(v.max())))["y"]
    assert seen == [300.0, 90_000.0, 90_000.0]
    assert y.max() == 90_000
    assert np.isinf(interpreter.run("main", {"x": x}, half=True)["y"]).all()
