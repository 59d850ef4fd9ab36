"""Print the scores of models side by side: ``evaluate.py SHARDS DATA MODEL [MODEL ...]``.

MODEL is a folder with model.safetensors and config.json, or a training state (its running average).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import sets
import torch
from decode import Decoder, tightened, word_times
from model import HEADS, build, load_weights
from sets import Said, words_of
from streamed import Streamd
from tokens import Tokens

MOST_STREAMED = 40  # sounds of a set, because every step of a stream is decoded
PROMPT = "seven of hearts turn on the lights nine four two"
Condition = tuple[str, Callable[[list[Said]], list[Said]], dict[str, object]]


def distance(reference: list[str], read: list[str]) -> int:
    """Word errors: the edit distance."""
    row = list(range(len(read) + 1))
    for i, a in enumerate(reference):
        before, row[0] = row[0], i + 1
        for j, b in enumerate(read):
            before, row[j + 1] = row[j + 1], min(row[j + 1] + 1, row[j] + 1, before + (a != b))
    return row[-1]


def conditions(name: str, *, full: bool) -> list[Condition]:
    """In which conditions a set is read."""
    plain: Condition = ("", lambda x: x, {})
    some: list[Condition] = [plain]
    if full:
        some.append(("time tokens", lambda x: x, {"times": True}))
        some.append(("after a prompt", lambda x: x, {"prompt": PROMPT}))
    if "pico" not in name or full:
        some.append(("10 dB pink", lambda x: sets.with_noise(x, 10, "pink"), {}))
    if full:
        some.append(("10 dB white", lambda x: sets.with_noise(x, 10, "white"), {}))
        some.append(("context 1500", lambda x: x[:24], {"context": 1500, "batch": 6}))
    return some


class Model:
    """A decoder with its alignment heads."""

    def __init__(self, path: Path, tokens: Tokens) -> None:
        weights, self.heads = path, [9]
        if path.is_dir():
            weights = path / "model.safetensors"
            config = json.loads((path / "config.json").read_text())
            self.heads = [layer * HEADS + head for layer, head in config["alignment_heads"]]
        network = build(tokens)
        network.load_state_dict(load_weights(weights), strict=False)
        self.decoder = Decoder(network, tokens)
        self.streamd = Streamd(path) if path.is_dir() else None

    def word_errors(
        self, said: list[Said], options: dict[str, object], how: str = ""
    ) -> tuple[int, int, float]:
        """Return errors, words and the share of texts without an error.

        ``how`` is "offline" or "streaming" to let streamd read; else it is plain greedy decoding.
        """
        sounds = [x.samples for x in said]
        if self.streamd is None or not how:
            read = [one.text for one in self.decoder(sounds, **options)]
        else:
            read = {"offline": self.streamd.offline, "streaming": self.streamd.streaming}[how](
                sounds
            )
        pairs = [(words_of(x.text), words_of(text)) for x, text in zip(said, read, strict=True)]
        errors = [distance(*pair) for pair in pairs]
        return sum(errors), sum(len(r) for r, _ in pairs), float(np.mean([e == 0 for e in errors]))

    def time_errors(self, said: list[Said]) -> tuple[np.ndarray, np.ndarray]:
        """Return absolute errors of word begins and ends in seconds, for known texts.

        The times are tightened to where there is sound, as streamd does.
        """
        errors = []
        for x in said:
            weights, lengths = self.decoder.attention(x.samples, x.text.split())
            found = tightened(word_times(weights, self.heads, lengths), x.samples)
            errors += [
                (abs(b - tb), abs(e - te)) for (b, e), (tb, te) in zip(found, x.times, strict=True)
            ]
        begins, ends = np.array(errors).T
        return begins, ends


def _row(
    models: list[Model], said: list[Said], options: dict[str, object], title: str, how: str = ""
) -> tuple[str, list[str]]:
    scores = [m.word_errors(said, options, how) for m in models]
    figures = [f"{100 * e / n:.1f} (exact {100 * ok:.0f} %)" for e, n, ok in scores]
    return f"WER %: {title} ({scores[0][1]} words)", figures


def rows(
    models: list[Model], shards: Path, data: Path, *, full: bool
) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of the table: what was measured, and the figure of each model."""
    speech = sets.speech(shards, data)
    for name, said in speech.items():
        for label, change, options in conditions(name, full=full):
            yield _row(models, change(said), options, ", ".join(filter(None, (name, label))))
        if full:
            for label, change, _ in conditions(name, full=False):
                some = change(said[:MOST_STREAMED])
                for how in ("offline", "streaming"):
                    title = ", ".join(filter(None, (name, label, f"streamd {how}")))
                    yield _row(models, some, {}, title, how)
    for name, sounds in sets.not_speech(data).items():
        minutes = sum(map(len, sounds)) / 16000 / 60
        counts = [sum(len(words_of(d.text)) for d in m.decoder(sounds)) for m in models]
        yield f"false words per minute: {name}", [f"{count / minutes:.1f}" for count in counts]
    outside = sets.outside_speech(data)
    minutes = sum(len(x.samples) for x in outside) / 16000 / 60
    figures = []
    for m in models:
        read = m.decoder([x.samples for x in outside])
        wrong = sum(sets.false_words(d.text, x.text) for d, x in zip(read, outside, strict=True))
        figures.append(f"{wrong / minutes:.1f}")
    yield "false words per minute: speech outside the vocabulary", figures
    for name in (
        "lucas, strings of 4-8, pauses 0.08-0.9 s",
        "lucas, strings of 8-16, pauses 0-0.25 s",
    ):
        errors = [m.time_errors(speech[name]) for m in models]
        for k, what in enumerate(("begin", "end")):
            middle = [
                f"{1000 * np.median(e[k]):.0f} (mean {1000 * np.mean(e[k]):.0f})" for e in errors
            ]
            yield f"word {what}, median error in ms: {name}", middle


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path)
    parser.add_argument("data", type=Path, help="folder that has eval/ and demo/")
    parser.add_argument("model", type=Path, nargs="+")
    parser.add_argument(
        "--full", action="store_true", help="all conditions; takes five times as long"
    )
    parser.add_argument(
        "--show", action="store_true", help="print what the recordings were read as"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary = Path(__file__).parents[1] / "vocab.tiktoken"
    tokens = Tokens(vocabulary)
    models = [Model(path, tokens) for path in args.model]
    print("| | " + " | ".join(path.name for path in args.model) + " |")
    print("|---" * (len(models) + 1) + "|")
    for title, figures in rows(models, args.shards, args.data, full=args.full):
        print(f"| {title} | {' | '.join(figures)} |", flush=True)
    if args.show:
        show(models[0], args.data)


def show(model: Model, data: Path) -> None:
    """Print what one model reads in the demo recordings."""
    for x in sets.recordings(data / "demo", ""):
        print(f"  {x.text}\n    {model.decoder([x.samples])[0].text}")


if __name__ == "__main__":
    main()
