"""Writes ONNX graphs from the building blocks of Whisper.

A graph names its weights without containing them: the runtime gets arrays or maps a file, so
nothing is copied, and protobuf's limit of 2 GB does not apply. There is no batch axis: matrices are
(positions, n_state). In int8, a weight is an integer in -127..127 times a scale for each output;
activations are quantised while the graph runs. Measurements: benchmarks/RESULTS.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from streamd.engines.onnx import proto
from streamd.engines.onnx.proto import Attributes, ElementType, Shape
from streamd.models import ModelDimensions, Weights

CONTRIB = "com.microsoft"
"""The domain of the operators that only ONNX Runtime has."""
OPSET = 20
"""The version of ai.onnx, the first with Gelu."""
_LARGEST = 127
"""The largest integer of a weight; the range is symmetric."""
_N_ROWS = 256
"""Rows of a matrix that are rounded at once, so that they stay in a processor's cache."""
_ZERO = np.array(128, np.uint8)
"""Zero among unsigned integers: of activations, because that is faster, and maybe of weights."""


class Linear(Enum):
    """How a graph multiplies.

    `TENSOR` is int8 with one scale for all activations of a call: the fastest for many rows, but a
    row's result depends on the others. `ROWS` is int8 with a scale for each row: since sums of
    integers are exact, a row's result is, to the last bit, the same with any other rows.
    """

    FLOAT32 = "float32"
    TENSOR = "int8 per tensor"
    ROWS = "int8 per row"


@dataclass(frozen=True, slots=True)
class Projection:
    """``x @ weight.T + bias``: (n_out, n_in) float32 and (n_out,) or no bias."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None = None
    offset: NDArray[np.float32] | None = None
    """(n_in,): what is to be subtracted from each row of the weight, where that is rounded."""

    @classmethod
    def stacked(cls, weights: Weights, names: Sequence[str]) -> Self:
        """Join layers with the same input into one, whose output is theirs side by side."""
        if len(names) == 1:  # no copy
            return cls(weights[f"{names[0]}.weight"], weights.get(f"{names[0]}.bias"))
        parts = [weights[f"{name}.weight"] for name in names]
        # Whisper's projections to keys have no bias
        zeros = [np.zeros(len(part), np.float32) for part in parts]
        biases = [weights.get(f"{name}.bias", z) for name, z in zip(names, zeros, strict=True)]
        return cls(np.concatenate(parts), np.concatenate(biases))

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute ``x @ weight.T + bias`` now."""
        y: NDArray[np.float32] = x @ self.weight.T
        return y if self.bias is None else y + self.bias

    def widened(self, n_head: int, value: float) -> "Projection":
        """Add an output at the end of each head that is always `value`."""
        n_out, n_in = self.weight.shape
        rows = self.weight.reshape(n_head, -1, n_in)
        biases = np.zeros(n_out, np.float32) if self.bias is None else self.bias
        wide = np.pad(rows, ((0, 0), (0, 1), (0, 0))).reshape(-1, n_in)
        more = np.pad(biases.reshape(n_head, -1), ((0, 0), (0, 1)), constant_values=value)
        return Projection(wide, more.ravel())


def row_offset(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the rounded mean of an output layer's rows, (n_in,) float32.

    A few columns of Whisper's token embedding are far from zero in every row (in tiny.en one is 30
    times as large as the median), and would use most of a row's 8 bits. Subtracting the offset
    reduces the rounding error to a third, in tiny.en and in base.
    """
    # multiples of 2**-8: a matrix made from int8 rows and this offset has the same offset again
    steps = np.rint(matrix.mean(axis=0, dtype=np.float64) * 256)
    offset: NDArray[np.float32] = (steps / 256).astype(np.float32)
    return offset


def quantised(
    weight: NDArray[np.float32], offset: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return integers (n_in, n_out), in the order of int8 operators, and scales (n_out,).

    They are those of each row without the `offset` (n_in,), if there is one.
    """
    scales = np.empty(len(weight), np.float32)
    integers = np.empty(weight.T.shape, np.int8)
    for begin in range(0, len(weight), _N_ROWS):
        rows = slice(begin, begin + _N_ROWS)
        part = weight[rows] if offset is None else weight[rows] - offset
        scale = np.maximum(part.max(axis=1), -part.min(axis=1)) / np.float32(_LARGEST)
        scale[scale == 0] = 1
        # as bytes before they are transposed, which takes a third of the time
        part = part / scale[:, None]
        integers[:, rows] = np.rint(part, out=part).astype(np.int8).T
        scales[rows] = scale
    return integers, scales


