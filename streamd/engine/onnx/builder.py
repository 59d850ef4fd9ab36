"""Writes ONNX graphs out of the few building blocks that Whisper is made of.

A graph holds no weights: each parameter is an initialiser without data, under its openai/whisper
name, that the runtime gets from the caller's arrays. So nothing is copied, and protobuf's limit of
2 GB does not count. There is no batch axis: matrices are (positions, n_state). Knows neither the
order of Whisper's blocks (`graphs`) nor sessions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from streamd.engine import ModelDimensions
from streamd.engine.weights import parameter_shapes

CONTRIB = "com.microsoft"
"""The domain of the operators that only ONNX Runtime has."""
OPSET = 20
"""Of ai.onnx: the first with Gelu."""

Shape = Sequence[int | str]
"""Sizes of the axes; a name stands for a size that is only known at run time."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A serialised ONNX model, and the parameters that it expects from outside."""

    model: bytes
    parameters: tuple[str, ...]


@dataclass(slots=True)
class GraphBuilder:
    """Collects nodes; a value of the graph is the `str` that names it."""

    dims: ModelDimensions
    _nodes: list[NodeProto] = field(default_factory=list)
    _inputs: list[ValueInfoProto] = field(default_factory=list)
    _outputs: list[ValueInfoProto] = field(default_factory=list)
    _parameters: dict[str, TensorProto] = field(default_factory=dict)
    _constants: dict[str, TensorProto] = field(default_factory=dict)

    def graph(self) -> Graph:
        """Everything so far, as one model."""
        graph = helper.make_graph(
            self._nodes,
            "whisper",
            self._inputs,
            self._outputs,
            [*self._parameters.values(), *self._constants.values()],
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return Graph(model.SerializeToString(), tuple(self._parameters))

    def input(self, name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> str:
        """Declare an input of the graph."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, value: str, shape: Shape) -> None:
        """Make `value` an output of the graph, float32."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        attributes: Mapping[str, int | Sequence[int]] | None = None,
        *,
        domain: str = "",
    ) -> str:
        """Add a node and return its only output."""
        name = f"{kind}_{len(self._nodes)}"
        node = helper.make_node(kind, inputs, [name], name, domain=domain)
        for key, value in (attributes or {}).items():
            node.attribute.append(helper.make_attribute(key, value))
        self._nodes.append(node)
        return name

    def parameter(self, name: str) -> str:
        """Refer to a parameter of the model."""
        if name not in self._parameters:
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT)
            tensor.dims.extend(parameter_shapes(self.dims, tied=False)[name])
            tensor.data_location = TensorProto.EXTERNAL
            # ONNX demands a place; the runtime never looks there, as it is handed the arrays
            tensor.external_data.add(key="location", value="parameters")
            self._parameters[name] = tensor
        return name

    def constant(self, value: Sequence[int] | float) -> str:
        """Add a list of integers (a shape, axes, indices), or one real number."""
        name = f"constant {value}"
        dtype = np.float32 if isinstance(value, float) else np.int64
        self._constants[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name

    def linear(self, x: str, name: str) -> str:
        """``x @ W.T + b``; the projections to keys have no bias."""
        inputs = [x, self.parameter(f"{name}.weight")]
        if not name.endswith(".key"):
            inputs.append(self.parameter(f"{name}.bias"))
        return self.op("Gemm", inputs, {"transB": 1})

    def layer_norm(self, x: str, name: str) -> str:
        """Normalise the last axis; the operator's epsilon is Whisper's, 1e-5."""
        scale, shift = self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")
        return self.op("LayerNormalization", [x, scale, shift])

    def convolve(self, x: str, name: str, *, stride: int) -> str:
        """Convolve (1, n_in, n) over time, padded by one column at both ends."""
        inputs = [x, self.parameter(f"{name}.weight"), self.parameter(f"{name}.bias")]
        return self.op("Conv", inputs, {"pads": [1, 1], "strides": [stride]})

    def feed_forward(self, x: str, block: str) -> str:
        """Two linear layers with an exact GELU between them, behind a layer norm."""
        y = self.linear(self.layer_norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0")
        return self.linear(self.op("Gelu", [y]), f"{block}.mlp.2")

    def add(self, x: str, y: str) -> str:
        """``x + y``."""
        return self.op("Add", [x, y])

    def split_heads(self, x: str, *, last: str = "d_head") -> str:
        """(n, n_state) to the text heads' (n_head, n, d_head), or (n_head, d_head, n)."""
        n_head = self.dims.n_text_head
        d_head = self.dims.n_text_state // n_head
        heads = self.op("Reshape", [x, self.constant([-1, n_head, d_head])])
        order = [1, 0, 2] if last == "d_head" else [1, 2, 0]
        return self.op("Transpose", [heads], {"perm": order})

    def join_heads(self, x: str) -> str:
        """(n_head, n, d_head) to (n, n_state)."""
        rows = self.op("Transpose", [x], {"perm": [1, 0, 2]})
        return self.op("Reshape", [rows, self.constant([-1, self.dims.n_text_state])])

    def query(self, x: str, name: str) -> str:
        """Project to queries of the text heads, (n_head, k, d_head), with the attention's scale."""
        scale = (self.dims.n_text_state // self.dims.n_text_head) ** -0.5
        return self.split_heads(
            self.op("Mul", [self.linear(x, f"{name}.query"), self.constant(scale)])
        )
