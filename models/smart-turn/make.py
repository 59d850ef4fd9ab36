"""Make this folder's files: ``python models/smart-turn/make.py WHEEL``, a wheel of pipecat-ai.

Needs ``onnx``. The weights stay as they are, in 8 bits; what is computed with them stays in float32
instead of being rounded to 8 bits as well, which tells ends of turns better
(benchmarks/RESULTS.md, "When a turn ends").
"""

import hashlib
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx

HERE = Path(__file__).parent
INSIDE = "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
SHA256 = "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f"


def main() -> None:
    """Write the network with activations in float32, and the licence; refuse other weights."""
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        weights = wheel.read(INSIDE)
        (licence,) = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
        text = wheel.read(licence)
    if hashlib.sha256(weights).hexdigest() != SHA256:
        raise SystemExit(f"{sys.argv[1]}: not the weights of smart-turn v3.2")
    model = onnx.load_from_string(weights)
    keep_activations(model.graph)
    made = model.SerializeToString(deterministic=True)
    (HERE / "smart-turn-v3.2.onnx").write_bytes(made)
    (HERE / "LICENSE").write_bytes(text)
    if hashlib.sha256(made).hexdigest() not in (HERE / "README.md").read_text():
        raise SystemExit("README.md has another digest: is this another version of onnx?")


def keep_activations(graph: onnx.GraphProto) -> None:
    """Round nothing but weights to 8 bits.

    Where a convolution or a sum is rounded to unsigned 8 bits with the zero point 0, a rectifier is
    put: ONNX Runtime's quantiser has removed the graph's own there.
    """
    tensors = {each.name: each for each in graph.initializer}
    made = {name: node.op_type for node in graph.node for name in node.output}
    instead: dict[str, str] = {}  # what replaces the output of a node that is gone
    kept = []
    for node in graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
        if node.op_type == "QuantizeLinear":
            zero_point = onnx.numpy_helper.to_array(tensors[node.input[2]])
            if zero_point.dtype != np.uint8:
                raise SystemExit(f"{node.name}: rounded to {zero_point.dtype}")
            if zero_point or made.get(node.input[0]) not in ("Conv", "Add"):
                instead[node.output[0]] = node.input[0]
                continue
            node.CopyFrom(onnx.helper.make_node("Relu", node.input[:1], node.output, node.name))
        elif node.op_type == "DequantizeLinear" and node.input[0] not in tensors:
            instead[node.output[0]] = node.input[0]
            continue
        kept.append(node)
    if any(each.name in instead for each in graph.output):
        raise SystemExit("the probability itself is rounded")
    del graph.node[:], graph.value_info[:]
    graph.node.extend(kept)
    used = {name for node in graph.node for name in node.input}
    weights = [each for each in graph.initializer if each.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)


if __name__ == "__main__":
    main()
