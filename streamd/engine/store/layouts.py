"""Which reader of `formats` a folder or file gets, or what it is if there is none for it."""

from pathlib import Path
from typing import Protocol

from streamd.engine.formats import ct2, ggml, huggingface, mlx, openai, torch_zip
from streamd.engine.formats.untrusted import ZIP_MAGIC, present
from streamd.engine.model import Model, Outline
from streamd.errors import ModelError

_READ = (
    "Hugging Face's safetensors or pytorch_model.bin, openai-whisper's .pt, whisper.cpp's ggml, "
    "CTranslate2 or MLX"
)
_OTHERS = {
    "*.gguf": "GGUF",
    "*.mlpackage": "a Core ML package",
    "*.mlmodelc": "a compiled Core ML model",
    "*.onnx": "an ONNX export",
    "onnx/*.onnx": "an ONNX export",
    "flax_model*.msgpack": "Flax weights",
    "tf_model*.h5": "TensorFlow weights",
    "saved_model.pb": "a TensorFlow model",
    "*.tflite": "a TensorFlow Lite model",
    "openvino_*.xml": "an OpenVINO model",
    "*.nemo": "a NeMo model",
    "adapter_model.*": "a LoRA adapter without the model that it adapts",
}
"""Names of files and folders -> what is in them, of all that streamd does not read."""
_MAGICS = {
    (0, b"GGUF"): "GGUF",
    (4, b"TFL3"): "a TensorFlow Lite model",
    (0, b"\x89HDF"): "TensorFlow or Keras weights",
}
"""(Offset, first bytes) of such files -> what they are."""
_N_MAGIC = 16
_IN_FOLDERS = ("*.safetensors", "weights.npz", "pytorch_model*.bin", "model.bin", "*.json")
"""Files that are a model only together with those beside them."""
_ALONE = ("ggml*.bin", "*.pt")


class ModelLayout(Protocol):
    """A module of `formats`."""

    def load(self, path: Path, name: str, /) -> Model:
        """Load the whole model."""

    def outline(self, path: Path, /) -> Outline:
        """Describe the model without reading its weights."""

    def files(self, path: Path, /) -> list[Path]:
        """List the files that `load` reads."""


def layout_of(path: Path) -> ModelLayout:
    """Choose by what lies there; weights are not looked into.

    Raises `ModelError` if it is in a layout that streamd does not read, which is named, or in none.
    """
    return _of_folder(path) if path.is_dir() else _of_file(path)


def _of_folder(folder: Path) -> ModelLayout:
    if present(folder, (ct2.WEIGHTS,)):
        return ct2
    if mlx.is_one(folder):
        return mlx
    if huggingface.has_weights(folder):
        return huggingface
    for pattern, what in _OTHERS.items():
        if folder.resolve().match(pattern) or any(folder.glob(pattern)):
            raise _not_read(folder, what)
    for pattern in _ALONE:
        if files := sorted(folder.glob(pattern)):
            raise ModelError(f"{folder}: a folder; name the model's file in it, {files[0].name}")
    if present(folder, (huggingface.CONFIG,)):
        return huggingface  # which says what is missing
    raise ModelError(f"{folder}: holds no model; streamd reads {_READ}")


def _of_file(path: Path) -> ModelLayout:
    try:
        with path.open("rb") as file:
            magic = file.read(_N_MAGIC)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if magic.startswith(ggml.MAGIC):
        return ggml
    if any(path.match(pattern) for pattern in _IN_FOLDERS):
        raise ModelError(f"{path}: only a part of a model; name its folder, {path.parent}")
    if magic.startswith((ZIP_MAGIC, torch_zip.OLD_MAGIC)):
        return openai
    for (at, expected), what in _MAGICS.items():
        if magic[at:].startswith(expected):
            raise _not_read(path, what)
    for pattern, what in _OTHERS.items():
        if path.match(pattern):
            raise _not_read(path, what)
    raise ModelError(f"{path}: no model; streamd reads {_READ}")


def _not_read(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: {what}, which streamd does not read; get the same model as {_READ}")
