"""Make this folder's files: ``python models/community-1/make.py FOLDER``.

FOLDER has ``segmentation.ort`` and ``embedding.ort`` of pyannote.ai's
speaker-diarization-community-1, as they lie in the wheel moonshine-voice 0.1.0 (``SOURCE``): ONNX
Runtime's own format, with weights as uint8. They become ONNX graphs with the same nodes and
weights, bit for bit; only the length of the audio, which the segmentation had fixed at 10 s,
becomes free, and the segmentation ends before the nodes that choose the most probable class. The
embedding then gets activations of 8 bits too, whose ranges are those in the recordings of this
repository: so it takes half of the time; what follows the pooling of its frames becomes a graph of
its own, ``pooled``, so that many voices can be described after their audio was heard once. The
LSTMs of the segmentation get activations of 8 bits, whose ranges are those of the audio that is
heard. Weights of both have 7 bits, because products of 8 by 8 overflow on processors without VNNI.
The script needs streamd's environment, and onnx.
"""

import hashlib
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import soundfile
from numpy.typing import NDArray
from onnx import helper
from onnxruntime import GraphOptimizationLevel, SessionOptions
from onnxruntime import InferenceSession as Runtime
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.AttributeType import AttributeType
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import (
    InferenceSession,
)
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.TensorTypeAndShape import (
    TensorTypeAndShape,
)

from streamd.engines.voices import filter_banks

HERE = Path(__file__).parent
SOURCE = "moonshine_voice/libmoonshine.so"
"""The file of moonshine_voice-0.1.0-py3-none-manylinux_2_34_x86_64.whl that holds the models; if
FOLDER is that wheel itself, they are cut out of it. None of its code is run."""
PARTS = {  # name: offset in that file, bytes, SHA-256
    "segmentation": (
        10869184,
        1594080,
        "9715e3996ef181252aa1cc0c9398060f42b2c984c2fb65e3604262555e2efb1a",
    ),
    "embedding": (
        12463296,
        6975920,
        "6e4af7d49562e6e7042672e444d6394935cb2c23c3a7dd4919da45922b91735b",
    ),
}
MADE = {  # SHA-256 of what this script writes
    "segmentation": "5959de8c0ddd771dffb24843f8d4c6e3707e5c24489bf01e352358b353717dcd",
    "embedding": "2f4d5f49ee8417a1bfd9b20f07a33e3b744f024e7b34cfba2912dc790775af20",
    "pooled": "bed08d7df0930d614107141c4839e0b28ff42d27f927084dcca77e90fea4d359",
}
RECORDINGS = ("speech/recording", "golden/cards", "golden/digits", "golden/lamp")
"""Of this repository's tests, from which the ranges of activations are taken."""
PIECE, LEAST_LEVEL = 24_000, 0.01
"""Samples of them that are embedded at a time, and the mean level of those that are speech."""
LENGTHS = {"waveforms": 2, "segmentation": 1}
"""Which dimension of an input or output becomes free."""


def main() -> None:
    """Read the models, check that they are the published ones, write the graphs."""
    source = Path(sys.argv[1])
    for name, (offset, size, digest) in PARTS.items():
        if source.is_dir():
            data = (source / f"{name}.ort").read_bytes()
        else:
            data = zipfile.ZipFile(source).read(SOURCE)[offset : offset + size]
        if hashlib.sha256(data).hexdigest() != digest:
            raise SystemExit(f"{source}: its {name} is not that of moonshine-voice 0.1.0")
        graph = _graph(InferenceSession.GetRootAs(bytearray(data), 0).Model().Graph(), name)
        if name == "segmentation":
            _leave_undecided(graph)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        target = HERE / f"{name}.onnx"
        target.write_bytes(model.SerializeToString(deterministic=True))
        _quantise(target)
        if name == "embedding":
            _divide(target)
    for name, made in MADE.items():
        target = HERE / f"{name}.onnx"
        written = hashlib.sha256(target.read_bytes()).hexdigest()
        print(f"{target}: {target.stat().st_size} bytes, SHA-256 {written}")
        if written != made:
            raise SystemExit(f"{target} is not what it was: SHA-256 {made} expected")


def _leave_undecided(graph: onnx.GraphProto) -> None:
    """End the segmentation with the log-probabilities of its seven classes."""
    at = next(i for i, node in enumerate(graph.node) if node.op_type == "LogSoftmax")
    graph.node[at].output[0] = graph.output[0].name
    del graph.node[at + 1 :]
    graph.output[0].type.tensor_type.shape.dim[2].dim_value = 7


