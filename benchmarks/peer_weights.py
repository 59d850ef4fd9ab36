"""The same weights for every program: ``peer_weights.py OUT NAME...``, once for each name.

NAME is ``demo`` (any model that streamd loads), or one of OpenAI's sizes, such as ``base.en``, for
random weights. Writes ``OUT/NAME/`` with whisper.cpp's, openai-whisper's, transformers' and
CTranslate2's files (models/export, and CTranslate2's own converter), all from the same float16.
Runs where torch, ctranslate2 and transformers are: the dependency group ``peers``.
"""

import argparse
import sys
from pathlib import Path

from ctranslate2.converters import TransformersConverter

from streamd.bench.random_model import random_model
from streamd.engine.model import Model
from streamd.engine.store import load_model
from streamd.errors import ConfigError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "models/export"))
import ggml
import huggingface
import openai_pt
from vocabulary import complete

COPIED = ["tokenizer.json", "preprocessor_config.json"]


def model(name: str) -> Model:
    """Random weights of a known size, or else a model as streamd finds it."""
    try:
        return random_model(name)
    except ConfigError:
        return load_model(name)


def write(name: str, out: Path) -> None:
    """All formats of one model; a folder that is complete is left as it is."""
    folder = out / Path(name).name
    if (folder / "ct2/model.bin").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    whole = complete(model(name))
    for form in (ggml, huggingface, openai_pt):
        print(form.write(whole, folder))
    converter = TransformersConverter(str(folder / "hf"), copy_files=COPIED, load_as_float16=True)
    print(converter.convert(str(folder / "ct2"), force=True))


def main() -> None:
    """Write the models that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    args = parser.parse_args()
    for name in args.names:
        write(name, args.out)


if __name__ == "__main__":
    main()
