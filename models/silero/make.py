"""Make Silero's network for streamd: ``python models/silero/make.py WHEEL``, one of silero-vad.

Needs ``onnx``. The weights stay as they are. ONNX Runtime computes a convolution chunk by chunk, so
convolutions become matrix products over all chunks at once. What no later layer uses is left out: a
frame of the spectrogram before the chunk, and products with the zeros around one or two positions.
"""

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

ORIGINAL = "silero_vad_16k_sequence.onnx"
HERE = Path(__file__).parents[2] / "streamd" / "engines" / "silero"
SHA256 = "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"
N_CHUNK, HOP, N_BINS, N_STATE = 576, 128, 129, 128
N_POSITIONS = 4
"""Frames of a chunk's spectrogram, each of two hops."""


def main() -> None:
    """Write the network and the licence; refuse other weights."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        (found,) = [name for name in wheel.namelist() if name.endswith(f"/{ORIGINAL}")]
        (licence,) = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
        weights, text = wheel.read(found), wheel.read(licence)
    if hashlib.sha256(weights).hexdigest() != SHA256:
        raise SystemExit(f"{sys.argv[1]}: not the weights of silero-vad 6.2.3")
    made = as_products(onnx.load_from_string(weights)).SerializeToString(deterministic=True)
    onnx.checker.check_model(made, full_check=True)
    (HERE / "silero_vad_16k.onnx").write_bytes(made)
    (HERE / "LICENSE").write_bytes(text)
    print(f"SHA-256 {hashlib.sha256(made).hexdigest()}, which tests/test_contracts.py compares")


class Network:
    """Collects nodes and arrays; methods return the name of what they compute."""

    def __init__(self) -> None:
        """Begin without any."""
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, NDArray[Any]] = {}

    def op(
        self, kind: str, *inputs: str, to: str = "", more: tuple[str, ...] = (), **how: int | str
    ) -> str:
        """Add a node."""
        name = to or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, (name, *more), name, **how))
        return name

    def array(self, name: str, values: NDArray[Any]) -> str:
        """Add an array."""
        self.arrays[name] = np.ascontiguousarray(values)
        return name

    def sizes(self, *sizes: int) -> str:
        """Add integers: a shape, or the like."""
        return self.array(f"sizes {sizes}", np.array(sizes, np.int64))

    def reshape(self, x: str, *sizes: int) -> str:
        """Give other sizes."""
        return self.op("Reshape", x, self.sizes(*sizes))

    def every(self, x: str, begin: int, end: int, step: int = 1) -> str:
        """Take positions `begin` to `end` of the second axis."""
        return self.op("Slice", x, *map(self.sizes, (begin, end, 1, step)))

    def layer(self, x: str, name: str, kernel: NDArray[Any], bias: NDArray[Any]) -> str:
        """Multiply the last axis of `x` by a `kernel` (n_out, n_in), and rectify."""
        weight = self.array(f"{name}.weight", kernel)
        rows = self.reshape(x, -1, kernel.shape[1])
        return self.op(
            "Relu", self.op("Gemm", rows, weight, self.array(f"{name}.bias", bias), transB=1)
        )


def as_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the network with the inputs and outputs of the original."""
    known = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    n = Network()
    x = spectrogram(n, known["stft.forward_basis_buffer"][:, 0])
    for layer, (n_positions, stride) in enumerate(((4, 1), (4, 2), (2, 2), (1, 1))):
        name = f"encoder.{layer}"
        kernel, bias = known[f"{name}.weight"], known[f"{name}.bias"]
        n_in = kernel.shape[1]
        if n_positions == N_POSITIONS:
            x = n.reshape(x, -1, n_positions, n_in)
            x = n.op("Pad", x, n.sizes(0, 1, 0, 0, 1, 0))
            parts = [n.every(x, at, at + n_positions, stride) for at in range(3)]
            x = n.op("Concat", *parts, axis=2)
        else:  # one result, of the middle position and maybe the one after it
            kernel = kernel[:, :, 1 : 1 + n_positions]
        x = n.layer(x, name, kernel.transpose(0, 2, 1).reshape(len(kernel), -1), bias)
    recurrent = [n.array(f"recurrent.{i}", known[f"onnx::LSTM_{209 + i}"]) for i in range(3)]
    steps = n.reshape(x, -1, 1, N_STATE)
    x = n.op("LSTM", steps, *recurrent, "", "h", "c", more=("hn", "cn"), hidden_size=N_STATE)
    weight, bias = known["output.weight"], known["output.bias"]
    x = n.op("Relu", n.reshape(x, -1, N_STATE))
    weight = n.array("output.weight", weight.reshape(1, -1))
    x = n.op("Gemm", x, weight, n.array("output.bias", bias), transB=1)
    n.op("Reshape", n.op("Sigmoid", x), n.sizes(-1), to="speech_probs")
    arrays = [numpy_helper.from_array(values, name) for name, values in n.arrays.items()]
    before = model.graph
    graph = helper.make_graph(n.nodes, "silero", before.input, before.output, arrays)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def spectrogram(n: Network, basis: NDArray[np.float32]) -> str:
    """Add the magnitudes (4 * n, 129) of a chunk and its last 64 samples, mirrored."""
    mirrored = n.op(
        "Pad", "input", n.sizes(0, 0, 0, N_POSITIONS * HOP + HOP - N_CHUNK), mode="reflect"
    )
    hops = n.reshape(mirrored, -1, N_POSITIONS + 1, HOP)
    pairs = [n.every(hops, at, at + N_POSITIONS) for at in range(2)]
    frames = n.reshape(n.op("Concat", *pairs, axis=2), -1, 2 * HOP)
    squares = []
    for name, rows in (("real", basis[:N_BINS]), ("imaginary", basis[N_BINS:])):
        y = n.op("Gemm", frames, n.array(f"stft.{name}", rows), transB=1)
        squares.append(n.op("Mul", y, y))
    return n.op("Sqrt", n.op("Add", *squares))


if __name__ == "__main__":
    main()
