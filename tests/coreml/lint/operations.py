"""Rules about operations: each yields what breaks it."""

from collections.abc import Iterator

import numpy as np

from tests.coreml.interpreter.saved import Function, Program
from tests.coreml.lint.places import Place, label, parameter, running

_MOST_OPERATIONS = 4000
_ALLOWED = frozenset(
    {"conv", "layer_norm", "softmax", "gelu", "relu", "add", "sub", "mul", "matmul", "einsum"}
    | {"split", "slice_by_index", "concat", "transpose", "reshape", "pad", "identity"}
    | {"reduce_mean", "reduce_sum", "rsqrt", "read_state", "write_state"}
    | {"linear", "slice_update"}  # these have rules of their own
)


def linear(program: Program, function: Function) -> Iterator[Place]:
    """Products with weights that are no convolutions."""
    decoded = {each.name for each in function.operations if each.kind.startswith("constexpr")}
    for each in running(function):
        names = {name for names in each.inputs.values() for name in names}
        if each.kind == "linear":
            yield label(each), "is a linear layer"
        elif each.kind in ("matmul", "einsum") and any(
            name in decoded or np.ndim(function.constants.get(name, 0)) > 1 for name in names
        ):
            yield label(each), "multiplies with weights"


def other_softmax(program: Program, function: Function) -> Iterator[Place]:
    """A softmax over another axis than the channels."""
    for each in running(function):
        if each.kind == "softmax":
            axis = int(parameter(function, each, "axis", -1))
            if axis % len(each.outputs[0].shape) != 1:
                yield label(each), f"normalises axis {axis}"


def other_layer_norm(program: Program, function: Function) -> Iterator[Place]:
    """A layer norm in pieces, or over other axes than the channels."""
    for each in running(function):
        if each.kind in ("rsqrt", "sqrt", "reduce_mean"):
            yield label(each), "is a part of a layer norm in pieces"
        elif each.kind == "layer_norm":
            axes = np.ravel(parameter(function, each, "axes", ())).tolist()
            if axes != [1]:
                yield label(each), f"normalises axes {axes}"


def unscaled_layer_norm(program: Program, function: Function) -> Iterator[Place]:
    """A layer norm of something that was not multiplied by a power of two."""
    made = {output.name: each for each in function.operations for output in each.outputs}
    for each in running(function):
        if each.kind == "layer_norm":
            before = made.get(each.inputs["x"][0])
            scale = parameter(function, before, "y", 0) if before and before.kind == "mul" else 0
            if np.size(scale) != 1 or np.frexp(float(scale))[0] != 0.5:
                yield label(each), "takes its input as it is"


def cleared_by_zero(program: Program, function: Function) -> Iterator[Place]:
    """A state that is multiplied by zero: a NaN in it stays."""
    read = {t.name for e in running(function) if e.kind == "read_state" for t in e.outputs}
    for each in running(function):
        factors = [parameter(function, each, name, 1) for name in "xy" if each.kind == "mul"]
        of_state = read & {name for names in each.inputs.values() for name in names}
        if of_state and any(not np.any(factor) for factor in factors):
            yield label(each), "multiplies a state by zero"


def written_and_returned(program: Program, function: Function) -> Iterator[Place]:
    """An output that is written to a state, too."""
    for each in running(function):
        if each.kind == "write_state" and each.inputs["data"][0] in function.outputs:
            yield label(each), "writes an output of the function"


def unknown(program: Program, function: Function) -> Iterator[Place]:
    """Operations that do not run there."""
    for each in running(function):
        if each.kind not in _ALLOWED:
            yield label(each), "is none of the operations that run there"


def writes(program: Program, function: Function) -> Iterator[Place]:
    """Writes to a state."""
    for each in running(function):
        if each.kind == "write_state":
            yield label(each), "writes to a state"


def indexed_at_run_time(program: Program, function: Function) -> Iterator[Place]:
    """Slices whose place is only known at run time."""
    for each in running(function):
        if each.kind == "slice_update":
            yield label(each), "updates a slice"
        elif each.kind == "slice_by_index" and any(
            name not in function.constants
            for parameter in ("begin", "end")
            for name in each.inputs.get(parameter, ())
        ):
            yield label(each), "has an index that is only known at run time"


def many_operations(program: Program, function: Function) -> Iterator[Place]:
    """More operations than compile in reasonable time."""
    n = sum(1 for _ in running(function))
    if n > _MOST_OPERATIONS:
        yield "function", f"has {n} operations"
