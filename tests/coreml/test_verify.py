"""Every function of a package is compared with the reference, and a slip in any of them is seen."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)

from streamd.engines.coreml.package import BuiltModel, Function, open_built
from streamd.engines.coreml.package_builder import write
from streamd.engines.prepared import with_silence
from streamd.models.model import Model
from streamd.whisper.mel import log_mel
from tests.coreml.interpreter import Interpreter
from tests.coreml.programs import Changed, saved
from tests.coreml.verify import EXACT, compare, verify
from tests.coreml.verify.calls import Call, Calls
from tests.golden import load
from tests.support.coreml_runs import model

HALF = 7e-3
"""What rounding to half precision costs these models, with noise for silence. Measured: 5.2e-3 on
one processor, 6.2e-3 on another, whose matrix products add in another order."""


@cache
def random() -> Model:
    """Its heads' scale is no power of two."""
    return with_silence(load.model("random"), threads=2, precision="int8")


MODELS = {"writes": model, "random": random}


@pytest.fixture(scope="module")
def mels():
    return {n_mels: log_mel(load.samples("lamp", 1500), n_mels) for n_mels in (80, 128)}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> BuiltModel:
    """The random model."""
    folder = tmp_path_factory.mktemp("small")
    write(folder, random())
    return open_built(folder)


@pytest.mark.parametrize("name", ["built", "small"])
def test_every_function_is_right(name, mels, request):
    built = request.getfixturevalue(name)
    verified = MODELS[built.meta.name]()
    findings = list(verify(built, verified, mels[verified.dims.n_mels]))
    assert [f.function for f in findings] == list(built.functions)
    for finding in findings:
        assert finding.exact < EXACT, finding
        assert finding.half < HALF, finding
        assert 0 < finding.peak.value < 1000, finding


# -- what is wrong is seen -------------------------------------------------------------------


def swapped_heads(changed, function):
    """Each of two heads attends with the other's keys."""
    scores_0, _, scores_1, _ = changed.operations(function, "einsum")[:4]
    one, other = (each.inputs["values"].arguments[0] for each in (scores_0, scores_1))
    one.name, other.name = other.name, one.name


def dropped_bias(changed, function):
    """Of the projection to values."""
    for conv in changed.operations(function, "conv")[2:]:
        if "bias" in conv.inputs:
            del conv.inputs["bias"]
            return


def tanh_gelu(changed, function):
    for gelu in changed.operations(function, "gelu"):
        mode = changed.constant(function, gelu, "mode").immediateValue.tensor.strings
        mode.values[0] = "TANH_APPROXIMATION"


def another_epsilon(changed, function):
    """1e-4, ten times too large."""
    for norm in changed.operations(function, "layer_norm"):
        epsilon = changed.constant(function, norm, "epsilon").immediateValue.tensor
        held = np.frombuffer(epsilon.bytes.values, np.float16)
        epsilon.bytes.values = (held * np.float16(10)).tobytes()


def without_mask(changed, function):
    """The last softmax takes the scores as they are."""
    softmax = changed.operations(function, "softmax")[-1]
    (add,) = (
        each
        for each in changed.operations(function, "add")
        if each.outputs[0].name == softmax.inputs["x"].arguments[0].name
    )
    softmax.inputs["x"].CopyFrom(add.inputs["x"])


def flipped_sign(changed, function):
    """Of one weight."""
    last = changed.operations(function, "conv")[-1]
    with changed.weights(changed.constant(function, last, "weight")) as rows:
        rows[3, 5] *= -1


def kept_of_another_layer(changed, function):
    for each in changed.operations(function, "slice_by_index"):
        begin, end = (
            changed.constant(function, each, name).immediateValue.tensor.ints.values
            for name in ("begin", "end")
        )
        if each.inputs["x"].arguments[0].name == "kept_v" and list(begin) == [2, 0, 0, 0]:
            begin[0], end[0] = 1, 2
            return
    raise AssertionError("there is no such slice")


SLIPS = [swapped_heads, dropped_bias, tanh_gelu, another_epsilon, without_mask]
SLIPS += [flipped_sign]


@pytest.mark.parametrize(
    ("name", "at", "slip"),
    [*(("small", 0, slip) for slip in SLIPS), ("built", -1, kept_of_another_layer)],
)
def test_a_slip_is_seen(name, at, slip, mels, tmp_path, request):
    small = request.getfixturevalue(name)
    made, function = MODELS[small.meta.name](), small.functions[at]
    call = Calls(small, made, mels[made.dims.n_mels]).call(function)
    assert compare(Interpreter(small.folder / function.package), call).right
    changed = Changed(small.folder / function.package, tmp_path)
    slip(changed, function.name)
    finding = compare(Interpreter(changed.write()), call)
    assert not finding.right, finding
    assert finding.exact > 1.5 * EXACT, finding


def overflowing(x):
    """90000 - 89999, and back to float16's range."""
    large, too = (mb.mul(x=mb.mul(x=x, y=np.float16(300)), y=np.float16(n)) for n in (300, -299))
    return mb.add(x=large, y=too)


def test_what_half_precision_cannot_hold_is_seen(tmp_path):
    shape = (1, 4, 1, 32)
    function = Function("made.mlpackage", "main", {"x": shape}, {"y": shape})
    ones = np.ones(shape, np.float32)
    call = Call(function, {"x": ones}, {"y": 300 * ones})
    finding = compare(Interpreter(saved(tmp_path, overflowing, {"x": shape})), call)
    assert finding.exact == 0
    assert finding.half == float("inf")
    assert finding.peak.value == 90_000
    assert not finding.right


def test_weights_of_another_model_are_seen(small, mels):
    name = "encoder.blocks.1.mlp.0.bias"
    other = {**random().weights, name: random().weights[name] + np.float32(0.01)}
    calls = Calls(small, replace(random(), weights=other), mels[128])
    function = small.functions[0]
    assert not compare(Interpreter(small.folder / function.package), calls.call(function)).right
