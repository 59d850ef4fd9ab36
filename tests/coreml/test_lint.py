"""Each rule has a package that breaks it, and what streamd builds breaks none that matters."""

import coremltools.optimize.coreml as optimize
import msgspec
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import get_new_symbol, types

from streamd.engines.coreml.package import BuiltModel
from tests.coreml.interpreter.saved import read_program
from tests.coreml.lint import lint, lint_built
from tests.coreml.lint.rules import RULES
from tests.coreml.programs import Changed, model_of, quiet, saved

X = {"x": (1, 64, 1, 32)}
KEPT = {"kept": (1, 64, 1, 32)}
WEIGHT = np.random.default_rng(3).standard_normal((64, 64, 1, 1)).astype(np.float16)
ONE = np.float16(1)


def good(x):
    """A block of everything that is allowed."""
    y = mb.layer_norm(x=mb.mul(x=x, y=np.float16(4)), axes=[1], epsilon=np.float16(1.6e-4))
    y = mb.gelu(x=mb.conv(x=y, weight=WEIGHT), mode="EXACT")
    y = mb.einsum(values=(mb.transpose(x=y, perm=[0, 3, 2, 1]), x), equation="nchw,nwhu->nchu")
    y = mb.softmax(x=mb.add(x=y, y=np.float16(-40_000)), axis=1)
    return mb.einsum(values=(x, y), equation="nchw,nwhu->nchu")


def three_axes(x):
    return mb.expand_dims(x=mb.add(x=mb.squeeze(x=x, axes=[2]), y=ONE), axes=[2])


def wide_constant(x):
    y = mb.add(x=mb.cast(x=x, dtype="fp32"), y=np.float32(1))
    return mb.cast(x=y, dtype="fp16")


def vocabulary(x):
    return mb.conv(x=x, weight=np.ones((51_865, 64, 1, 1), np.float16))


def linear(x):
    y = mb.reshape(x=x, shape=[1, 32, 64])
    return mb.linear(x=y, weight=WEIGHT[:, :, 0, 0], bias=np.zeros(64, np.float16))


def product_with_weights(x):
    return mb.matmul(x=WEIGHT[None, None, :, :, 0, 0], y=mb.reshape(x=x, shape=[1, 1, 64, 32]))


def last_axis(x):
    return mb.softmax(x=x, axis=3)


def infinite(x):
    return mb.add(x=x, y=np.float16(-np.inf))


def pieces(x):
    z = mb.sub(x=x, y=mb.reduce_mean(x=x, axes=[1], keep_dims=True))
    variance = mb.reduce_mean(x=mb.mul(x=z, y=z), axes=[1], keep_dims=True)
    return mb.mul(x=z, y=mb.rsqrt(x=variance, epsilon=np.float16(1e-5)))


def unscaled(x):
    return mb.layer_norm(x=x, axes=[1], epsilon=np.float16(1.6e-4))


def scaled_by_three(x):
    return unscaled(mb.mul(x=x, y=np.float16(3)))


def subnormal(x):
    return mb.layer_norm(x=mb.mul(x=x, y=ONE), axes=[1], epsilon=np.float16(1e-5))


def cleared(x, kept):
    y = mb.mul(x=mb.read_state(input=kept), y=np.float16(0))
    mb.coreml_update_state(state=kept, value=y)
    return x


def other_axes(x):
    return mb.layer_norm(x=x, axes=[3], epsilon=np.float16(1e-5))


def gathered(x):
    return mb.gather(x=x, indices=np.array([3, 1], np.int32), axis=1)


def recurrent(x):
    y = mb.transpose(x=mb.squeeze(x=x, axes=[2]), perm=[2, 0, 1])
    none, weight = np.zeros((1, 16), np.float16), np.ones((64, 64), np.float16)
    y, *_ = mb.lstm(x=y, initial_h=none, initial_c=none, weight_ih=weight, weight_hh=weight[:, :16])
    return mb.expand_dims(x=y, axes=[3])