@cache
def signed_overflows() -> bool:
    """Return whether products of unsigned activations and signed weights overflow here.

    ONNX Runtime adds pairs of them in 16 bits on x86 processors without VNNI. There weights are
    unsigned, too: those kernels are exact, but slower by up to a quarter.
    """
    n = 32
    a, b, y = (
        proto.value_info(name, element, shape)
        for name, element, shape in (
            ("a", ElementType.UINT8, (2, n)),
            ("b", ElementType.INT8, (n, 16)),
            ("y", ElementType.INT32, (2, 16)),
        )
    )
    node = proto.node("MatMulInteger", ["a", "b"], ["y"], name="product")
    model = proto.model([node], inputs=[a, b], outputs=[y], initializers=[], opsets={"": OPSET})
    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs = {"a": np.full((2, n), 255, np.uint8), "b": np.full((n, 16), _LARGEST, np.int8)}
    return bool((session.run(None, inputs)[0] != n * 255 * _LARGEST).any())


@dataclass(frozen=True, slots=True)
class Graph:
    """A serialised ONNX model, and the arrays that it names as initialisers."""

    model: bytes
    tensors: Mapping[str, NDArray[Any]]

    def write(self, folder: Path) -> Path:
        """Write the model and its arrays into a folder; return the model's file."""
        with (folder / _TENSORS).open("wb") as file:
            for offset, values in zip(_offsets(self.tensors), self.tensors.values(), strict=True):
                file.seek(offset)
                file.write(np.ascontiguousarray(values).data)
        path = folder / "graph.onnx"
        path.write_bytes(self.model)
        return path


_TENSORS, _PAGE = "tensors", 4096


