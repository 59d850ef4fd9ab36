"""What is built is what the layout says and computes what the reference does, weight for weight."""

import re
from functools import cache

import coremltools
import numpy as np
import pytest
from coremltools.converters.mil.frontend.milproto.load import load as load_mil
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from streamd.engines.coreml.package import Bits, BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.engines.coreml.rounding import palette
from tests.coreml.interpreter import Interpreter
from tests.coreml.lint import lint_built
from tests.coreml.verify import verify
from tests.support import coreml_odd as odd


@pytest.fixture(scope="module")
def built_odd(tmp_path_factory):
    """The odd model with weights of so many bits, each built once."""

    @cache
    def build(bits: Bits) -> BuiltModel:
        folder = tmp_path_factory.mktemp(f"odd-{bits}")
        write(folder, odd.model(), bits=bits)
        return open_built(folder)

    return build


# -- functions, shapes -------------------------------------------------------------------------


def test_names_are_identifiers(built_odd):
    """As Core ML demands them; coremltools sees to it only in packages of one function."""
    built, names = built_odd(16), set()
    for package in {function.package for function in built.functions}:
        spec = coremltools.utils.load_spec(str(built.folder / package))
        for called, function in spec.mlProgram.functions.items():
            names |= {called, *(each.name for each in function.inputs)}
            for operation in function.block_specializations[function.opset].operations:
                names |= {output.name for output in operation.outputs}
    assert len(names) > 500
    assert names.isdisjoint(("any", "bool", "dict", "func", "list", "program", "tensor", "tuple"))
    assert [each for each in names if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", each)] == []


def test_functions_of_a_package_share_their_weights(built_odd):
    built = built_odd(16)
    once = sum(
        2 * values.size
        for name, values in odd.model().weights.items()
        if name.startswith("encoder.blocks") and int(name.split(".")[2]) in built.meta.layers[1]
    )
    once += 2 * odd.model().silence.states[6:13].size
    (file,) = [n for n in built.meta.files if "encoder_2of2" in n and "weight.bin" in n]
    assert 0.95 * once < built.meta.files[file][0] < 1.05 * once


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 8])
def test_every_function_computes_what_the_reference_does(bits, built_odd):
    assert {where for where, _ in lint_built(built_odd(bits)) if "mask" not in where} == set()
    findings = list(verify(built_odd(bits), odd.model(), odd.mel()))
    assert len(findings) == len(built_odd(bits).functions) == 6
    assert [f for f in findings if not f.right or f.half > 3e-3] == []


def test_palettes_decode_to_the_weights_that_coremltools_reports(built_odd):
    package = built_odd(8).folder / "encoder_2of2.mlpackage"
    spec = coremltools.utils.load_spec(str(package))
    weights = package / "Data/com.apple.CoreML/weights"
    functions = load_mil(spec, spec.specificationVersion, str(weights)).functions
    name, program = next(iter(functions.items()))
    ours = Interpreter(package)
    decoding = [op for op in program.operations if op.op_type.startswith("constexpr")]
    assert len(decoding) == 6 * 7  # matrices of each layer
    for op in decoding:
        told = op.materialized_val_inference().astype(np.float32)
        found = ours.constant(name, op.outputs[0].name)
        np.testing.assert_array_equal(found, told)
        assert len(np.unique(found)) <= 256


def test_fewer_bits_are_smaller(built_odd):
    sizes = [
        sum(size for n, (size, _) in built_odd(bits).meta.files.items() if "weight.bin" in n)
        for bits in (16, 8)
    ]
    assert 0.5 < sizes[1] / sizes[0] < 0.62, "palettes, vectors and silence are float16"


HALVES = st.floats(-4.0, 4.0, width=16)


@given(arrays(np.float16, array_shapes(max_dims=2, max_side=40), elements=HALVES))
def test_each_weight_gets_the_nearest_of_its_palettes_values(weight):
    made = palette(weight)
    colours = made.colours
    chosen = colours[made.indices].astype(float)
    distances = np.abs(weight.astype(float)[..., None] - colours.astype(float))
    np.testing.assert_array_equal(np.abs(weight - chosen), distances.min(axis=-1))
    if len(np.unique(weight)) <= len(colours):
        np.testing.assert_array_equal(chosen, weight)


def test_a_palette_is_near_the_best_one():
    """Panter and Dite (1951): the least error of n values, here for a normal density."""
    weight = np.random.default_rng(0).standard_normal((500, 500)).astype(np.float16)
    made = palette(weight)
    error = np.square(made.colours[made.indices].astype(float) - weight).mean()
    assert error < 1.05 * np.pi * 3**0.5 / 2 / 256**2
