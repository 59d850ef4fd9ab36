"""Whether built packages compute what the reference does: every function of them, by interpreter.

That covers all parts and contexts, exactly and in half precision. A slip that is hidden in a text
(a tanh GELU, another epsilon) is seen here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from streamd.engines.coreml.golden import distance
from streamd.engines.coreml.package import BuiltModel, Function
from streamd.models.model import Model
from streamd.types import Mel
from tests.coreml.interpreter import Interpreter
from tests.coreml.interpreter.saved import Operation
from tests.coreml.verify.calls import Array, Arrays, Call, Calls

EXACT, HALF = 1e-5, 1e-2
"""How far a tensor may be from the reference's, relative (rms): in float32, and if every result is
rounded to half precision. The farthest tensors of tiny.en and base are 6.0e-6 and 2.7e-3 away: the
encoder's output after 1500 keys, whose sums the two add up in another order, and after 512. A tanh
GELU is 7e-5 away or more."""


class Peak(NamedTuple):
    """The largest value in an operation."""

    where: str
    value: float


@dataclass(frozen=True, slots=True)
class Finding:
    """What a function computes.

    `exact` and `half` are the differences of the tensor that is farthest away, which is `where`;
    infinite if it does not consist of numbers. `peak` is the largest value of any operation, masked
    scores excepted.
    """

    function: Function
    exact: float
    half: float
    where: str
    peak: Peak

    @property
    def right(self) -> bool:
        """Whether it is near enough."""
        return self.exact < EXACT and self.half < HALF


def verify(built: BuiltModel, model: Model, mel: Mel) -> Iterator[Finding]:
    """Compare every function of a built model with the reference.

    Parameters
    ----------
    model : the checkpoint that it was built from
    mel : the log-mel of a recording, (n_mels, 2 * n_audio_ctx)
    """
    calls = Calls(built, model, mel)
    for package, functions in groupby(built.functions, lambda function: function.package):
        interpreter = Interpreter(built.folder / package)
        for function in functions:
            yield compare(interpreter, calls.call(function))


def compare(interpreter: Interpreter, call: Call) -> Finding:
    """Run a call, exactly and in half precision, and compare what comes out with what must."""
    name, wanted = call.function.name, call.outputs
    operations = interpreter.program.functions[name].operations
    masked = {each for op in operations if op.kind == "softmax" for each in op.inputs["x"]}
    peak = Peak("", 0.0)

    def notice(operation: Operation, value: Array) -> None:
        nonlocal peak
        if operation.kind == "add" and operation.name in masked:
            return
        largest = float(np.abs(value).max())
        if not largest <= peak.value:  # NaN counts as larger
            peak = Peak(f"{operation.kind} {operation.name}", largest)

    exact = _differences(interpreter.run(name, call.inputs, notice=notice), wanted)
    half = _differences(interpreter.run(name, call.inputs, half=True), wanted)
    where = max(exact, key=lambda each: max(exact[each] / EXACT, half[each] / HALF))
    return Finding(call.function, exact[where], half[where], where, peak)


def _differences(found: Arrays, wanted: Arrays) -> dict[str, float]:
    return {name: difference(found[name], wanted[name]) for name in wanted}


def difference(found: Array, wanted: Array) -> float:
    """Relative (rms), where a number is wanted; infinite if anything found is not finite.

    A tensor of zeros must be just that.
    """
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    known = ~np.isnan(wanted)
    return distance(found[known], wanted[known])
