"""What int8 changes: the demo model's text in both precisions, clip by clip.

    python benchmarks/precision.py [--data ../shared/data] [--limit 60] [--page docs/precision.md]

The clips are those of accuracy.py, clean and in noise, each in one window. Prints every clip whose
tokens differ, with what was said, and the word error rates; writes all of it down as a page; and
prints, last, one JSON line.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from accuracy import ROOT, Clip, noisy, sets, words

from streamd.bench.words import n_edits
from streamd.config import load
from streamd.daemon import build
from streamd.engine.store import load_model
from streamd.types import FRAME, N_AUDIO_CTX, Hypothesis, Window, text_of

PRECISIONS = ("float32", "int8")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A clip: what was said, what was read (by precision), and how many words of that are wrong."""

    name: str
    said: str
    heard: tuple[str, ...]
    wrong: tuple[int, ...]
    differs: bool


def compare(data: Path, limit: int) -> list[Row]:
    """Read all clips that fit into a window in both precisions."""
    model = load_model("demo")
    recognizers = [
        build.recognizer(load({"model": "demo", "precision": precision}, {}), model)
        for precision in PRECISIONS
    ]
    rows = []
    for name, clean in sets(data, limit).items():
        for condition, clips in (("clean", clean), ("10 dB", noisy(clean, 10.0))):
            for clip in clips:
                n = -(-len(clip.samples) // FRAME)
                if n > N_AUDIO_CTX:
                    continue
                samples = np.pad(clip.samples, (0, n * FRAME - len(clip.samples)))
                window = Window(0, n, samples, last=True)
                row = row_of(
                    f"{name}, {condition}", clip, [r.recognize(window) for r in recognizers]
                )
                rows.append(row)
                if row.differs:
                    print(f"{row.name}\n  {'said':8} {row.said}")
                    for precision, text in zip(PRECISIONS, row.heard, strict=True):
                        print(f"  {precision:8} {text}", flush=True)
    return rows


def row_of(name: str, clip: Clip, heard: Sequence[Hypothesis]) -> Row:
    """Score one clip."""
    said, texts = words(clip.text), tuple(words(text_of(each.words)) for each in heard)
    return Row(
        name=name,
        said=said,
        heard=texts,
        wrong=tuple(n_edits(said.split(), text.split()) for text in texts),
        differs=len({each.tokens for each in heard}) > 1,
    )


def scores(rows: Sequence[Row]) -> dict[str, object]:
    """Clips and words of these rows, how many clips differ, and the word error rates."""
    n_words = sum(len(row.said.split()) for row in rows)
    rates = [100 * sum(row.wrong[i] for row in rows) / n_words for i in range(len(PRECISIONS))]
    return {
        "clips": len(rows),
        "words": n_words,
        "differ": sum(row.differs for row in rows),
        **{precision: round(rate, 1) for precision, rate in zip(PRECISIONS, rates, strict=True)},
    }


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    cells = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in cells)


def page(rows: Sequence[Row]) -> str:
    """The whole comparison, for people."""
    by_set: dict[str, list[Row]] = {}
    for row in rows:
        by_set.setdefault(row.name, []).append(row)
    totals = [(name, scores(its)) for name, its in by_set.items()] + [("**all**", scores(rows))]
    differing = [row for row in rows if row.differs]
    better, worse = (
        sum(sign * (row.wrong[1] - row.wrong[0]) > 0 for row in differing) for sign in (-1, 1)
    )
    return f"""# What int8 changes
Made by `benchmarks/precision.py --page docs/precision.md`; not to be edited. The demo model reads its test sets in both precisions, each clip in one window. Left to itself (`--precision auto`) streamd runs this model in float32: it is too small for int8 to be worth it. So this is a test of the arithmetic, with the only trained weights there are.

Word error rates in percent; *differ*: clips whose tokens are not the same.

{table(["set", *totals[0][1]], [(name, *score.values()) for name, score in totals])}

## Every clip that differs
{len(differing)} of {len(rows)}: {better} have fewer wrong words in int8, {
        worse
    } have more, the others as many. *Wrong*: words, in float32 and in int8.

{
        table(
            ["set", "said", *PRECISIONS, "wrong"],
            [
                (row.name, row.said, *row.heard, " → ".join(map(str, row.wrong)))
                for row in differing
            ],
        )
    }
"""  # noqa: E501 - paragraphs of Markdown


def main() -> None:
    """Compare all sets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data")
    parser.add_argument("--limit", type=int, default=60, help="clips per set")
    parser.add_argument("--page", type=Path, help="a page of documentation to write")
    args = parser.parse_args()
    rows = compare(args.data, args.limit)
    if args.page:
        args.page.write_text(page(rows), encoding="utf-8")
    print(json.dumps(scores(rows)))


if __name__ == "__main__":
    main()
