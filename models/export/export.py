"""Write a model in the formats of other programs: ``export.py MODEL OUT``.

MODEL is a name or folder that ``streamd --model`` takes. Needs openai-whisper (for OpenAI's
vocabulary) and torch (for ``openai`` only): the dependency group ``recipe``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ggml
import huggingface
import openai_pt
from vocabulary import complete

from streamd.engine.store import load_model

FORMATS = {"ggml": ggml.write, "hf": huggingface.write, "openai": openai_pt.write}


def main() -> None:
    """Write the formats that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = complete(load_model(args.model))
    for name in args.format:
        print(FORMATS[name](model, args.out))


if __name__ == "__main__":
    main()
