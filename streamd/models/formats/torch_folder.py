"""Hugging Face's folder with torch's weights, ``pytorch_model.bin``, as transformers wrote it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from streamd.models.formats import huggingface, safetensors
from streamd.models.formats.huggingface import outline as outline
from streamd.models.formats.openai import open_torch
from streamd.models.formats.reading import bad_file, existing, present
from streamd.models.model import Contents, Stored

_SINGLE, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def is_one(folder: Path) -> bool:
    """Return whether the folder is of this layout; safetensors are preferred."""
    return bool(present(folder, (_SINGLE, _INDEX))) and not huggingface.is_one(folder)


@contextmanager
def contents(folder: Path) -> Iterator[Contents]:
    """Read all small files, and open those with parameters."""
    with ExitStack() as stack:
        stored: dict[str, Stored] = {}
        for path in _weights(folder):
            if path.name != _INDEX:
                file = stack.enter_context(open_torch(existing(path)))
                found = file.stored(file.content)
                if found is None:
                    raise bad_file(path, "holds more than weights")
                stored |= found
        yield huggingface.contents_of(folder, stored)


def files(folder: Path) -> list[Path]:
    """Return all files with any of that. Raises `ModelError` if an index of them is damaged."""
    return [*huggingface.small_files(folder), *_weights(folder)]


def _weights(folder: Path) -> list[Path]:
    return safetensors.files(folder, _SINGLE)
