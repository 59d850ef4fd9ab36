"""Finds a model by name or folder and loads it whole, or says in one line what is wrong with it.

A model's folder holds ``config.json``, ``model.safetensors`` (openai/whisper's parameter names,
fp16 or fp32) and ``vocab.tiktoken``; models/demo is the example. A second layout gets its own
reader beside `_load_folder`, chosen in `load_model`. Knows nothing of engines.
"""

import base64
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from streamd.assets import asset
from streamd.engine import ModelDimensions, Weights
from streamd.engine.weights import read_safetensors
from streamd.errors import ModelError

BUNDLED = ("demo",)
"""Models that ship with streamd."""

_MAX_BYTES = 16_000_000
"""Of config.json and vocab.tiktoken; OpenAI's largest vocabulary has 0.9 MB."""
_N_SPECIALS = (1608, 1609)
"""Special tokens behind the text tokens: 8, 99 or (large-v3) 100 languages, 1501 timestamps."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as it lies on disk, before any runtime has seen it.

    `vocabulary` maps a token's bytes to its id (tiktoken's ranks), without the special tokens.
    `alignment_heads` are (decoder layer, head) pairs. `language` is the only language of a model
    without language tokens, else None. `text_style` says in a person's words how its text looks.
    `min_audio_ctx` is the shortest encoder context, in frames, on which the model is usable.
    `notice` is what a user must know before trusting its text, or empty.
    """

    name: str
    dims: ModelDimensions
    weights: Weights
    vocabulary: Mapping[bytes, int]
    alignment_heads: tuple[tuple[int, int], ...]
    language: str | None
    text_style: str
    min_audio_ctx: int
    notice: str


class _Config(msgspec.Struct):
    """``config.json``; other fields are for people."""

    dims: ModelDimensions
    alignment_heads: Annotated[list[tuple[int, int]], msgspec.Meta(min_length=1)]
    language: str | None = None
    text_style: str = ""
    min_audio_ctx: int = 384  # below that, OpenAI's models fall apart
    notice: str = ""


def load_model(name: str) -> Model:
    """Load a bundled model by its name, or any model by its folder.

    Raises
    ------
    ModelError
        There is no such model, or its files are missing, damaged or of another architecture.
    """
    if name in BUNDLED:
        return _load_folder(asset(name), name)
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ModelError(
            f"model {name!r} not found: name a folder with config.json, model.safetensors and "
            f"vocab.tiktoken, or one of {', '.join(BUNDLED)}"
        )
    return _load_folder(folder, folder.resolve().name)


def _load_folder(folder: Path, name: str) -> Model:
    config = _read_config(folder / "config.json")
    vocabulary = _read_vocabulary(folder / "vocab.tiktoken")
    if config.dims.n_vocab - len(vocabulary) not in _N_SPECIALS:
        raise ModelError(
            f"{folder}: {len(vocabulary)} text tokens do not make a vocabulary of "
            f"{config.dims.n_vocab}; config.json and vocab.tiktoken do not match"
        )
    return Model(
        name=name,
        dims=config.dims,
        weights=read_safetensors(_existing(folder / "model.safetensors"), config.dims),
        vocabulary=vocabulary,
        alignment_heads=tuple(sorted(set(config.alignment_heads))),
        language=config.language,
        text_style=config.text_style,
        min_audio_ctx=config.min_audio_ctx,
        notice=config.notice,
    )


def _read_config(path: Path) -> _Config:
    try:
        config = msgspec.json.decode(_read(path), type=_Config)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}; get the model's files again") from error
    dims = config.dims
    possible = (
        all(0 < n <= 1_000_000 for n in astuple(dims))
        and max(dims.n_audio_layer, dims.n_text_layer) <= 1000
        and dims.n_audio_state == dims.n_text_state
        and dims.n_audio_state % dims.n_audio_head == 0
        and dims.n_text_state % dims.n_text_head == 0
        and 0 < config.min_audio_ctx <= dims.n_audio_ctx
        and all(
            0 <= layer < dims.n_text_layer and 0 <= head < dims.n_text_head
            for layer, head in config.alignment_heads
        )
    )
    if not possible:
        raise ModelError(f"{path}: describes no Whisper model; get the model's files again")
    return config


def _read_vocabulary(path: Path) -> dict[bytes, int]:
    """One token a line: its bytes in base64, a blank, its id; ids count from 0."""
    vocabulary: dict[bytes, int] = {}
    lines = _read(path).splitlines()
    for number, line in enumerate(lines):
        try:
            token, rank = line.split()
            vocabulary[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ModelError(f"{path}:{number + 1}: not a token and its id") from error
    complete = all(bytes([byte]) in vocabulary for byte in range(256))
    if not complete or list(vocabulary.values()) != list(range(len(lines))):
        raise ModelError(f"{path}: tokens are missing or twice there; get the model's files again")
    return vocabulary


def _read(path: Path) -> bytes:
    try:
        if _existing(path).stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path}: larger than any model's; get the model's files again")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; get the model's files again")
    return path
