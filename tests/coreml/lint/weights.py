"""Rules about the size and the compression of weights: each yields what breaks it."""

from collections.abc import Iterator

import numpy as np

from tests.coreml.interpreter.saved import Function, Program
from tests.coreml.lint.places import Place, label, parameter

_MOST_BYTES, _MANY_BYTES = 1 << 31, 1_000_000_000


def too_large(program: Program, function: Function) -> Iterator[Place]:
    """More weights than load."""
    if program.n_weight_bytes > _MOST_BYTES:
        yield from _once(program, function)


def large(program: Program, function: Function) -> Iterator[Place]:
    """More weights than are good for a package."""
    if _MANY_BYTES < program.n_weight_bytes <= _MOST_BYTES:
        yield from _once(program, function)


def _once(program: Program, function: Function) -> Iterator[Place]:
    """The functions of a package have one file together."""
    if function.name == min(program.functions):
        yield "weight.bin", f"has {program.n_weight_bytes / 1e9:.2f} GB"


def decoded_twice(program: Program, function: Function) -> Iterator[Place]:
    """Weights that are encoded in two ways, one inside the other."""
    decoded = {each.name for each in function.operations if each.kind.startswith("constexpr")}
    for each in function.operations:
        inputs = {name for names in each.inputs.values() for name in names}
        if each.kind.startswith("constexpr") and inputs & decoded:
            yield label(each), "decodes what was decoded"


def blocks(program: Program, function: Function) -> Iterator[Place]:
    """A scale for each block of a matrix."""
    for each in function.operations:
        if each.kind == "constexpr_blockwise_shift_scale":
            scale = parameter(function, each, "scale", 1)
            if sum(size > 1 for size in np.shape(scale)) > 1:
                yield label(each), f"has a scale for each block, {list(np.shape(scale))}"


def small_palette_and_states(program: Program, function: Function) -> Iterator[Place]:
    """Palettes of few values together with states."""
    if not function.states:
        return
    for each in function.operations:
        if each.kind == "constexpr_lut_to_dense":
            lut = parameter(function, each, "lut", ())
            if 0 < (lut.shape[-2] if lut.ndim > 1 else lut.size) <= 1 << 4:
                yield label(each), "has a palette of 16 values or fewer, and there are states"