def read_and_written(x, kept):
    y = mb.add(x=mb.read_state(input=kept), y=x)
    mb.coreml_update_state(state=kept, value=y)
    return y


def only_read(x, kept):
    return mb.add(x=mb.read_state(input=kept), y=x)


def updated_slice(x, kept):
    old = mb.read_state(input=kept)
    return mb.slice_update(
        x=old,
        update=mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, 64, 1, 1]),
        begin=[0, 0, 0, 4],
        end=[1, 64, 1, 5],
    )


BROKEN = [
    ("4 axes", three_axes, X, {}),
    ("half precision", wide_constant, X, {}),
    ("longest axis", vocabulary, X, {}),
    ("64 bytes", good, {"x": (1, 64, 1, 1)}, {}),
    ("state of 64 bytes", only_read, {"x": (1, 64, 1, 270)}, {"kept": (1, 64, 1, 270)}),
    ("convolutions", linear, X, {}),
    ("convolutions", product_with_weights, X, {}),
    ("softmax over channels", last_axis, X, {}),
    ("finite masks", infinite, X, {}),
    ("layer norm", pieces, X, {}),
    ("layer norm", other_axes, X, {}),
    ("bounded squares", unscaled, X, {}),
    ("bounded squares", scaled_by_three, X, {}),
    ("no subnormal constants", subnormal, X, {}),
    ("cleared states", cleared, X, KEPT),
    ("operations", gathered, X, {}),
    ("operations", recurrent, X, {}),
    ("read-only cache", read_and_written, X, KEPT),
    ("constant indices", updated_slice, X, KEPT),
]


def rules(package, **known) -> set[str]:
    complaints = lint(read_program(package), **known)
    severities = {rule.name: rule.severity for rule in RULES}
    assert all(each.severity == severities[each.rule] for each in complaints)
    return {each.rule for each in complaints}


def test_a_good_program_breaks_no_rule(tmp_path):
    assert rules(saved(tmp_path, good, X)) == set()


@pytest.mark.parametrize(("rule", "graph", "inputs", "states"), BROKEN)
def test_a_broken_rule_is_named(rule, graph, inputs, states, tmp_path):
    assert rule in rules(saved(tmp_path, graph, inputs, states))


def test_float32_throughout_is_seen(tmp_path):
    package = saved(tmp_path, lambda x: mb.add(x=x, y=np.float32(1)), X, dtype=types.fp32)
    assert rules(package) == {"half precision"}


def test_a_size_that_is_known_only_at_run_time_is_seen(tmp_path):
    inputs = {"x": (1, 64, 1, get_new_symbol())}
    assert "static shapes" in rules(saved(tmp_path, only_gelu, inputs))


def only_gelu(x):
    return mb.gelu(x=x, mode="EXACT")


def test_six_axes_are_seen(tmp_path):
    """coremltools saves none, so they are written into the file."""
    changed = Changed(saved(tmp_path, only_gelu, X), tmp_path / "changed")
    (gelu,) = changed.operations("main", "gelu")
    for _ in range(2):
        gelu.outputs[0].type.tensorType.dimensions.add().constant.size = 1
    assert rules(changed.write()) == {"at most 5 axes"}


def test_who_runs_on_the_gpu_may_write_states(tmp_path):
    package = saved(tmp_path, read_and_written, X, KEPT)
    assert rules(package, writes_states=True) == set()


def test_an_output_that_is_written_to_a_state_is_seen(tmp_path):
    changed = Changed(saved(tmp_path, read_and_written, X, KEPT), tmp_path / "changed")
    function = changed.model.mlProgram.functions["main"]
    operations = function.block_specializations[function.opset].operations
    (write,) = changed.operations("main", "write_state")
    write.inputs["data"].arguments[0].name = "y"
    operations.add().CopyFrom(write)
    operations.remove(write)
    assert rules(changed.write(), writes_states=True) == {"states are no outputs"}


