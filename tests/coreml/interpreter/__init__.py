"""An evaluator of saved ML programs: what Core ML will compute, on a machine without Core ML.

It proves the graph, not Core ML: in float32 it must agree with `engines/reference.py` to rounding,
with half precision after every operation to what such rounding costs. It cannot say whether Core ML
accepts a package, where it runs it, or how fast.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamd.errors import ModelError
from tests.coreml.interpreter.constants import DECODERS
from tests.coreml.interpreter.half import rounded
from tests.coreml.interpreter.narrow import NARROW, Narrow, flushed
from tests.coreml.interpreter.operations import (
    MOVES,
    OPERATIONS,
    Array,
    Result,
    UnsupportedError,
)
from tests.coreml.interpreter.saved import (
    Function,
    Operation,
    Program,
    Tensor,
    Value,
    read_program,
)

Notice = Callable[[Operation, Array], object]
"""Is told of every value that an operation computes."""

_NONSENSE = (UnsupportedError, TypeError, ValueError, LookupError, ArithmeticError)
"""What comes of operations that do not fit together, as damaged packages have them."""
_LISTS = "values"
"""The parameter that takes a list of tensors, even if it is a list of one."""


@dataclass(frozen=True, slots=True)
class _Step:
    """An operation, ready to run: what to call, with what, and what nobody needs behind it.

    `narrow` is what to call in half precision.
    """

    operation: Operation
    compute: Callable[..., Result]
    narrow: Callable[..., Result]
    constants: Mapping[str, Any]
    values: Mapping[str, tuple[str, ...]]
    dead: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A function, ready to run; `constants` are those that stand in lists of tensors."""

    signature: Function
    constants: Mapping[str, Array]
    steps: Sequence[_Step]


