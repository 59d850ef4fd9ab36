"""The interpreter computes what the operations are defined to, as precisely as is asked for."""

from itertools import pairwise

import coremltools as ct
import coremltools.optimize.coreml as optimize
import numpy as np
import onnx
import onnxruntime
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Function

from streamd.errors import ModelError
from tests.coreml.interpreter import Interpreter
from tests.coreml.interpreter.half import rounded
from tests.coreml.interpreter.operations import OPERATIONS, conv
from tests.coreml.interpreter.saved import read_program
from tests.coreml.programs import Changed, model_of, quiet, saved

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
    "slice_by_index": {
        "x": X,
        "begin": [0, 1, 0, 2],
        "end": [2, 4, 0, 7],
        "stride": [1, 2, 1, 1],
        "end_mask": [False, False, True, False],
    },
    "concat": {"values": [X, numbers(2, 6, 4, 3)], "axis": 3},
    "transpose": {"x": X, "perm": [0, 3, 2, 1]},
    "identity": {"x": X},
    "add": {"x": X, "y": numbers(6, 1, 1)},
    "mul": {"x": X, "y": numbers(2, 1, 4, 1)},
}
AGAIN = [
    ("layer_norm", {"x": X, "axes": [2, 3]}),
    ("softmax", {"x": X, "axis": -1}),
    ("gelu", {"x": X, "mode": "TANH_APPROXIMATION"}),
    ("split", {"x": X, "split_sizes": [1, 2, 5], "axis": -1}),
    ("slice_by_index", {"x": X, "begin": [0, 1, 0, 0], "end": [2, 2, 4, 8],
                        "begin_mask": [True, False, False, False],
                        "squeeze_mask": [False, True, False, False]}),
]  # fmt: skip


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
    assert OPERATIONS.keys() == ONCE.keys() | {"conv"}  # in the test below


@pytest.mark.parametrize(
    ("kernel", "strides", "pad"),
    [
        ((1, 1), (1, 1), (0, 0, 0, 0)),
        ((1, 3), (1, 2), (0, 0, 1, 1)),
        ((3, 2), (2, 1), (1, 0, 2, 1)),
    ],
)
def test_conv_is_what_onnx_runtime_takes_it_for(kernel, strides, pad):
    x, weight, bias = numbers(1, 5, 6, 9), numbers(4, 5, *kernel), numbers(4)
    top, bottom, left, right = pad
    node = onnx.helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], strides=strides, pads=[top, left, bottom, right]
    )
    values = {"x": x, "w": weight, "b": bias}
    graph = onnx.helper.make_graph(
        [node],
        "conv",
        [onnx.helper.make_tensor_value_info(n, 1, a.shape) for n, a in values.items()],
        [onnx.helper.make_tensor_value_info("y", 1, [None] * 4)],
    )
    model = onnx.helper.make_model(
        graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)]
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, values)
    found = conv(x, weight, bias, strides=np.array(strides), pad_type="custom", pad=np.array(pad))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)


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


def test_another_call_than_the_functions_is_the_callers_mistake(tmp_path):
    interpreter = Interpreter(saved(tmp_path, twice_and_one, {"x": SHAPE}))
    for inputs in ({"x": numbers(1, 4, 1, 31)}, {}):
        with pytest.raises(ValueError, match="for a function of"):
            interpreter.run("main", inputs)


# -- weights ---------------------------------------------------------------------------------


WEIGHT = (RANDOM.standard_normal((64, 64, 1, 1)) * 0.1).astype(np.float16)


def one_conv(x):
    return mb.conv(x=x, weight=WEIGHT)


def test_compressed_weights_are_what_coremltools_makes_of_them(tmp_path):
    model = model_of(one_conv, {"x": (1, 64, 1, 32)})
    config = optimize.OpPalettizerConfig(mode="uniform", nbits=8)
    with quiet():
        how = optimize.OptimizationConfig(global_config=config)
        small = optimize.palettize_weights(model, how)
        small.save(str(tmp_path / "small.mlpackage"))
        optimize.decompress_weights(small).save(str(tmp_path / "large.mlpackage"))
    small, large = (Interpreter(tmp_path / f"{name}.mlpackage") for name in ("small", "large"))
    assert small.program.n_weight_bytes < large.program.n_weight_bytes
    x = {"x": numbers(1, 64, 1, 32)}
    np.testing.assert_array_equal(small.run("main", x)["y"], large.run("main", x)["y"])


def test_functions_share_what_is_stored_once(built):
    program = read_program(built.folder / "encoder.mlpackage")
    kernels = [
        {id(value) for value in function.constants.values() if np.shape(value)[2:] == (1, 1)}
        for function in program.functions.values()
    ]
    assert len(kernels[0]) > 5 * built.meta.dims.n_audio_layer
    assert all(one == other for one, other in pairwise(kernels))


# -- packages that are not as they should be -------------------------------------------------


@pytest.fixture
def package(tmp_path):
    return saved(tmp_path, one_conv, {"x": (1, 64, 1, 32)})


def refusal(package, x=None) -> str:
    with pytest.raises(ModelError) as caught:
        Interpreter(package).run("main", {"x": numbers(1, 64, 1, 32)})
    assert str(package) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["Manifest.json", "model.mlmodel", "weight.bin"])
@pytest.mark.parametrize("left", [None, 10, -3000])
def test_a_damaged_package_is_refused(package, name, left):
    (file,) = package.rglob(name)
    content = file.read_bytes()
    file.unlink()
    if left is not None:
        file.write_bytes(content[:left])
    message = refusal(package)
    assert "damaged" in message or "has no weights" in message


def test_a_shape_that_is_not_what_the_program_says_is_refused(package, tmp_path):
    changed = Changed(package, tmp_path / "changed")
    (operation,) = changed.operations("main", "conv")
    operation.outputs[0].type.tensorType.dimensions[1].constant.size = 63
    assert "gives (1, 64, 1, 32), not (1, 63, 1, 32)" in refusal(changed.write())


def test_an_unknown_operation_is_refused(package, tmp_path):
    changed = Changed(package, tmp_path / "changed")
    (operation,) = changed.operations("main", "conv")
    operation.type = "conv_transpose"
    assert "main: conv_transpose" in refusal(changed.write())
