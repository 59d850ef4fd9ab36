"""Finds a model by name, folder or file and loads it whole, or says in one line what is wrong.

What lies on the disk decides which reader of `formats` gets it. Knows nothing of engines.
"""

from pathlib import Path

import msgspec

from streamd.assets import asset
from streamd.engine.formats import ggml, huggingface, openai, own
from streamd.engine.formats.files import read_json
from streamd.engine.model import Model
from streamd.errors import ModelError

BUNDLED = ("demo",)
"""Models that ship with streamd."""


class _AnyConfig(msgspec.Struct):
    """What tells the two kinds of ``config.json`` apart: only transformers' has a type."""

    model_type: str | None = None


def load_model(name: str) -> Model:
    """Load a bundled model by its name, or any model by its folder or file.

    A folder is streamd's own (models/demo is the example) or Hugging Face's; a file is
    openai-whisper's or whisper.cpp's.

    Raises
    ------
    ModelError
        There is no such model, or its files are missing, damaged or of another architecture.
    """
    if name in BUNDLED:
        return own.load(asset(name), name)
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_folder(path)
    if path.is_file():
        return _load_file(path)
    raise ModelError(
        f"model {name!r} not found: name a model's folder or file, or one of {', '.join(BUNDLED)}"
    )


def _load_folder(folder: Path) -> Model:
    config = read_json(folder / "config.json", _AnyConfig)
    load = own.load if config.model_type is None else huggingface.load
    return load(folder, folder.resolve().name)


def _load_file(path: Path) -> Model:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if magic == openai.MAGIC:
        return openai.load(path, path.stem)
    if magic == ggml.MAGIC:
        return ggml.load(path, path.stem)
    raise ModelError(
        f"{path}: no checkpoint of openai-whisper or whisper.cpp; of a model in other files, "
        "name the folder"
    )
