"""Write a model in the formats of other programs: ``export.py MODEL OUT``.

MODEL is what ``streamd --model`` takes. ``openai`` needs torch (the dependency group ``recipe``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ggml
import huggingface
from vocabulary import Whole, complete

from streamd.engine.store import load_model


def _write_openai(model: Whole, out: Path) -> Path:
    import openai_pt  # and with it torch, which the others do not need

    return openai_pt.write(model, out)


FORMATS = {"ggml": ggml.write, "hf": huggingface.write, "openai": _write_openai}


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
