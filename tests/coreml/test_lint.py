"""Each rule has a package that breaks it, and what streamd builds breaks none that matters."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import get_new_symbol

from streamd.engines.coreml.package import BuiltModel
from tests.coreml.interpreter.saved import read_program
from tests.coreml.lint import lint, lint_built
from tests.coreml.programs import Changed, saved

X = {"x": (1, 64, 1, 32)}
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


def normal(x, scale=4.0, axis=1, epsilon=1.6e-4):
    scaled = mb.mul(x=x, y=np.float16(scale))
    return mb.layer_norm(x=scaled, axes=[axis], epsilon=np.float16(epsilon))


def only_gelu(x):
    return mb.gelu(x=x, mode="EXACT")


def long(x):
    for _ in range(4001):
        x = mb.gelu(x=x, mode="EXACT")
    return x


BROKEN = [
    ("4 axes", three_axes, X),
    ("half precision", wide_constant, X),
    ("longest axis", lambda x: mb.conv(x=x, weight=np.ones((51_865, 64, 1, 1), np.float16)), X),
    ("64 bytes", good, {"x": (1, 64, 1, 1)}),
    ("softmax over channels", lambda x: mb.softmax(x=x, axis=3), X),
    ("finite masks", lambda x: mb.add(x=x, y=np.float16(-np.inf)), X),
    ("layer norm over channels", lambda x: normal(x, axis=3), X),
    ("bounded squares", lambda x: normal(mb.add(x=x, y=ONE), scale=3), X),
    ("bounded squares", lambda x: mb.layer_norm(x=x, axes=[1], epsilon=np.float16(1e-3)), X),
    ("no subnormal constants", lambda x: normal(x, scale=1, epsilon=1e-5), X),
    ("operations", lambda x: mb.gather(x=x, indices=np.array([3, 1], np.int32), axis=1), X),
    ("static shapes", only_gelu, {"x": (1, 64, 1, get_new_symbol())}),
    ("number of operations", long, X),
]


def rules(package) -> set[str]:
    return {rule for _, rule in lint(read_program(package))}


def test_a_good_program_breaks_no_rule(tmp_path):
    assert rules(saved(tmp_path, good, X)) == set()


@pytest.mark.parametrize(("rule", "graph", "inputs"), BROKEN)
def test_a_broken_rule_is_named(rule, graph, inputs, tmp_path):
    assert rule in rules(saved(tmp_path, graph, inputs))


def test_six_axes_are_seen(tmp_path):
    """coremltools saves none, so they are written into the file."""
    changed = Changed(saved(tmp_path, only_gelu, X), tmp_path / "changed")
    (gelu,) = changed.operations("main", "gelu")
    for _ in range(2):
        gelu.outputs[0].type.tensorType.dimensions.add().constant.size = 1
    assert "at most 5 axes" in rules(changed.write())


def test_a_large_package_is_seen(tmp_path):
    package = saved(tmp_path, good, X)
    (file,) = package.rglob("weight.bin")
    with file.open("r+b") as weights:
        weights.truncate(1_200_000_000)  # a hole, not a gigabyte
    assert rules(package) == {"package size"}


def test_built_encoders_break_no_rule_that_matters(built):
    masks = {(f"{function.name} mask", "64 bytes") for function in built.functions}
    assert set(lint_built(built)) == masks


def test_packages_of_another_layout_are_seen(built):
    def odd(**meta) -> set[str]:
        other = BuiltModel(built.folder, msgspec.structs.replace(built.meta, **meta))
        return {where for where, rule in lint_built(other) if "layout" in rule}

    wider = replace(built.meta.dims, n_audio_ctx=1600)
    assert {"ctx1500", "ctx1600", "ctx1088", "ctx1024"} <= odd(dims=wider)
    assert odd(silence=False) == {"ctx1024", "resume192"}
