"""openai-whisper's checkpoints, and fine-tunes saved like them: a ``.pt`` file of torch's.

It has dimensions and parameters but no vocabulary; OpenAI's ship with streamd.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from streamd.engine import ModelDimensions
from streamd.engine.formats.torch_zip import TorchZip, open_torch
from streamd.engine.model import Outline, check_dimensions, only_language
from streamd.engine.weights import Contents
from streamd.errors import ModelError

_WEIGHTS = "model_state_dict"


def outline(path: Path) -> Outline:
    """Read the dimensions; a file with more than parameters is no Whisper model."""
    with open_torch(path) as file:
        content = _dict(file)
        try:
            dims = msgspec.convert(content.get("dims"), ModelDimensions)
        except msgspec.ValidationError as error:
            raise ModelError(
                f"{path}: {error}; only checkpoints as openai-whisper has them are read"
            ) from error
        check_dimensions(path, dims, usual=file.stored(content.get(_WEIGHTS)) is not None)
        return Outline(dims, only_language(dims))


@contextmanager
def contents(path: Path) -> Iterator[Contents]:
    """Open the file."""
    with open_torch(path) as file:
        yield Contents(file.stored(_dict(file).get(_WEIGHTS)) or {})


def files(path: Path) -> list[Path]:
    """Return the only file."""
    return [path]


def _dict(file: TorchZip) -> dict[str, Any]:
    return file.content if type(file.content) is dict else {}
