"""streamd's own layout, the only one that can say what a model's text looks like.

A folder with ``config.json``, ``model.safetensors`` (openai/whisper's names) and
``vocab.tiktoken``; models/demo is the example.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from streamd.engine import ModelDimensions
from streamd.engine.formats.files import read_json
from streamd.engine.formats.safetensors import open_folder
from streamd.engine.model import MIN_AUDIO_CTX, Model, have_heads, is_whisper
from streamd.engine.vocabulary import check_size, read_tiktoken
from streamd.engine.weights import gather
from streamd.errors import ModelError


class _Config(msgspec.Struct):
    """``config.json``; other fields are for people."""

    dims: ModelDimensions
    alignment_heads: Annotated[list[tuple[int, int]], msgspec.Meta(min_length=1)]
    language: str | None = None
    text_style: str = ""
    min_audio_ctx: int = MIN_AUDIO_CTX
    timestamps: bool = True
    prompts: bool = True
    word_times: bool = True
    notice: str = ""


def load(folder: Path, name: str) -> Model:
    """Load the folder.

    Raises
    ------
    ModelError
        Its files are missing, damaged or of another architecture.
    """
    path = folder / "config.json"
    config = read_json(path, _Config)
    dims = config.dims
    possible = (
        is_whisper(dims)
        and 0 < config.min_audio_ctx <= dims.n_audio_ctx
        and have_heads(dims, config.alignment_heads)
    )
    if not possible:
        raise ModelError(f"{path}: describes no Whisper model; get the model's files again")
    vocabulary = read_tiktoken(folder / "vocab.tiktoken")
    return Model(
        name=name,
        dims=dims,
        weights=gather(folder, dims, open_folder(folder)),
        vocabulary=check_size(folder, vocabulary, dims.n_vocab),
        alignment_heads=tuple(sorted(set(config.alignment_heads))),
        language=config.language,
        text_style=config.text_style,
        min_audio_ctx=config.min_audio_ctx,
        timestamps=config.timestamps,
        prompts=config.prompts,
        word_times=config.word_times,
        notice=config.notice,
    )
