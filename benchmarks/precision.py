"""What int8 changes: the demo model's text in both precisions, clip by clip.

    python benchmarks/precision.py [--data ../shared/data] [--limit 60]

The clips are those of accuracy.py, each in one window. Prints every clip whose tokens differ, with
what was said, and, last, one JSON line with both word error rates.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from accuracy import ROOT, Clip, error_rate, noisy, sets, words

from streamd.config import load
from streamd.daemon import build
from streamd.engine.store import load_model
from streamd.types import FRAME, N_AUDIO_CTX, Window, text_of


def main() -> None:
    """Compare all sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--limit", type=int, default=60, help="clips per set")
    args = parser.parse_args()
    model = load_model("demo")
    recognizers = {
        precision: build.recognizer(load({"model": "demo", "precision": precision}, {}), model)
        for precision in ("float32", "int8")
    }
    clips: list[Clip] = []
    texts: dict[str, list[str]] = {precision: [] for precision in recognizers}
    n_differ = 0
    for name, clean in sets(args.data, args.limit).items():
        for clip in clean + noisy(clean, 10.0):
            n = -(-len(clip.samples) // FRAME)
            if n > N_AUDIO_CTX:
                continue
            samples = np.pad(clip.samples, (0, n * FRAME - len(clip.samples)))
            window = Window(0, n, samples, last=True)
            heard = {each: r.recognize(window) for each, r in recognizers.items()}
            clips.append(clip)
            for precision, hypothesis in heard.items():
                texts[precision].append(text_of(hypothesis.words))
            if len({hypothesis.tokens for hypothesis in heard.values()}) > 1:
                n_differ += 1
                print(f"{name}\n  said     {words(clip.text)}")
                for precision in texts:
                    print(f"  {precision:8} {words(texts[precision][-1])}")
    rates = {precision: round(error_rate(clips, each), 2) for precision, each in texts.items()}
    n_words = sum(len(words(clip.text).split()) for clip in clips)
    print(json.dumps({"clips": len(clips), "words": n_words, "differ": n_differ, "wer": rates}))


if __name__ == "__main__":
    main()
