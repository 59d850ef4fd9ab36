"""Writes ONNX graphs out of the few building blocks that Whisper is made of.

A graph names its weights and holds none: the runtime gets them from arrays of ours or maps them
from a file, so nothing is copied, and protobuf's limit of 2 GB does not count. There is no batch
axis: matrices are (positions, n_state). Knows neither the order of Whisper's blocks (`graphs`) nor
sessions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engine import ModelDimensions, Weights
from streamd.engine.onnx import proto
from streamd.engine.onnx.linear import Linear, Projection, quantised
from streamd.engine.onnx.proto import Attributes, ElementType, Shape

CONTRIB = "com.microsoft"
"""The domain of the operators that only ONNX Runtime has."""
OPSET = 20
"""Of ai.onnx: the first with Gelu."""

_ZERO = np.array(128, np.uint8)
"""What stands for zero among the activations: they are unsigned, which is faster."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A serialised ONNX model, and the arrays behind the initialisers that it only names."""

    model: bytes
    tensors: Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class GraphBuilder:
    """Collects nodes; a value of the graph is the `str` that names it."""

    dims: ModelDimensions
    weights: Weights
    kind: Linear
    _nodes: list[bytes] = field(default_factory=list)
    _inputs: list[bytes] = field(default_factory=list)
    _outputs: list[bytes] = field(default_factory=list)
    _tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    _constants: dict[str, bytes] = field(default_factory=dict)

    def graph(self) -> Graph:
        """Everything so far, as one model."""
        placeholders = map(proto.placeholder, self._tensors, self._tensors.values())
        model = proto.model(
            self._nodes,
            inputs=self._inputs,
            outputs=self._outputs,
            initializers=[*placeholders, *self._constants.values()],
            opsets={"": OPSET, CONTRIB: 1},
        )
        return Graph(model, self._tensors)

    def input(self, name: str, shape: Shape, element: ElementType = ElementType.FLOAT) -> str:
        """Declare an input of the graph."""
        self._inputs.append(proto.value_info(name, element, shape))
        return name

    def output(self, name: str, shape: Shape) -> str:
        """Declare an output of the graph, float32, for a node to write."""
        self._outputs.append(proto.value_info(name, ElementType.FLOAT, shape))
        return name

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        to: str = "",
    ) -> str:
        """Add a node and return its only output, which is called `to` if that is an output's."""
        return self.ops(
            kind, inputs, attributes, domain=domain, to=[to or f"{kind}_{len(self._nodes)}"]
        )[0]

    def ops(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        to: Sequence[str],
    ) -> Sequence[str]:
        """Add a node with several outputs, called `to`."""
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(
            proto.node(kind, inputs, to, name=name, domain=domain, attributes=attributes)
        )
        return to

    def tensor(self, name: str, values: NDArray[Any]) -> str:
        """Refer to an array that the runtime gets from outside."""
        self._tensors[name] = values
        return name

    def parameter(self, name: str) -> str:
        """Refer to a parameter of the model, as it is."""
        return self.tensor(name, self.weights[name])

    def constant(self, value: Sequence[int] | float) -> str:
        """Add a list of integers (a shape, axes, indices), or one real number."""
        name = f"constant {value}"
        dtype = np.float32 if isinstance(value, float) else np.int64
        return self._known(name, np.array(value, dtype))

    def _known(self, name: str, values: NDArray[Any]) -> str:
        self._constants[name] = proto.constant(name, values)
        return name

    def linear(self, x: str, *names: str, scale: float = 1.0, to: str = "") -> str:
        """``scale * (x @ W.T + b)``, W and b being those of `names` one below the other."""
        parts = [Projection.of(self.weights, name, scale) for name in names]
        return self.project(x, "+".join(names), Projection.stacked(parts), to=to)

    def project(self, x: str, name: str, projection: Projection, *, to: str = "") -> str:
        """``x @ W.T + b`` in the graph's precision; `name` is what its arrays are called after."""
        bias = [] if projection.bias is None else [self.tensor(f"{name}.bias", projection.bias)]
        if self.kind is Linear.FLOAT32:
            weight = self.tensor(f"{name}.weight", projection.weight)
            return self.op("Gemm", [x, weight, *bias], {"transB": 1}, to=to)
        integers, scales = quantised(projection.weight)
        weight, scale = self.tensor(f"{name}.int8", integers), self.tensor(f"{name}.scale", scales)
        if self.kind is Linear.TENSOR:
            inputs = [x, weight, scale, "", *bias]
            return self.op("DynamicQuantizeMatMul", inputs, domain=CONTRIB, to=to)
        last, least = {"keepdims": 1}, self.constant(1e-30)
        largest = self.op("ReduceMax", [self.op("Abs", [x]), self.constant([-1])], last)
        largest = self.op("Max", [largest, least])  # a row of zeros has no scale
        zero, step = self._known("zero", _ZERO), self.constant(1 / 127)
        rounded = self.op("QuantizeLinear", [self.op("Div", [x, largest]), step, zero])
        inputs = [rounded, weight, step, scale, zero]
        product = self.op("MatMulIntegerToFloat", inputs, domain=CONTRIB)
        if not bias:
            return self.op("Mul", [product, largest], to=to)
        return self.op("Add", [self.op("Mul", [product, largest]), *bias], to=to)

    def layer_norm(self, x: str, name: str) -> str:
        """Normalise the last axis; the operator's epsilon is Whisper's, 1e-5."""
        scale, shift = self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")
        return self.op("LayerNormalization", [x, scale, shift])

    def feed_forward(self, x: str, block: str) -> str:
        """Two linear layers with an exact GELU between them, behind a layer norm."""
        y = self.linear(self.layer_norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0")
        return self.linear(self.op("Gelu", [y]), f"{block}.mlp.2")

    def add(self, x: str, y: str) -> str:
        """``x + y``."""
        return self.op("Add", [x, y])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """`x` in another shape: 0 keeps an axis, -1 takes what is left."""
        return self.op("Reshape", [x, self.constant(shape)])

    def transpose(self, x: str, perm: Sequence[int], *, to: str = "") -> str:
        """`x` with its axes in the order `perm`."""
        return self.op("Transpose", [x], {"perm": perm}, to=to)

    def batch_of_one(self, x: str) -> str:
        """`x` with an axis of 1 in front, for operators that insist on batches."""
        return self.op("Unsqueeze", [x, self.constant([0])])
