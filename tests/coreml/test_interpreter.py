"""The interpreter computes what the operations are defined to, as precisely as is asked for."""

import math
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
from tests.coreml.interpreter.blobs import decoded
from tests.coreml.interpreter.erf import erf
from tests.coreml.interpreter.half import rounded
from tests.coreml.interpreter.operations import OPERATIONS, conv
from tests.coreml.interpreter.saved import read_program
from tests.coreml.lint import lint
from tests.coreml.programs import Changed, model_of, quiet, saved

RANDOM = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


X = numbers(2, 6, 4, 8)
ONCE = {
    "layer_norm": {"x": X, "axes": [1], "gamma": numbers(6), "beta": numbers(6), "epsilon": 1e-3},
    "softmax": {"x": X, "axis": 1},
    "gelu": {"x": X, "mode": "EXACT"},
    "relu": {"x": X},
    "tanh": {"x": X},
    "einsum": {"values": (numbers(2, 3, 1, 5), numbers(2, 5, 1, 7)), "equation": "nchw,nwhu->nchu"},
    "matmul": {"x": X, "y": numbers(2, 6, 8, 3)},
    "split": {"x": X, "num_splits": 3, "axis": 1},
    "slice_by_index": {
        "x": X,
        "begin": [0, 1, 0, 2],
        "end": [2, 4, 0, 7],
        "stride": [1, 2, 1, 1],
        "end_mask": [False, False, True, False],
    },
    "concat": {"values": [X, numbers(2, 6, 4, 3)], "axis": 3},
    "reduce_mean": {"x": X, "axes": [1, 3], "keep_dims": True},
    "reduce_sum": {"x": X, "axes": [2], "keep_dims": False},
    "rsqrt": {"x": np.abs(X), "epsilon": 0.1},
    "transpose": {"x": X, "perm": [0, 3, 2, 1]},
    "reshape": {"x": X, "shape": [2, 3, 2, 32]},
    "expand_dims": {"x": X, "axes": [1]},
    "squeeze": {"x": numbers(2, 1, 3), "axes": [1]},
    "identity": {"x": X},
    "add": {"x": X, "y": numbers(6, 1, 1)},
    "sub": {"x": X, "y": numbers(1, 1, 8)},
    "mul": {"x": X, "y": numbers(2, 1, 4, 1)},
}
AGAIN = [
    ("layer_norm", {"x": X, "axes": [2, 3]}),
    ("softmax", {"x": X, "axis": -1}),
    ("gelu", {"x": X, "mode": "TANH_APPROXIMATION"}),
    ("matmul", {"x": X, "y": numbers(2, 6, 3, 8), "transpose_y": True}),
    ("matmul", {"x": X, "y": numbers(2, 6, 4, 3), "transpose_x": True}),
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
    apart = {"conv", "cast", "pad"}  # in the two tests below
    assert OPERATIONS.keys() == ONCE.keys() | apart


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


def test_erf():
    x = np.linspace(-6, 6, 20_001).astype(np.float32)
    np.testing.assert_allclose(erf(x), [math.erf(v) for v in x], rtol=0, atol=1e-7)


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


def twice_and_kept(x, kept):
    """y = x + kept + 1, which is kept."""
    total = mb.add(x=mb.add(x=x, y=mb.read_state(input=kept)), y=np.float16(1))
    mb.coreml_update_state(state=kept, value=total)
    return total


SHAPE = (1, 4, 1, 32)


def test_a_state_is_kept_from_call_to_call_and_the_callers_own(tmp_path):
    interpreter = Interpreter(saved(tmp_path, twice_and_kept, {"x": SHAPE}, {"kept": SHAPE}))
    one, other = interpreter.make_state("main"), interpreter.make_state("main")
    x = numbers(*SHAPE)
    for calls in range(1, 4):
        found = interpreter.run("main", {"x": x}, one)["y"]
        np.testing.assert_allclose(found, calls * (x + 1), atol=1e-6)
        np.testing.assert_array_equal(one["kept"], found)
    assert not other["kept"].any()


def test_half_precision_is_rounded_after_each_operation(tmp_path):
    interpreter = Interpreter(saved(tmp_path, twice_and_kept, {"x": SHAPE}, {"kept": SHAPE}))
    x, state = numbers(*SHAPE), interpreter.make_state("main")
    found = interpreter.run("main", {"x": x}, state, half=True)["y"]
    half = np.float16
    np.testing.assert_array_equal(found, (half(x) + half(1)).astype(np.float32))
    assert np.abs(found - (x + 1)).max() > 0


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


def casts_and_pads(x):
    wide = mb.pad(x=mb.cast(x=x, dtype="fp32"), pad=[0, 0, 1, 2], constant_val=np.float32(3))
    return mb.cast(x=wide, dtype="fp16")


def test_casts_and_padding(tmp_path):
    interpreter = Interpreter(saved(tmp_path, casts_and_pads, {"x": SHAPE}))
    x = numbers(*SHAPE)
    found = interpreter.run("main", {"x": x})["y"]
    np.testing.assert_array_equal(found, np.pad(x, [(0, 0)] * 3 + [(1, 2)], constant_values=3))


def test_a_state_does_not_change_with_the_array_that_was_put_in(tmp_path):
    def kept(x, kept):
        mb.coreml_update_state(state=kept, value=x)
        return mb.read_state(input=kept)

    interpreter = Interpreter(saved(tmp_path, kept, {"x": SHAPE}, {"kept": SHAPE}))
    x, state = numbers(*SHAPE), interpreter.make_state("main")
    interpreter.run("main", {"x": x}, state)
    before = x.copy()
    x[...] = 0
    np.testing.assert_array_equal(state["kept"], before)


def test_another_call_than_the_functions_is_the_callers_mistake(tmp_path):
    interpreter = Interpreter(saved(tmp_path, twice_and_kept, {"x": SHAPE}, {"kept": SHAPE}))
    x, state = numbers(*SHAPE), interpreter.make_state("main")
    for inputs, states in (({"x": x[..., :31]}, state), ({}, state), ({"x": x}, None)):
        with pytest.raises(ValueError, match="for a function of"):
            interpreter.run("main", inputs, states)


# -- weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int4", "uint1", "uint2", "uint3", "uint4", "uint6"])
def test_numbers_of_a_few_bits(dtype):
    from coremltools.optimize import _utils

    bits = int(dtype[-1])
    low, high = (-(1 << bits - 1), 1 << bits - 1) if dtype[0] == "i" else (0, 1 << bits)
    values = RANDOM.integers(low, high, 77).astype(np.int8 if low else np.uint8)
    packed = _utils.pack_elements_into_bits(values, bits)
    found = decoded(packed.view(np.uint8), dtype, 77)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


WEIGHT = (RANDOM.standard_normal((64, 64, 1, 1)) * 0.1).astype(np.float16)


def one_conv(x):
    return mb.conv(x=x, weight=WEIGHT)


def compressions():
    """(deployment target, what coremltools is asked to do)"""
    for bits in (4, 6, 8):
        palette = optimize.OpPalettizerConfig(mode="uniform", nbits=bits)
        yield f"palette{bits}", ct.target.iOS16, palette
        yield f"palette{bits}", ct.target.iOS18, palette
    yield "linear8", ct.target.iOS16, optimize.OpLinearQuantizerConfig(mode="linear_symmetric")
    for granularity in ("per_channel", "per_block"):
        linear = optimize.OpLinearQuantizerConfig(
            mode="linear", dtype="int4", granularity=granularity, block_size=16
        )
        yield f"linear4-{granularity}", ct.target.iOS18, linear


@pytest.mark.parametrize(
    ("target", "config"),
    [pytest.param(target, c, id=f"{name}-{target.name}") for name, target, c in compressions()],
)
def test_compressed_weights_are_what_coremltools_makes_of_them(tmp_path, target, config):
    model = model_of(one_conv, {"x": (1, 64, 1, 32)}, target=target)
    how = optimize.OptimizationConfig(global_config=config)
    is_palette = isinstance(config, optimize.OpPalettizerConfig)
    compress = optimize.palettize_weights if is_palette else optimize.linear_quantize_weights
    with quiet():
        small = compress(model, how)
        small.save(str(tmp_path / "small.mlpackage"))
        optimize.decompress_weights(small).save(str(tmp_path / "large.mlpackage"))
    small, large = (Interpreter(tmp_path / f"{name}.mlpackage") for name in ("small", "large"))
    assert small.program.n_weight_bytes < large.program.n_weight_bytes
    x = {"x": numbers(1, 64, 1, 32)}
    np.testing.assert_array_equal(small.run("main", x)["y"], large.run("main", x)["y"])


def test_functions_share_what_is_stored_once(built):
    program = read_program(built.folder / "decoder_mix.mlpackage")
    kernels = [
        {id(value) for value in function.constants.values() if np.shape(value)[2:] == (1, 1)}
        for function in program.functions.values()
        if function.name.startswith("step")
    ]
    assert len(kernels[0]) > 8 * built.meta.dims.n_text_layer
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


def test_a_description_that_is_not_the_programs_is_refused(package, tmp_path):
    changed = Changed(package, tmp_path / "changed")
    changed.model.description.input[0].type.multiArrayType.shape[3] = 31
    assert "main is not as described: x" in refusal(changed.write())


def test_an_unknown_operation_is_refused(package, tmp_path):
    changed = Changed(package, tmp_path / "changed")
    (operation,) = changed.operations("main", "conv")
    operation.type = "conv_transpose"
    assert "main: conv_transpose" in refusal(changed.write())


def everything(x, kept):
    y = mb.layer_norm(x=mb.conv(x=x, weight=WEIGHT), axes=[1], epsilon=np.float16(1e-5))
    y = mb.add(x=mb.gelu(x=y, mode="EXACT"), y=mb.read_state(input=kept))
    mb.coreml_update_state(state=kept, value=y)
    y = mb.concat(values=mb.split(x=y, num_splits=2, axis=1), axis=1)
    return mb.slice_by_index(x=mb.softmax(x=y, axis=1), begin=[0, 0, 0, 0], end=[1, 64, 1, 32])


def test_whatever_is_damaged_is_an_error_of_the_model_or_goes_unnoticed(tmp_path):
    shape = (1, 64, 1, 32)
    package = saved(tmp_path, everything, {"x": shape}, {"kept": shape})
    (file,) = package.rglob("*.mlmodel")
    whole, random, told = file.read_bytes(), np.random.default_rng(8), []
    for _ in range(300):
        content = bytearray(whole)
        for place in random.integers(0, len(whole), random.integers(1, 3)):
            content[place] = random.integers(256)
        file.write_bytes(bytes(content))
        try:
            interpreter = Interpreter(package)
            lint(interpreter.program)
            interpreter.run("main", {"x": np.ones(shape)}, interpreter.make_state("main"))
        except ModelError as error:
            told.append(str(error))
    assert 0 < len(told) < 300
    assert not any("\n" in message for message in told)
