"""Where in a function something is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.coreml.interpreter.saved import Function, Operation, Tensor

Place = tuple[str, str]
"""An operation or tensor, and what is wrong with it."""


def label(operation: Operation) -> str:
    """What an operation is called in a complaint."""
    return f"{operation.kind} {operation.name}"


def running(function: Function) -> Iterator[Operation]:
    """Operations that are carried out when the function is called."""
    return (each for each in function.operations if not each.kind.startswith("constexpr"))


def tensors(function: Function) -> Iterator[tuple[str, Tensor]]:
    """All that has a shape when the function runs, with what it is."""
    for kind, tensors in (("input", function.inputs), ("state", function.states)):
        yield from ((f"{kind} {tensor.name}", tensor) for tensor in tensors)
    for operation in running(function):
        yield from ((label(operation), tensor) for tensor in operation.outputs)


def parameter(function: Function, operation: Operation, name: str, default: object) -> NDArray[Any]:
    """A constant input of an operation."""
    (value,) = operation.inputs.get(name, ("",))
    return np.asarray(function.constants.get(value, default))