def _offsets(tensors: Mapping[str, NDArray[Any]]) -> list[int]:
    """Return where each tensor begins in a file that has all, each on a page to be mapped."""
    sizes = (-(-values.nbytes // _PAGE) * _PAGE for values in tensors.values())
    return [*accumulate(sizes, initial=0)][:-1]


@dataclass(slots=True)
class GraphBuilder:
    """Collects nodes; methods take and return the names of the graph's values."""

    dims: ModelDimensions
    weights: Weights
    kind: Linear
    _nodes: list[bytes] = field(default_factory=list)
    _inputs: list[bytes] = field(default_factory=list)
    _outputs: list[bytes] = field(default_factory=list)
    _tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    _constants: dict[str, bytes] = field(default_factory=dict)
    _integers: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def graph(self) -> Graph:
        """Return the finished model."""
        places = zip(self._tensors.items(), _offsets(self._tensors), strict=True)
        initializers = (proto.external(*named, _TENSORS, at) for named, at in places)
        model = proto.model(
            self._nodes,
            inputs=self._inputs,
            outputs=self._outputs,
            initializers=[*initializers, *self._constants.values()],
            opsets={"": OPSET, CONTRIB: 1},
        )
        return Graph(model, self._tensors)

    def input(self, name: str, shape: Shape, element: ElementType = ElementType.FLOAT32) -> str:
        """Declare an input of the graph."""
        self._inputs.append(proto.value_info(name, element, shape))
        return name

    def output(self, name: str, shape: Shape, element: ElementType = ElementType.FLOAT32) -> str:
        """Declare an output of the graph for a node to write."""
        self._outputs.append(proto.value_info(name, element, shape))
        return name

    @property
    def stored(self) -> ElementType:
        """What keys and values of a window's sound are stored in: see `stored_dtype`."""
        return ElementType.FLOAT32 if self.kind is Linear.FLOAT32 else ElementType.FLOAT16

    def cast(self, x: str, element: ElementType) -> str:
        """Convert `x`, which is float32 or what is `stored`."""
        return x if self.kind is Linear.FLOAT32 else self.op("Cast", [x], {"to": element})

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        to: str = "",
        more: Sequence[str] = (),
    ) -> str:
        """Add a node and return its first output, which is called `to`; `more` are the others."""
        name = f"{kind}_{len(self._nodes)}"
        outputs = [to or name, *more]
        self._nodes.append(
            proto.node(kind, inputs, outputs, name=name, domain=domain, attributes=attributes)
        )
        return outputs[0]

    def tensor(self, name: str, values: NDArray[Any]) -> str:
        """Refer to an array that the runtime gets separately."""
        self._tensors[name] = values
        return name

    def parameter(self, name: str) -> str:
        """Refer to a parameter of the model."""
        return self.tensor(name, self.weights[name])

    def constant(self, value: Sequence[int] | float) -> str:
        """Add a list of integers (a shape, axes, indices), or one real number."""
        name = f"constant {value}"
        dtype = np.float32 if isinstance(value, float) else np.int64
        return self._known(name, np.array(value, dtype))

    def _known(self, name: str, values: NDArray[Any]) -> str:
        self._constants[name] = proto.constant(name, values)
        return name

    def linear(self, x: str, *names: str) -> str:
        """Add ``x @ W.T + b`` with the stacked W and b of the layers `names`."""
        return self.project(x, "+".join(names), Projection.stacked(self.weights, names))

    def project(self, x: str, name: str, projection: Projection, *, to: str = "") -> str:
        """Add ``x @ W.T + b`` in the graph's precision; the arrays' names begin with `name`."""
        bias = [] if projection.bias is None else [self.tensor(f"{name}.bias", projection.bias)]
        if self.kind is Linear.FLOAT32:
            weight = self.tensor(f"{name}.weight", projection.weight)
            return self.op("Gemm", [x, weight, *bias], {"transB": 1}, to=to)
        integers, scales = quantised(projection.weight, projection.offset)
        stored: NDArray[Any] = integers
        weight_zero = []
        if signed_overflows():
            weight_zero = [self._known("zero", _ZERO)]
            stored = integers.view(np.uint8) ^ _ZERO  # each 128 more
        weight, scale = self.tensor(f"{name}.int8", stored), self.tensor(f"{name}.scale", scales)
        if self.kind is Linear.TENSOR:
            rounded, step, zero = self._rounded(x)
            inputs = [rounded, weight, step, scale, zero, *(weight_zero or [""]), *bias]
            return self.op("MatMulIntegerToFloat", inputs, domain=CONTRIB, to=to)
        # A row of zeros becomes any integers, and times zero what it was.
        last = {"keepdims": 1}
        largest = self.op("ReduceMax", [self.op("Abs", [x]), self.constant([-1])], last)
        zero, step = self._known("zero", _ZERO), self.constant(1 / 127)
        rounded = self.op("QuantizeLinear", [self.op("Div", [x, largest]), step, zero])
        inputs = [rounded, weight, step, scale, zero, *weight_zero]
        product = self.op("MatMulIntegerToFloat", inputs, domain=CONTRIB)
        scaled = self.op("Mul", [product, largest], to="" if bias else to)
        return self.op("Add", [scaled, *bias], to=to) if bias else scaled

    def _rounded(self, x: str) -> tuple[str, str, str]:
        """Round `x` to integers once for all layers that multiply it: (integers, scale, zero)."""
        if x not in self._integers:
            more = f"{x}.step", f"{x}.zero"
            rounded = self.op("DynamicQuantizeLinear", [x], to=f"{x}.rounded", more=more)
            self._integers[x] = rounded, *more
        return self._integers[x]

    def layer_norm(self, x: str, name: str, *, to: str = "") -> str:
        """Normalise the last axis; the operator's default epsilon is Whisper's, 1e-5."""
        scale, shift = self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")
        return self.op("LayerNormalization", [x, scale, shift], to=to)

    def feed_forward(self, x: str, block: str) -> str:
        """Add two linear layers with an exact GELU between them."""
        y = self.linear(x, f"{block}.mlp.0")
        return self.linear(self.op("Gelu", [y]), f"{block}.mlp.2")

    def add(self, x: str, y: str) -> str:
        """Add ``x + y``."""
        return self.op("Add", [x, y])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Change the shape of `x`: 0 keeps an axis, -1 takes the rest."""
        return self.op("Reshape", [x, self.constant(shape)])

    def transpose(self, x: str, perm: Sequence[int], *, to: str = "") -> str:
        """Put the axes of `x` in the order `perm`."""
        return self.op("Transpose", [x], {"perm": perm}, to=to)

    def batch_of_one(self, x: str) -> str:
        """Add a batch axis to `x`, for operators that demand it."""
        return self.op("Unsqueeze", [x, self.constant([0])])
