"""CTranslate2's folder for a Whisper model, as faster-whisper downloads it.

``model.bin`` is little-endian: the version of its layout, name and revision of the specification,
the variables (name, shape, type, values), and aliases of some of them. A weight of an int8 matrix
is the integer divided by the scale of its row, which is another variable. Sources: CTranslate2
``specs/model_spec.py`` (``_serialize``, ``_quantize``), ``specs/whisper_spec.py``.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.formats import huggingface
from streamd.models.formats.reading import (
    MAX_TENSORS,
    BinaryFile,
    Part,
    bad_file,
    item_type,
    present,
    read,
    read_json,
    shown,
)
from streamd.models.model import (
    INT8_ROWS,
    OUTPUT,
    Contents,
    Outline,
    Stored,
    check_dimensions,
    only_language,
    spelled,
)
from streamd.models.text_tokens import TextTokens

WEIGHTS = "model.bin"
CONFIG, _JSON, _TEXT = "config.json", "vocabulary.json", "vocabulary.txt"
VOCABULARIES = (_JSON, _TEXT, *huggingface.VOCABULARIES)
"""One is needed; the first is preferred."""
_SPEC, _VERSION = "WhisperSpec", 6
_MAX_VERSION = 1000
_MAX_AXES = 4
_TYPES = ("F32", "I8", "I16", "I32", "F16", "BF16")
"""In the order of CTranslate2's numbers for them."""
_SCALE_TYPES = ("F16", "BF16", "F32")
_FIXED = {"decoder/activation": 3, "decoder/scale_embeddings": 0}
"""Values of Whisper; the same parameters with others are another model. 3 is GELU."""

_PARTS = "encoder", "decoder"
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d+)/(.+)", re.ASCII)
_IN_LAYER = {
    "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
    "self_attention/linear_1": ("attn.out",),
    "self_attention/layer_norm": ("attn_ln",),
    "attention/linear_0": ("cross_attn.query",),
    "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
    "attention/linear_2": ("cross_attn.out",),
    "attention/layer_norm": ("cross_attn_ln",),
    "ffn/linear_0": ("mlp.0",),
    "ffn/linear_1": ("mlp.2",),
    "ffn/layer_norm": ("mlp_ln",),
}
"""CTranslate2's name -> OpenAI's modules, whose rows are stacked in it."""
_OUTSIDE = {
    "encoder/conv1": "encoder.conv1",
    "encoder/conv2": "encoder.conv2",
    "encoder/layer_norm": "encoder.ln_post",
    "decoder/layer_norm": "decoder.ln",
    "decoder/embeddings": "decoder.token_embedding",
    "decoder/projection": OUTPUT.removesuffix(".weight"),
}
_LEAVES = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


class _Ct2Config(msgspec.Struct):
    """``config.json``; its list of languages is not read: English-only models have all of them."""

    alignment_heads: list[tuple[int, int]] | None = None
    suppress_ids: list[int] | None = None
    suppress_ids_begin: list[int] | None = None


