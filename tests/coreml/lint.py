"""What keeps a saved program off the Neural Engine, or makes it slow there, as far as one can see.

Core ML tells nobody: what the Neural Engine refuses runs on the CPU instead. These are the rules
that can be read off a package; whether they suffice only a Mac can say (``streamd doctor``). Where
a rule has no public document by Apple, its source is somebody's experience: rules.md is
``neural_engine_rules.md`` of apple/coreai-models.
"""

from collections.abc import Iterator

import numpy as np

from streamd.engines.coreml.package import BuiltModel
from tests.coreml.interpreter.saved import (
    DYNAMIC,
    OPSET,
    SPECIFICATION,
    Function,
    Operation,
    Program,
    Tensor,
    read_program,
)

_MOST_AXES, _LONGEST_AXIS, _WIDTH = 5, 16_384, 32
_SMALLEST_NORMAL = 2.0**-14
_MOST_OPERATIONS, _MOST_BYTES = 4000, 1_000_000_000
_ALLOWED = frozenset(
    {"conv", "layer_norm", "softmax", "gelu", "add", "mul", "einsum", "split", "slice_by_index"}
    | {"concat", "transpose", "identity"}
)

Complaint = tuple[str, str]
"""Where something is, and which rule it breaks."""


def lint_built(built: BuiltModel) -> Iterator[Complaint]:
    """All that is wrong with the packages of a built encoder; raises `ModelError` for damage."""
    for package in dict.fromkeys(function.package for function in built.functions):
        program = read_program(built.folder / package)
        yield from as_laid_out(built, program)
        yield from lint(program)


def as_laid_out(built: BuiltModel, program: Program) -> Iterator[Complaint]:
    """Versions, functions and tensors have the names, shapes and types that everybody counts on."""
    wanted = {f.name: f for f in built.functions if f.package == program.path.name}
    if program.specification != SPECIFICATION:
        yield "the format", f"specification {SPECIFICATION}, that of macOS 15"
    if program.default != (meant := next(iter(wanted))):  # Core ML tells the devices of no other
        yield "the default", f"default function {meant}"
    yield from ((name, "functions of the layout") for name in wanted.keys() ^ program.functions)
    for name in sorted(wanted.keys() & program.functions.keys()):
        function, found = wanted[name], program.functions[name]
        if found.opset != OPSET:
            yield name, f"operations {OPSET}"
        results = {t.name: t.shape for op in found.operations for t in op.outputs}
        taken = {t.name: t.shape for t in found.inputs}
        given = {each: results.get(each, ()) for each in found.outputs}
        odd = {*function.inputs.items()} ^ {*taken.items()}
        odd |= {*function.outputs.items()} ^ {*given.items()}
        yield from ((f"{name} {tensor}", "tensors of the layout") for tensor, _ in sorted(odd))


def lint(program: Program) -> Iterator[Complaint]:
    """All rules that a package breaks."""
    if program.n_weight_bytes > _MOST_BYTES:
        yield "weight.bin", "package size"  # ANEMLL; whisper.coreml
    for function in program.functions.values():
        for where, tensor in _tensors(function):
            yield from ((f"{function.name} {where}", rule) for rule in _of_tensor(tensor))
        for where, value in _floats(function):
            yield from ((f"{function.name} {where}", rule) for rule in _of_constant(value))
        made = {output.name: each for each in function.operations for output in each.outputs}
        for each in _running(function):
            where = f"{function.name} {each.kind} {each.name}"
            yield from ((where, rule) for rule in _of_operation(function, each, made))
        inside = {tensor.name: tensor for _, tensor in _tensors(function)}
        for name in (*(tensor.name for tensor in function.inputs), *function.outputs):
            if inside[name].shape[-1] % _WIDTH:
                yield f"{function.name} {name}", "64 bytes"  # rules.md: pad it, if it is long
        if sum(1 for _ in _running(function)) > _MOST_OPERATIONS:
            yield function.name, "number of operations"  # KataGo #1202: compile time


def _of_tensor(tensor: Tensor) -> Iterator[str]:
    if len(tensor.shape) > _MOST_AXES:
        yield "at most 5 axes"  # rules.md
    elif len(tensor.shape) != 4:
        yield "4 axes"  # apple/ml-ane-transformers: (1, C, 1, S)
    if DYNAMIC in tensor.shape:
        yield "static shapes"  # rules.md; coremltools #1909
    if max(tensor.shape, default=0) > _LONGEST_AXIS:
        yield "longest axis"  # ggml-org/whisper.cpp, convert-whisper-to-coreml.py
    if tensor.dtype != "float16":
        yield "half precision"  # rules.md


def _of_constant(value: np.ndarray) -> Iterator[str]:
    if value.itemsize > 2:
        yield "half precision"
    if max(value.shape, default=0) > _LONGEST_AXIS:
        yield "longest axis"
    if not np.isfinite(value).all():
        yield "finite masks"  # rules.md
    # Among many, those are nearly zero.
    if value.size == 1 and 0 < abs(float(value.ravel()[0])) < _SMALLEST_NORMAL:
        yield "no subnormal constants"  # units may take them for zero


def _of_operation(
    function: Function, operation: Operation, made: dict[str, Operation]
) -> Iterator[str]:
    if operation.kind not in _ALLOWED:
        yield "operations"  # hollance/neural-engine; FluidAudio, ANE_Profiler.md
    if operation.kind == "softmax" and _parameter(function, operation, "axis") != [1]:
        yield "softmax over channels"  # rules.md
    if operation.kind == "layer_norm":
        if _parameter(function, operation, "axes") != [1]:
            yield "layer norm over channels"  # rules.md
        before = made.get(operation.inputs["x"][0])
        scale = _parameter(function, before, "y") if before and before.kind == "mul" else []
        if len(scale) != 1 or np.frexp(scale[0])[0] != 0.5:  # a power of two
            yield "bounded squares"  # microsoft/onnxruntime #31626; FluidAudio #648


def _running(function: Function) -> Iterator[Operation]:
    """Operations that are carried out when the function is called."""
    return (each for each in function.operations if not each.kind.startswith("constexpr"))


def _tensors(function: Function) -> Iterator[tuple[str, Tensor]]:
    """All that has a shape when the function runs, with what it is."""
    yield from ((f"input {tensor.name}", tensor) for tensor in function.inputs)
    for operation in _running(function):
        yield from ((f"{operation.kind} {tensor.name}", tensor) for tensor in operation.outputs)


def _floats(function: Function) -> Iterator[tuple[str, np.ndarray]]:
    for name, value in function.constants.items():
        if not isinstance(value, str) and value.dtype.kind == "f":
            yield f"constant {name}", value


def _parameter(function: Function, operation: Operation, name: str) -> list[float]:
    """A constant input of an operation."""
    (value,) = operation.inputs.get(name, ("",))
    return np.ravel(np.asarray(function.constants.get(value, []), float)).tolist()