@pytest.mark.parametrize(
    ("size", "rule"), [(1_200_000_000, "package size"), (2**31 + 1, "file size")]
)
def test_a_large_package_is_seen(size, rule, tmp_path):
    package = saved(tmp_path, good, X)
    (file,) = package.rglob("weight.bin")
    with file.open("r+b") as weights:
        weights.truncate(size)  # a hole, not a gigabyte
    assert rules(package) == {rule}


def test_a_long_program_is_seen(tmp_path):
    changed = Changed(saved(tmp_path, only_gelu, X), tmp_path / "changed")
    function = changed.model.mlProgram.functions["main"]
    operations = function.block_specializations[function.opset].operations
    (gelu,) = changed.operations("main", "gelu")
    for i in range(4000):
        operations.add().CopyFrom(gelu)
        operations[-1].outputs[0].name = f"copy{i}"
    assert rules(changed.write()) == {"number of operations"}


COMPRESSED = {
    "decoded once": optimize.OpPalettizerConfig(
        mode="uniform", nbits=6, enable_per_channel_scale=True, granularity="per_tensor"
    ),
    "no blocks": optimize.OpLinearQuantizerConfig(
        mode="linear", dtype="int4", granularity="per_block", block_size=16
    ),
    "palettes and states": optimize.OpPalettizerConfig(mode="uniform", nbits=4),
    "": optimize.OpPalettizerConfig(mode="uniform", nbits=8),
}


def weighted(x, kept):
    return mb.add(x=mb.conv(x=x, weight=WEIGHT), y=mb.read_state(input=kept))


@pytest.mark.parametrize("rule", COMPRESSED)
def test_compression_that_does_not_run_there_is_seen(rule, tmp_path):
    how = optimize.OptimizationConfig(global_config=COMPRESSED[rule])
    compress = (
        optimize.linear_quantize_weights if rule == "no blocks" else optimize.palettize_weights
    )
    with quiet():
        compress(model_of(weighted, X, KEPT), how).save(str(tmp_path / "small.mlpackage"))
    assert rules(tmp_path / "small.mlpackage") == ({rule} if rule else set())


def test_every_rule_has_a_package_that_breaks_it():
    apart = {"at most 5 axes", "static shapes", "package size", "file size", "number of operations"}
    apart |= {"states are no outputs"}
    assert {rule.name for rule in RULES} == {rule for rule, *_ in BROKEN} | {*COMPRESSED} - {
        ""
    } | apart


# -- what streamd builds ----------------------------------------------------------------------


def test_built_models_break_no_rule_that_matters(built):
    complaints = list(lint_built(built))
    assert [str(each) for each in complaints if each.severity == "error"] == []
    # few tokens at once make narrow inputs; the decoder attends with all heads in one product
    assert {each.rule for each in complaints} == {"64 bytes", "softmax over channels"}


def test_packages_of_another_layout_are_seen(built):
    other = BuiltModel(built.folder, msgspec.structs.replace(built.meta, contexts=(400, 1500)))
    complaints = [each for each in lint_built(other) if each.rule == "layout"]
    told = {(each.package, each.function, each.what) for each in complaints}
    assert ("encoder.mlpackage", "ctx400", "is missing") in told
    assert ("encoder.mlpackage", "ctx384", "is not part of the layout") in told
    wider = msgspec.structs.replace(built.meta, contexts=(384, 1600))
    complaints = [*lint_built(BuiltModel(built.folder, wider))]
    assert any(
        each.function == "step16" and each.where == "cross_mask" and each.rule == "layout"
        for each in complaints
    )


def test_a_complaint_names_culprit_and_cure(tmp_path):
    (complaint,) = lint(read_program(saved(tmp_path, gathered, X)))
    assert str(complaint) == (
        "error: made.mlpackage: gather gather_0 in main is none of the operations that run there; "
        "express it by others: masks, one-hot products, tables on the host "
        "[operations: hollance/neural-engine; FluidAudio, ANE_Profiler.md]"
    )
