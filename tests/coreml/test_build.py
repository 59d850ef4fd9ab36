"""What is built is what the layout says and computes what the reference does, weight for weight."""

import re
from collections import Counter

import coremltools
import numpy as np
import pytest
from coremltools.converters.mil.frontend.milproto.load import load as load_mil
from coremltools.converters.mil.mil import Program
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from streamd.engines.coreml.networks import TARGET, Layers, mil_function, save_package
from streamd.engines.coreml.package import BuiltModel, TensorSpec, functions, open_built
from streamd.engines.coreml.package_builder import write
from streamd.engines.coreml.rounding import HeldWeights, palette
from tests.coreml.interpreter import Interpreter
from tests.coreml.verify import verify
from tests.support import coreml_odd as odd

PLANS = {
    "new": {"contexts": (odd.SHORT,)},
    "16 bits": {"contexts": (odd.DIMS.n_audio_ctx,)},
    "8 bits": {"contexts": (odd.DIMS.n_audio_ctx,), "bits": 8},
}


@pytest.fixture(scope="module")
def built_odd(tmp_path_factory):
    """The odd model, by the names of `PLANS`, each built once."""
    made: dict[str, BuiltModel] = {}

    def build(name: str) -> BuiltModel:
        if name not in made:
            folder = tmp_path_factory.mktemp(f"odd-{name}")
            write(folder, odd.model(), **PLANS[name])
            made[name] = open_built(folder)
        return made[name]

    return build


# -- functions, shapes -------------------------------------------------------------------------


def test_packages_have_the_functions_that_the_layout_says(built_odd):
    built = built_odd("new")
    found = {}
    for package in {function.package for function in built.functions}:
        spec = coremltools.utils.load_spec(str(built.folder / package))
        description = spec.description
        for each in description.functions:
            found[package, each.name] = tuple(
                [
                    TensorSpec(t.name, tuple(t.type.multiArrayType.shape))
                    for t in tensors
                    if t.type.multiArrayType.dataType == t.type.multiArrayType.FLOAT16
                ]
                for tensors in (each.input, each.output)
            )
        assert spec.specificationVersion == coremltools.target.iOS18.value
    assert found == {
        (f.package, f.name): (list(f.inputs), list(f.outputs)) for f in built.functions
    }


def test_names_are_identifiers(built_odd):
    """As Core ML demands them; coremltools sees to it only in packages of one function."""
    built, names = built_odd("new"), set()
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
    built = built_odd("new")
    once = sum(
        2 * values.size
        for name, values in odd.model().weights.items()
        if name.startswith("encoder.blocks") and int(name.split(".")[2]) in built.meta.layers[1]
    )
    once += 2 * odd.model().silence.states[6:13].size
    (file,) = [n for n in built.meta.files if "encoder_2of2" in n and "weight.bin" in n]
    assert 0.95 * once < built.meta.files[file].size < 1.05 * once


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_coremltools_own_way_gives_the_same_package(tmp_path):
    """One package for each function, with all of its passes, then joined, as Apple documents it."""
    package = "encoder_2of2.mlpackage"
    made = [f for f in functions(odd.META) if f.package == package and f.name != "ctx530"]
    weights, target = HeldWeights(odd.DIMS, odd.model().weights, 16), TARGET
    joined = coremltools.utils.MultiFunctionDescriptor()
    for function in made:
        layers = Layers(odd.META, weights, odd.model().silence)
        program = Program()
        program.add_function("main", mil_function(function, layers))
        alone = tmp_path / f"{function.name}.mlpackage"
        coremltools.convert(program, minimum_deployment_target=target, skip_model_load=True).save(
            str(alone)
        )
        joined.add_function(str(alone), "main", function.name)
    joined.default_function_name = made[0].name
    coremltools.utils.save_multifunction(joined, str(tmp_path / "theirs.mlpackage"))
    save_package(tmp_path / "ours.mlpackage", made, odd.META, weights, odd.model().silence)
    ours, theirs = (
        coremltools.utils.load_spec(str(tmp_path / f"{who}.mlpackage"))
        for who in ("ours", "theirs")
    )
    assert ours.description.functions == theirs.description.functions
    assert ours.description.defaultFunctionName == theirs.description.defaultFunctionName
    assert operations(ours) == operations(theirs)


def operations(spec):
    return {
        name: Counter(op.type for op in function.block_specializations[function.opset].operations)
        for name, function in spec.mlProgram.functions.items()
    }


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_every_function_computes_what_the_reference_does(name, built_odd):
    findings = list(verify(built_odd(name), odd.model(), odd.mel()))
    assert len(findings) == len(built_odd(name).functions)
    assert [f for f in findings if not f.right or f.half > 3e-3] == []


def test_palettes_decode_to_the_weights_that_coremltools_reports(built_odd):
    package = built_odd("8 bits").folder / "encoder_2of2.mlpackage"
    spec = coremltools.utils.load_spec(str(package))
    weights = package / "Data/com.apple.CoreML/weights"
    (function,) = load_mil(spec, spec.specificationVersion, str(weights)).functions.items()
    name, program = function
    ours = Interpreter(package)
    operations = {op.name: op for op in ours.program.functions[name].operations}
    decoding = [op for op in program.operations if op.op_type.startswith("constexpr")]
    assert len(decoding) == 6 * 7  # matrices of each layer
    for op in decoding:
        told = op.materialized_val_inference().astype(np.float32)
        found = ours.constant(name, operations[op.outputs[0].name])
        np.testing.assert_array_equal(found, told)
        assert len(np.unique(found)) <= 256


def test_fewer_bits_are_smaller(built_odd):
    sizes = [
        sum(facts.size for n, facts in built_odd(plan).meta.files.items() if "weight.bin" in n)
        for plan in ("16 bits", "8 bits")
    ]
    assert 0.5 < sizes[1] / sizes[0] < 0.6, "palettes and vectors are float16"


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
