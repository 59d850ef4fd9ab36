"""Loads the folders that streamd keeps, and finds the reader of `formats` for what is imported."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.catalog import heads
from streamd.models.formats import (
    ct2,
    ggml,
    gguf,
    huggingface,
    mlx,
    openai,
    safetensors,
    torch_folder,
)
from streamd.models.formats.reading import ZIP_MAGIC, bad_file, present, read_start
from streamd.models.model import (
    INT8_ROWS,
    N_SPECIALS,
    Contents,
    Model,
    Outline,
    below,
    gather,
    openai_vocabulary,
)
from streamd.models.silence import SilenceStates, silence_shape

_READ = (
    "Hugging Face's safetensors or pytorch_model.bin, openai-whisper's .pt, whisper.cpp's ggml, "
    "CTranslate2 or MLX"
)
_OTHERS = {
    "*.mlpackage": "a Core ML package",
    "*.mlmodelc": "a compiled Core ML model",
    "*.onnx": "an ONNX export",
    "onnx/*.onnx": "an ONNX export",
    "flax_model*.msgpack": "Flax weights",
    "*.h5": "TensorFlow or Keras weights",
    "saved_model.pb": "a TensorFlow model",
    "*.tflite": "a TensorFlow Lite model",
    "openvino_*.xml": "an OpenVINO model",
    "*.nemo": "a NeMo model",
    "adapter_model.*": "a LoRA adapter without the model that it adapts",
}
"""Names of files and folders -> layouts that streamd does not read."""
SILENCE = "silence.safetensors"
"""Beside a model's files: the values of its `SilenceStates`, if they were computed before."""
_IN_FOLDERS = ("*.safetensors", "weights.npz", "pytorch_model*.bin", "model.bin", "*.json")
"""Files that are a model only together with those beside them."""
_ALONE = ("ggml*.bin", "*.pt", "*.gguf")


class ModelLayout(Protocol):
    """A module of `formats`; the docstring of the package describes these functions."""

    def outline(self, path: Path, /) -> Outline: ...  # noqa: D102
    def contents(self, path: Path, /) -> AbstractContextManager[Contents]: ...  # noqa: D102
    def files(self, path: Path, /) -> list[Path]: ...  # noqa: D102


def outline(path: Path) -> Outline:
    """Read what a kept model is, without its weights. Raises `ModelError` as `opened` does."""
    return kept(path).outline(path)


def files(path: Path) -> list[Path]:
    """Return the files of a kept model. Raises `ModelError` as `opened` does."""
    return kept(path).files(path)


def kept(path: Path) -> ModelLayout:
    """Return the reader of the one form in which streamd keeps models.

    Raises `ModelError` for a folder or file of another, which has to be imported.
    """
    if (layout := layout_of(path)) is not huggingface:
        raise ModelError(f"{path} must be read once: streamd models import {path}")
    return layout


@contextmanager
def opened(path: Path, name: str, layout: ModelLayout | None = None) -> Iterator[Model]:
    """Open a model, whose weights are read in the block, each time that one is asked for.

    Without `layout`, it has to be a kept one. Raises `ModelError` as `kept` does, or if files are
    missing, damaged or of another architecture; in the block, too, where a parameter is damaged.
    """
    layout = layout or kept(path)
    outline = layout.outline(path)
    dims = outline.dims
    with layout.contents(path) as found:
        vocabulary = found.vocabulary
        if vocabulary is None:
            vocabulary = openai_vocabulary(path, dims.n_vocab)
        if dims.n_vocab - len(vocabulary) not in N_SPECIALS:
            raise ModelError(
                f"{path}: {len(vocabulary)} text tokens do not make a vocabulary of "
                f"{dims.n_vocab}; config.json and vocabulary do not match"
            )
        yield Model(
            name=name,
            dims=dims,
            weights=gather(path, dims, found.stored),
            vocabulary=vocabulary,
            alignment_heads=heads(found.heads, Path(name) if path.is_dir() else path, dims),
            language=outline.language,
            silence=_silence(path, dims),
            # of special tokens only the end can come first; our own rules refuse the others
            suppress_tokens=below(len(vocabulary), found.suppress_tokens),
            begin_suppress_tokens=below(len(vocabulary) + 1, found.begin_suppress_tokens),
        )


def _silence(path: Path, dims: ModelDimensions) -> SilenceStates | None:
    """Return a model's stored states of silence, if it has some. Raises `ModelError`: damaged."""
    file = path / SILENCE
    if not file.is_file():
        return None
    *rows, n_state = silence_shape(dims)
    shape = (prod(rows), n_state)
    stored = safetensors.with_scales(safetensors.open_file(file)).get("states")
    if stored is None or (stored.shape, stored.dtype) != (shape, INT8_ROWS):
        raise bad_file(file, f"holds no int8 states of the shape {shape} with scales")
    return SilenceStates(stored.read().reshape(silence_shape(dims)).astype(np.float16))


def imported_files(
    names: Collection[str],
) -> tuple[list[str], Callable[[Path], object]] | None:
    """Return which of a repository's files are a model that has to be imported, weights last.

    With them comes what reads the first one; it raises `ModelError` if that is of no Whisper model.
    None: the repository has none, or more than one.
    """
    weights = [name for name in (mlx.SAFETENSORS[1], mlx.NPZ) if name in names]
    if huggingface.CONFIG not in names:
        alone = [name for name in names if fnmatch(name, _ALONE[0])]
        return (alone, ggml.outline) if len(alone) == 1 else None
    vocabularies = [name for name in ct2.VOCABULARIES if name in names]
    if ct2.WEIGHTS in names and vocabularies:
        return [ct2.CONFIG, vocabularies[0], ct2.WEIGHTS], ct2.check_config
    if not weights and safetensors.SINGLE in names and not vocabularies:
        weights = [safetensors.SINGLE]
    return ([mlx.CONFIG, weights[0]], mlx.read_dimensions) if weights else None


def layout_of(path: Path) -> ModelLayout:
    """Choose by names of files and first bytes.

    Raises `ModelError` if it is in a layout that streamd does not read, which is named, or in none.
    """
    return _of_folder(path) if path.is_dir() else _of_file(path)


def _of_folder(folder: Path) -> ModelLayout:
    if present(folder, (ct2.WEIGHTS,)):
        return ct2
    if mlx.is_one(folder):
        return mlx
    if huggingface.is_one(folder):
        return huggingface
    if torch_folder.is_one(folder):
        return torch_folder
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
    magic = read_start(path, len(openai.OLD_MAGIC))
    if magic.startswith(ggml.MAGIC):
        return ggml
    if magic.startswith(gguf.MAGIC):
        raise ModelError(f"{path}: GGUF, a model of another family; this needs a Whisper")
    if any(path.match(pattern) for pattern in _IN_FOLDERS):
        raise ModelError(f"{path}: only a part of a model; name its folder, {path.parent}")
    if magic.startswith((ZIP_MAGIC, openai.OLD_MAGIC)):
        return openai
    for pattern, what in _OTHERS.items():
        if path.match(pattern):
            raise _not_read(path, what)
    raise ModelError(f"{path}: no model; streamd reads {_READ}")


def _not_read(path: Path, what: str) -> ModelError:
    return ModelError(f"{path}: {what}, which streamd does not read; get the same model as {_READ}")