def _widen(graph: onnx.GraphProto) -> None:
    """Give the first convolution two dimensions, since ONNX Runtime copies the input of one.

    It is in a condition for audio without a batch, which there never is.
    """
    at = next(i for i, node in enumerate(graph.node) if node.op_type == "If")
    condition, absolute, pool = graph.node[at : at + 3]
    (convolution,) = next(each.g for each in condition.attribute if each.name == "then_branch").node
    audio, weights = convolution.input
    next(each for each in graph.initializer if each.name == weights).dims.insert(2, 1)
    graph.initializer.append(helper.make_tensor("height", onnx.TensorProto.INT64, [1], [2]))
    wide = [
        helper.make_node("Unsqueeze", [audio, "height"], ["wide"]),
        helper.make_node("Conv", ["wide", weights], condition.output, strides=[1, 10]),
        absolute,
        helper.make_node("MaxPool", pool.input, ["pooled"], kernel_shape=[1, 3], strides=[1, 3]),
        helper.make_node("Squeeze", ["pooled", "height"], pool.output),
    ]
    nodes = [*graph.node[:at], *wide, *graph.node[at + 3 :]]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def _quantise(path: Path) -> None:
    """Have the products of a graph computed in 8 bits."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "float32.onnx")
        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(plain)
        Runtime(path, options, providers=["CPUExecutionProvider"])
        if path.stem == "segmentation":
            model = onnx.load(plain)
            _widen(model.graph)
            onnx.save(model, plain)
            quantize_dynamic(
                plain,
                path,
                op_types_to_quantize=["LSTM"],
                reduce_range=True,
                weight_type=QuantType.QInt8,
            )
            return
        quantize_static(
            plain,
            path,
            _Recordings(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Add", "Relu", "Gemm"],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


def _divide(path: Path) -> None:
    """End the embedding before it pools its frames, and write what follows as `pooled.onnx`."""
    whole, pool = onnx.shape_inference.infer_shapes(onnx.load(path)), "/resnet/pool/"
    parts = onnx.utils.Extractor(whole)
    pooled = parts.extract_model([f"{pool}stats_pool/Squeeze_output_0"], ["embedding"])
    frames = parts.extract_model(["fbank"], [f"{pool}Reshape_output_0"])
    for part, target in ((pooled, path.with_name("pooled.onnx")), (frames, path)):
        target.write_bytes(part.SerializeToString(deterministic=True))


class _Recordings(CalibrationDataReader):  # type: ignore[misc] # it has no types
    def __init__(self) -> None:
        self._pieces = self._read()

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """Return the next inputs of the embedding, if there are any."""
        return next(self._pieces, None)

    @staticmethod
    def _read() -> Iterator[dict[str, NDArray[np.float32]]]:
        for name in RECORDINGS:
            path = HERE.parents[1] / "tests" / f"{name}.flac"
            sound, _ = soundfile.read(path, dtype="float32")
            for first in range(0, len(sound) - PIECE, PIECE):
                piece = sound[first : first + PIECE]
                if np.abs(piece).mean() > LEAST_LEVEL:
                    banks = filter_banks(piece)[None]
                    banks = (banks - banks.mean(1, keepdims=True)).astype(np.float32)
                    yield {"fbank": banks, "weights": np.ones(banks.shape[:2], np.float32)}


def _graph(source: Any, name: str) -> onnx.GraphProto:  # noqa: ANN401 - flatbuffers has no types
    nodes = [_node(source.Nodes(i)) for i in range(source.NodesLength())]
    inputs = [_value(source, source.Inputs(i)) for i in range(source.InputsLength())]
    outputs = [_value(source, source.Outputs(i)) for i in range(source.OutputsLength())]
    weights = [_tensor(source.Initializers(i)) for i in range(source.InitializersLength())]
    return helper.make_graph(nodes, name, inputs, outputs, weights)


def _node(source: Any) -> onnx.NodeProto:  # noqa: ANN401
    inputs = [source.Inputs(i).decode() for i in range(source.InputsLength())]
    outputs = [source.Outputs(i).decode() for i in range(source.OutputsLength())]
    node = helper.make_node(source.OpType().decode(), inputs, outputs)
    node.attribute.extend(
        _attribute(source.Attributes(i)) for i in range(source.AttributesLength())
    )
    return node


def _attribute(source: Any) -> onnx.AttributeProto:  # noqa: ANN401
    name, kind = source.Name().decode(), source.Type()
    read = {
        AttributeType.FLOAT: source.F,
        AttributeType.INT: source.I,
        AttributeType.STRING: source.S,
        AttributeType.TENSOR: lambda: _tensor(source.T()),
        AttributeType.GRAPH: lambda: _graph(source.G(), name),
        AttributeType.FLOATS: lambda: [source.Floats(i) for i in range(source.FloatsLength())],
        AttributeType.INTS: lambda: [source.Ints(i) for i in range(source.IntsLength())],
        AttributeType.STRINGS: lambda: [source.Strings(i) for i in range(source.StringsLength())],
    }[kind]
    return helper.make_attribute(name, read())


def _tensor(source: Any) -> onnx.TensorProto:  # noqa: ANN401
    data = source.RawDataAsNumpy().tobytes() if source.RawDataLength() else b""
    shape = [source.Dims(i) for i in range(source.DimsLength())]
    return onnx.TensorProto(
        name=(source.Name() or b"").decode(), dims=shape, data_type=source.DataType(), raw_data=data
    )


def _value(graph: Any, name: bytes) -> onnx.ValueInfoProto:  # noqa: ANN401
    args = (graph.NodeArgs(i) for i in range(graph.NodeArgsLength()))
    kind = next(arg for arg in args if arg.Name() == name).Type()
    text = name.decode()
    if kind is None:
        return onnx.ValueInfoProto(name=text)
    tensor = TensorTypeAndShape()
    tensor.Init(kind.Value().Bytes, kind.Value().Pos)
    shape: list[str | int] | None = None
    if (source := tensor.Shape()) is not None:
        dims = [source.Dim(i).Value() for i in range(source.DimLength())]
        shape = [dim.DimParam().decode() if dim.DimParam() else dim.DimValue() for dim in dims]
        if text in LENGTHS:
            shape[LENGTHS[text]] = "samples" if text == "waveforms" else "frames"
    return helper.make_tensor_value_info(text, tensor.ElemType(), shape)


if __name__ == "__main__":
    main()
