"""openai-whisper's checkpoints, and fine-tunes saved like them: a ``.pt`` file of torch's.

It has dimensions and parameters but no vocabulary; OpenAI's ship with streamd.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from streamd.engine import ModelDimensions
from streamd.engine.catalog import usual_heads
from streamd.engine.formats.torch_zip import open_torch
from streamd.engine.model import MIN_AUDIO_CTX, Model, Outline, check_dimensions, only_language
from streamd.engine.vocabulary import openai_vocabulary
from streamd.engine.weights import Stored, gather
from streamd.errors import ModelError


def load(path: Path, name: str) -> Model:
    """Load the file.

    Raises `ModelError` if it is damaged, holds anything but parameters, or is of another
    architecture.
    """
    with _opened(path) as (dims, stored):
        return Model(
            name=name,
            dims=dims,
            weights=gather(path, dims, stored),
            vocabulary=openai_vocabulary(path, dims.n_vocab),
            alignment_heads=usual_heads(path, dims),
            language=only_language(dims),
            min_audio_ctx=min(MIN_AUDIO_CTX, dims.n_audio_ctx),
        )


def outline(path: Path) -> Outline:
    """Describe the file's model. Raises `ModelError`, as `load` does."""
    with _opened(path) as (dims, _):
        return Outline(dims, only_language(dims))


def files(path: Path) -> list[Path]:
    """Return the files that `load` reads."""
    return [path]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[ModelDimensions, dict[str, Stored]]]:
    with open_torch(path) as file:
        content = file.content if type(file.content) is dict else {}
        try:
            dims = msgspec.convert(content.get("dims"), ModelDimensions)
        except msgspec.ValidationError as error:
            raise ModelError(
                f"{path}: {error}; only checkpoints as openai-whisper has them are read"
            ) from error
        stored = file.stored(content.get("model_state_dict"))
        check_dimensions(path, dims, usual=stored is not None)
        yield dims, stored or {}