class _Variable(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    stored: Part
    scales: "_Variable | None" = None  # of the rows of an int8 matrix

    def values(self) -> NDArray[Any]:
        """Return what is stored."""
        return self.stored.read().view(item_type(self.dtype)).reshape(self.shape)


_Variables = Mapping[str, _Variable]


def outline(folder: Path) -> Outline:
    """Derive the dimensions from the shapes of the variables."""
    path = folder / WEIGHTS
    dims = _dims(path, _variables(path))
    return Outline(dims, only_language(dims))


@contextmanager
def contents(folder: Path) -> Iterator[Contents]:
    """Read all files; the values of the variables stay on disk."""
    path = folder / WEIGHTS
    config = read_json(folder / CONFIG, _Ct2Config)
    yield Contents(
        dict(_parameters(path, _variables(path))),
        _vocabulary(folder),
        config.alignment_heads,
        config.suppress_ids,
        config.suppress_ids_begin,
    )


def files(folder: Path) -> list[Path]:
    """Return the files with variables, tokens and configuration."""
    vocabularies = present(folder, VOCABULARIES)[:1]
    return [*present(folder, (CONFIG,)), *vocabularies, folder / WEIGHTS]


def check_config(path: Path) -> None:
    """Raise `ModelError` if a ``config.json`` is damaged or not of CTranslate2's Whisper."""
    if read_json(path, _Ct2Config).suppress_ids is None:
        raise bad_file(path, "of no Whisper model in CTranslate2's form")


def _variables(path: Path) -> _Variables:
    """Read the names of all variables in ``model.bin``; the values stay on disk."""
    file = BinaryFile(path)
    (version,) = file.numbers("I")
    spec = _text(file) if version <= _MAX_VERSION else ""
    if not spec.endswith(("Spec", "SpecBuilder")):
        raise ModelError(f"{path}: no model of CTranslate2, whose file has this name")
    if spec != _SPEC:
        raise ModelError(f"{path}: CTranslate2's {shown(spec)}; streamd reads only {_SPEC}")
    if version != _VERSION:
        raise ModelError(
            f"{path}: of version {version} of CTranslate2's files, not {_VERSION}; convert the "
            "model again with another CTranslate2"
        )
    file.numbers("I")  # the specification's revision
    variables = dict(_variable(file) for _ in range(_count(file)))
    for name, matrix in list(variables.items()):
        if matrix.dtype == "I8" and matrix.shape:
            variables[name] = _scaled(path, name, matrix, variables.pop(f"{name}_scale", None))
    for _ in range(_count(file)):
        alias, name = _text(file), _text(file)
        if name not in variables:
            raise file.damaged(f"{shown(name)} is missing")
        if (alias, name) != ("decoder/projection/weight", "decoder/embeddings/weight"):  # tied
            variables[alias] = variables[name]
    return variables


def _count(file: BinaryFile) -> int:
    (n,) = file.numbers("I")
    if n > MAX_TENSORS:
        raise file.damaged(f"{n} variables")
    return n


def _text(file: BinaryFile) -> str:
    return file.text(*file.numbers("H")).rstrip(b"\0").decode("ascii", "backslashreplace")


def _variable(file: BinaryFile) -> tuple[str, _Variable]:
    name = _text(file)
    (n_axes,) = file.numbers("B")
    if n_axes > _MAX_AXES:
        raise file.damaged(f"{shown(name)} has {n_axes} axes")
    shape = file.numbers(f"{n_axes}I")
    number, n_bytes = file.numbers("BI")
    if number >= len(_TYPES):
        raise file.damaged(f"{shown(name)} is of CTranslate2's type {number}")
    dtype = _TYPES[number]
    item = item_type(dtype)
    if n_bytes != math.prod(shape) * item.itemsize:
        raise file.damaged(f"{shown(name)} has {n_bytes} bytes for the shape {list(shape)}")
    return name, _Variable(dtype, shape, file.skip(n_bytes))


def _dims(path: Path, variables: _Variables) -> ModelDimensions:
    """Derive the dimensions from shapes; only the numbers of heads are variables of their own."""
    try:
        numbers = {
            n: int(v.values()) for n, v in variables.items() if v.dtype[0] == "I" and not v.shape
        }
        n_state, n_mels, _ = variables["encoder/conv1/weight"].shape
        n_vocab, n_text_state = variables["decoder/embeddings/weight"].shape
        n_head = numbers["decoder/num_heads"]
        (n_audio_ctx, *_), (n_text_ctx, *_) = (
            variables[f"{part}/position_encodings/encodings"].shape for part in _PARTS
        )
        n_audio_layer, n_text_layer = (_n_layers(variables, part) for part in _PARTS)
        audio = n_audio_ctx, n_state, numbers.get("encoder/num_heads", n_head), n_audio_layer
        text = n_text_ctx, n_text_state, n_head, n_text_layer
        dims = ModelDimensions(n_mels, *audio, n_vocab, *text)
    except (KeyError, ValueError, IndexError) as error:  # the last two: of another rank
        raise bad_file(path, f"damaged ({shown(str(error))})") from error
    usual = all(numbers.get(name, value) == value for name, value in _FIXED.items())
    check_dimensions(path, dims, usual=usual)
    return dims


def _n_layers(variables: _Variables, part: str) -> int:
    layers = (_LAYER.fullmatch(name) for name in variables)
    return len({layer[2] for layer in layers if layer and layer[1] == part})


def _parameters(path: Path, variables: _Variables) -> Iterator[tuple[str, Stored]]:
    """Yield the parameters under OpenAI's names; other variables keep their own."""
    for name, variable in variables.items():
        if not variable.shape:
            continue
        parts, leaf = _openai_names(name)
        n_rows, rest = divmod(variable.shape[0], len(parts))
        if rest:
            raise bad_file(path, f"{shown(name)} has a wrong shape")
        for i, part in enumerate(parts):
            if part.endswith(".key") and leaf == "bias":
                continue  # zeros; any value would shift all scores of a query alike
            rows = slice(i * n_rows, (i + 1) * n_rows)
            shape = (n_rows, *variable.shape[1:])
            dtype = INT8_ROWS if variable.scales else variable.dtype
            yield (
                ".".join((part, leaf)).strip("."),
                Stored(path, shape, dtype, partial(_read, variable, rows)),
            )


def _openai_names(name: str) -> tuple[tuple[str, ...], str]:
    """Return the modules whose parameters a variable stacks, and which parameter that is."""
    scope, _, leaf = name.rpartition("/")
    if layer := _LAYER.fullmatch(scope):
        inside = _IN_LAYER.get(layer[3], ())
        modules = tuple(f"{layer[1]}.blocks.{layer[2]}.{module}" for module in inside)
    else:
        modules = (_OUTSIDE[scope],) if scope in _OUTSIDE else ()
    if modules and leaf in _LEAVES:
        return modules, _LEAVES[leaf]
    if leaf == "encodings":
        return (f"{scope.removesuffix('/position_encodings')}.positional_embedding",), ""
    return (name,), ""


def _scaled(path: Path, name: str, matrix: _Variable, scale: _Variable | None) -> _Variable:
    if scale is None or scale.shape != matrix.shape[:1] or scale.dtype not in _SCALE_TYPES:
        raise bad_file(path, f"there is no scale for each row of {shown(name)}")
    return matrix._replace(scales=scale)


def _read(variable: _Variable, rows: slice) -> NDArray[Any]:
    values = variable.values()[rows]
    if variable.scales is None:
        return values
    scales = variable.scales.values()[rows].reshape(-1, *[1] * (values.ndim - 1))
    # `streamd.engines.onnx.builder.quantised` gets the same integers out of the quotients again
    with np.errstate(all="ignore"):  # a damaged scale gives infinity, which is refused
        return values.astype(np.float32) / scales.astype(np.float32)


def _vocabulary(folder: Path) -> TextTokens | None:
    """Read ``vocabulary.json``, older converters' ``vocabulary.txt``, or the tokenizer's files."""
    if (path := folder / _JSON).exists():
        return spelled(path, read_json(path, list[str]))
    if (path := folder / _TEXT).exists():
        try:
            lines = read(path).decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise bad_file(path, error) from error
        return spelled(path, lines)
    return huggingface.read_vocabulary(folder)
