"""Rules about types and shapes: each yields what breaks it."""

from collections.abc import Iterator

import numpy as np

from streamd.engines.coreml.package import LONGEST_AXIS
from tests.coreml.interpreter.saved import DYNAMIC, Function, Program
from tests.coreml.lint.places import Place, label, tensors

_MOST_AXES = 5
_SMALLEST_NORMAL = 2.0**-14
_WIDTH = 32
"""float16 numbers in 64 bytes."""


def too_many_axes(program: Program, function: Function) -> Iterator[Place]:
    """More axes than any processor but the CPU takes."""
    for where, tensor in tensors(function):
        if len(tensor.shape) > _MOST_AXES:
            yield where, f"has {len(tensor.shape)} axes"


def not_four_axes(program: Program, function: Function) -> Iterator[Place]:
    """Other than four axes."""
    for where, tensor in tensors(function):
        if len(tensor.shape) != 4 and len(tensor.shape) <= _MOST_AXES:
            yield where, f"has {len(tensor.shape)} axes, not 4"


def not_half(program: Program, function: Function) -> Iterator[Place]:
    """Values of another type than float16."""
    for where, tensor in tensors(function):
        if tensor.dtype != "float16":
            yield where, f"is {tensor.dtype}"
    for name, value in function.constants.items():
        if not isinstance(value, str) and value.dtype in (np.float32, np.float64):
            yield f"constant {name}", f"is {value.dtype}"


def dynamic(program: Program, function: Function) -> Iterator[Place]:
    """Sizes that are only known at run time."""
    for where, tensor in tensors(function):
        if DYNAMIC in tensor.shape:
            yield where, "has a size that is only known at run time"


def long_axis(program: Program, function: Function) -> Iterator[Place]:
    """Axes that are too long, in weights too."""
    shapes = [(where, tensor.shape) for where, tensor in tensors(function)]
    for name, value in function.constants.items():
        if not isinstance(value, str) and value.dtype.kind == "f":
            shapes.append((f"constant {name}", value.shape))
    shapes += [
        (label(each), each.outputs[0].shape)
        for each in function.operations
        if each.kind.startswith("constexpr")
    ]
    for where, shape in shapes:
        if max(shape, default=0) > LONGEST_AXIS:
            yield where, f"has an axis of {max(shape)}"


def odd_width(program: Program, function: Function) -> Iterator[Place]:
    """Inputs and outputs whose rows do not fill 64 bytes."""
    inside = {tensor.name: tensor for _, tensor in tensors(function)}
    outputs = [inside[name] for name in function.outputs if name in inside]
    for kind, found in (("input", function.inputs), ("output", outputs)):
        for tensor in found:
            if tensor.shape and tensor.shape[-1] % _WIDTH:
                yield f"{kind} {tensor.name}", f"has a last axis of {tensor.shape[-1]}"


def odd_state(program: Program, function: Function) -> Iterator[Place]:
    """States whose rows do not fill 64 bytes."""
    for tensor in function.states:
        if tensor.shape and tensor.shape[-1] % _WIDTH:
            yield f"state {tensor.name}", f"has a last axis of {tensor.shape[-1]}"


def subnormal(program: Program, function: Function) -> Iterator[Place]:
    """Single constants below the normal range; among many, those are nearly zero."""
    for name, value in function.constants.items():
        if isinstance(value, str) or value.dtype != np.float16 or value.size != 1:
            continue
        if 0 < abs(float(value.ravel()[0])) < _SMALLEST_NORMAL:
            yield f"constant {name}", f"is subnormal, {float(value.ravel()[0]):.2g}"


def not_finite(program: Program, function: Function) -> Iterator[Place]:
    """Constants that are infinite or no number."""
    for name, value in function.constants.items():
        if not isinstance(value, str) and value.dtype.kind == "f" and not np.isfinite(value).all():
            yield f"constant {name}", "is not finite"
