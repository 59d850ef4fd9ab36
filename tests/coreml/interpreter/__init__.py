"""An evaluator of saved ML programs: what Core ML will compute, on a machine without Core ML.

It proves the graph, not Core ML: in float32 it must agree with `engines/reference.py` to rounding,
with half precision after every operation to what such rounding costs. It cannot say whether Core ML
accepts a package, where it runs it, or how fast.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.coreml.interpreter.half import rounded
from tests.coreml.interpreter.narrow import NARROW, Narrow, flushed
from tests.coreml.interpreter.operations import MOVES, OPERATIONS, Array
from tests.coreml.interpreter.saved import Operation, Value, read_program

Notice = Callable[[Operation, Array], object]
"""Is told of every value that an operation computes."""
_LISTS = "values"
"""The parameter that takes a list of tensors, even if it is a list of one."""


class Interpreter:
    """The functions of one package; constants are decoded once for all of them.

    The package's files must stay where they are: its weights are mapped.
    """

    def __init__(self, package: Path, narrow: Sequence[Narrow] = ()) -> None:
        """Read the package; `narrow` says what runs in half precision do worse than rounding."""
        self._flush = "flush" in narrow
        self._narrow = OPERATIONS | {
            kind: each for mode in narrow for kind, each in NARROW[mode].items()
        }
        self.program = read_program(package)
        known: dict[tuple[int, ...], Value] = {}

        def decoded(*parts: Value) -> Value:
            """As float32, each array once; two are the indices and the palette of another."""
            key = tuple(map(id, parts))
            if key not in known:
                first, *lut = parts
                exact = lut[0].ravel()[first] if lut else first
                is_half = not isinstance(exact, str) and exact.dtype == np.float16
                known[key] = self._flushed(exact.astype(np.float32)) if is_half else exact
            return known[key]

        self._constants = {}
        for name, function in self.program.functions.items():
            found = {each: decoded(value) for each, value in function.constants.items()}
            for each in function.operations:
                if each.kind == "constexpr_lut_to_dense":
                    stored = (function.constants[each.inputs[n][0]] for n in ("indices", "lut"))
                    found[each.name] = decoded(*stored)
            self._constants[name] = found

    def constant(self, function: str, name: str) -> Value:
        """A constant, decoded."""
        return self._constants[function][name]

    def run(
        self,
        name: str,
        inputs: Mapping[str, Array],
        *,
        half: bool = False,
        notice: Notice = lambda operation, value: None,
    ) -> dict[str, Array]:
        """Evaluate the function of this name.

        Parameters
        ----------
        inputs : all of the function's inputs by name, of the shapes that it says
        half : round inputs and every result to half precision, as the Neural Engine stores them
        notice : is told of each result, before anything else sees it

        Returns
        -------
        the outputs by name, float32, in the order of the package; they may be views of the inputs
        """
        function, operations = self.program.functions[name], self._narrow if half else OPERATIONS
        wanted = {tensor.name: tensor.shape for tensor in function.inputs}
        assert {each: array.shape for each, array in inputs.items()} == wanted
        values: dict[str, Value] = {
            each: self._flushed(rounded(array)) if half else array for each, array in inputs.items()
        }
        constants = self._constants[name]
        running = [each for each in function.operations if each.name not in constants]
        last = {each: op for op in running for names in op.inputs.values() for each in names}
        for op in running:
            given = {}
            for parameter, names in op.inputs.items():
                taken = [constants[n] if n in constants else values[n] for n in names]
                given[parameter] = taken if parameter == _LISTS else taken[0]
            # The results will show it.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                found = operations[op.kind](**given)
            results = found if isinstance(found, list) else [found]
            for tensor, result in zip(op.outputs, results, strict=True):
                assert result.shape == tensor.shape, (name, op.kind, op.name)
                is_rounded = half and tensor.dtype == "float16" and op.kind not in MOVES
                values[tensor.name] = self._flushed(rounded(result)) if is_rounded else result
                notice(op, values[tensor.name])
            # What nobody needs any more takes memory.
            for each in {each for names in op.inputs.values() for each in names} & values.keys():
                if last[each] is op and each not in function.outputs:
                    del values[each]
        return {each: values[each] for each in function.outputs}

    def _flushed(self, array: Array) -> Array:
        return flushed(array) if self._flush else array