class Interpreter:
    """The functions of one package; constants are decoded once for all of them.

    The package's files must stay where they are: its weights are mapped.
    """

    def __init__(self, package: Path, narrow: Sequence[Narrow] = ()) -> None:
        """Read the package; `narrow` says what runs in half precision do worse than rounding.

        Raises `ModelError` if it is no package, damaged, or has an odd operation.
        """
        self._flush = "flush" in narrow
        self._narrow = {kind: each for mode in narrow for kind, each in NARROW[mode].items()}
        self.program: Program = read_program(package)
        self._known: dict[tuple[Any, ...], Array] = {}
        self._plans = {
            name: self._plan(function) for name, function in self.program.functions.items()
        }

    def run(
        self,
        function: str,
        inputs: Mapping[str, Array],
        *,
        half: bool = False,
        notice: Notice = lambda operation, value: None,
    ) -> dict[str, Array]:
        """Evaluate a function.

        Parameters
        ----------
        inputs : all of the function's inputs by name, of the shapes that it says
        half : round inputs and every result to half precision, as the Neural Engine stores them
        notice : is told of each result, before anything else sees it

        Returns
        -------
        the outputs by name, float32, in the order of the package; they may be views of the inputs

        Raises
        ------
        ValueError
            The inputs are not those of the function: a bug of the caller.
        ModelError
            An operation does not give the shape that the package says, or is not supported.
        """
        plan = self._plans[function]
        shapes = {tensor.name: tensor.shape for tensor in plan.signature.inputs}
        if shapes != (given := {name: np.shape(array) for name, array in inputs.items()}):
            raise ValueError(f"inputs {given} for a function of {shapes}")
        values = {name: np.asarray(array, np.float32) for name, array in inputs.items()}
        if half:
            values = {name: self._stored(array) for name, array in values.items()}
        values |= plan.constants
        for step in plan.steps:
            operation = step.operation
            for tensor, result in self._results(function, step, values, half=half):
                if result.shape != tensor.shape:
                    what = f"gives {result.shape}, not {tensor.shape}"
                    raise self._error(function, operation, what)
                if half and tensor.dtype == "float16" and operation.kind not in MOVES:
                    result = self._stored(result)
                notice(operation, result)
                values[tensor.name] = result
            for name in step.dead:
                del values[name]
        return {name: values[name] for name in plan.signature.outputs}

    def constant(self, function: str, operation: Operation) -> Array:
        """What a ``constexpr_...`` operation of the function decodes to, as float32.

        Raises
        ------
        ModelError
            It is of a form that streamd does not write.
        """
        constants = self.program.functions[function].constants
        if any(name not in constants for (name,) in operation.inputs.values()):
            raise self._error(function, operation, "decodes what is itself encoded")
        given = {each: constants[name] for each, (name,) in operation.inputs.items()}
        key = (operation.kind, *sorted((each, id(value)) for each, value in given.items()))
        if key not in self._known:
            try:
                exact = DECODERS[operation.kind](**given)
            except _NONSENSE as error:
                raise self._error(function, operation, f"cannot be decoded: {error}") from error
            half = operation.outputs[0].dtype == "float16"
            self._known[key] = rounded(exact) if half else exact
        return self._known[key]

    def _plan(self, function: Function) -> _Plan:
        constants = {name: self._ready(value) for name, value in function.constants.items()}
        running = []
        for operation in function.operations:
            if operation.kind in DECODERS:
                constants[operation.name] = self.constant(function.name, operation)
            else:
                running.append(operation)
        needed = {*function.outputs, *constants}
        steps: list[_Step] = []
        for operation in reversed(running):
            known = {
                parameter: constants[names[0]]
                for parameter, names in operation.inputs.items()
                if parameter != _LISTS and names[0] in constants
            }
            given = {each: names for each, names in operation.inputs.items() if each not in known}
            touched = {name for names in given.values() for name in names}
            dead = (touched | {tensor.name for tensor in operation.outputs}) - needed
            needed |= touched
            compute = self._compute(function, operation)
            narrow = self._narrow.get(operation.kind, compute)
            steps.append(_Step(operation, compute, narrow, known, given, tuple(dead)))
        listed = {name for step in steps for name in step.values.get(_LISTS, ())} & constants.keys()
        arrays = {name: np.asarray(constants[name]) for name in listed}
        return _Plan(function, arrays, steps[::-1])

    def _compute(self, function: Function, operation: Operation) -> Callable[..., Result]:
        if operation.kind not in OPERATIONS:
            raise self._error(function.name, operation, "is not supported")
        return OPERATIONS[operation.kind]

    def _results(
        self,
        function: str,
        step: _Step,
        values: Mapping[str, Array],
        *,
        half: bool,
    ) -> Iterator[tuple[Tensor, Array]]:
        """What an operation gives, in float32."""
        operation = step.operation
        given = {
            parameter: [values[name] for name in names] if parameter == _LISTS else values[names[0]]
            for parameter, names in step.values.items()
        }
        try:
            # The results will show it.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                results = (step.narrow if half else step.compute)(**step.constants, **given)
        except _NONSENSE as error:
            raise self._error(function, operation, f"cannot be computed: {error}") from error
        several = results if isinstance(results, list) else [results]
        if len(several) != len(operation.outputs):
            raise self._error(function, operation, f"gives {len(several)} results")
        return zip(operation.outputs, several, strict=True)

    def _ready(self, value: Value) -> Value:
        """Numbers of half precision as float32, each array once."""
        if isinstance(value, str) or value.dtype != np.float16:
            return value
        key = ("float16", id(value))
        if key not in self._known:
            exact = value.astype(np.float32)
            self._known[key] = flushed(exact) if self._flush else exact
        return self._known[key]

    def _stored(self, array: Array) -> Array:
        half = rounded(array)
        return flushed(half) if self._flush else half

    def _error(self, function: str, operation: Operation, what: str) -> ModelError:
        where = f"{self.program.path}: {function}: {operation.kind} {operation.name}"
        return ModelError(f"{where} {' '.join(what.split())}")
