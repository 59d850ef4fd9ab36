"""The same weights for every program: ``peer_weights.py OUT MODEL...``, once for each model.

MODEL is what ``streamd --model`` takes, best a folder of float16 weights; with ``--random`` the
name of one of OpenAI's sizes, such as ``small.en``, for random weights. Writes ``OUT/NAME/`` with
whisper.cpp's, openai-whisper's, transformers' and CTranslate2's files, all from the same float16.
Runs where torch, ctranslate2 and transformers are: the dependency group ``peers``.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from ctranslate2.converters import TransformersConverter

from lab.random_model import random_model
from streamd.models.model import Model
from streamd.models.store import load_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support import ggml_file, huggingface_folder, torch_file

COPIED = ["tokenizer.json", "preprocessor_config.json"]


def write(name: str, model: Model, out: Path) -> None:
    """All formats of one model; a folder that is complete is left as it is."""
    folder = out / name
    if (folder / "ct2/model.bin").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    print(ggml_file.write(model, folder))
    print(huggingface_folder.write(model, folder))
    half = {parameter: values.astype(np.float16) for parameter, values in model.weights.items()}
    # WhisperLiveKit takes a model for English-only by the name of its file
    print(torch_file.write(folder / f"{name}.pt", asdict(model.dims), half))
    converter = TransformersConverter(str(folder / "hf"), copy_files=COPIED, load_as_float16=True)
    print(converter.convert(str(folder / "ct2"), force=True))


def main() -> None:
    """Write the models that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--random", action="store_true", help="random weights of these sizes")
    args = parser.parse_args()
    for name in args.models:
        model = random_model(name) if args.random else load_model(name)
        write(Path(name).name, model, args.out)


if __name__ == "__main__":
    main()
