"""What streamd does not read is named for what it is, and never called damaged."""

import numpy as np
import pytest

from streamd.engines.onnx.builder import quantised
from streamd.models.model import Model
from streamd.models.store import load_model
from tests.support import folders
from tests.support.checkpoints import read_model, refusal

CURE = "which streamd does not read; get the same model as Hugging Face's safetensors or "


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.onnx", "an ONNX export"),
        ("onnx/encoder_model.onnx", "an ONNX export"),
        ("base.mlpackage/Manifest.json", "a Core ML package"),
        ("AudioEncoder.mlmodelc/model.mil", "a compiled Core ML model"),
        ("flax_model.msgpack", "Flax weights"),
        ("tf_model.h5", "TensorFlow or Keras weights"),
        ("saved_model.pb", "a TensorFlow model"),
        ("whisper-base.tflite", "a TensorFlow Lite model"),
        ("openvino_encoder_model.xml", "an OpenVINO model"),
        ("adapter_model.safetensors", "a LoRA adapter without the model that it adapts"),
    ],
)
@pytest.mark.parametrize("config", [None, '{"model_type": "whisper"}'])
def test_folders_of_another_kind(name, what, config, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\0" * 100)
    if config:
        (tmp_path / "config.json").write_text(config)
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: {what}, {CURE}")
    assert "again" not in message


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("model.bin", b"GGUF" + b"\0" * 100, "GGUF, a model of another family; this needs a"),
        ("x.tflite", b"\0" * 100, "a TensorFlow Lite model, "),
        ("x.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 100, "TensorFlow or Keras weights, "),
        ("x.onnx", b"\x08\x07", "an ONNX export, "),
        ("model.safetensors", b"\0" * 100, "only a part of a model; name its folder, "),
        ("weights.npz", b"PK\x03\x04", "only a part of a model; name its folder, "),
        ("config.json", b"{}", "only a part of a model; name its folder, "),
        ("x.txt", b"words", "no model; streamd reads Hugging Face's safetensors or "),
        ("x.bin", b"", "no model; streamd reads "),
    ],
)
def test_files_of_another_kind(name, content, what, tmp_path):
    path = tmp_path / name
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}: {what}")


def test_folders_of_none(tmp_path):
    assert "holds no model; streamd reads" in refusal(tmp_path)
    (tmp_path / "small.gguf").write_bytes(b"GGUF")
    assert refusal(tmp_path).endswith("a folder; name the model's file in it, small.gguf")
    (tmp_path / "ggml-base.en.bin").write_bytes(b"lmgg")
    assert refusal(tmp_path).endswith("a folder; name the model's file in it, ggml-base.en.bin")


# -- the model in the box, in other layouts --------------------------------------------------------


@pytest.fixture(scope="module")
def box() -> Model:
    return load_model("tiny.en")


@pytest.fixture(scope="module")
def half(box) -> dict[str, np.ndarray]:
    return {name: values.astype("f2") for name, values in box.weights.items()}


def assert_same_model(found: Model, box: Model) -> None:
    assert found.dims == box.dims
    assert found.vocabulary == box.vocabulary
    assert found.alignment_heads == box.alignment_heads
    assert found.language == "en"


def test_openai_s_weights_in_ctranslate2_s_int8(box, tmp_path):
    tokens, heads = list(box.vocabulary), [list(head) for head in box.alignment_heads]
    folder = folders.ct2(tmp_path / "x", box.dims, box.weights, tokens, "int8_float16", heads)
    found = read_model(str(folder))
    assert_same_model(found, box)
    for name, values in box.weights.items():
        if values.ndim == 2 and not name.endswith("positional_embedding"):
            # The embedding's rows have an offset in the box, so CTranslate2 rounds them again.
            ties = 1 if name == "decoder.token_embedding.weight" else 0
            integers, scales = quantised(values)
            again, scales_again = quantised(found.weights[name])
            np.testing.assert_allclose(again, integers, rtol=0, atol=ties)
            assert (again != integers).mean() <= 1e-4 * ties
            np.testing.assert_allclose(scales_again, scales, rtol=1e-6)


def test_openai_s_weights_in_mlx_s_layout(box, half, tmp_path):
    """Also the positions, which MLX does not store: OpenAI's own are in the box."""
    found = read_model(str(folders.mlx(tmp_path / "x", box.dims, half)))
    assert_same_model(found, box)
    for name, values in half.items():
        np.testing.assert_array_equal(found.weights[name], values.astype("f4"), err_msg=name)
