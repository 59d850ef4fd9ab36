"""Print the scores of models side by side: ``evaluate.py SHARDS DATA MODEL [MODEL ...]``.

MODEL is a folder with model.safetensors and config.json, or a training state (its running average).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import sets
import torch
import torch.multiprocessing
from clips import RATE_HZ
from decode import Decoder, tightened, word_times
from model import HEADS, build, load_weights
from sets import Said, words_of
from streamed import Streamd
from tokens import Tokens

MOST_STREAMED = 40  # sounds of a set, because every step of a stream is decoded
PROMPT = "seven of hearts turn on the lights nine four two"
STRINGS = ("lucas, strings of 4-8, pauses 0.08-0.9 s", "lucas, strings of 8-16, pauses 0-0.25 s")
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
        some.append(("in a room", sets.in_rooms, {}))
        some.append(("telephone", sets.by_telephone, {}))
        some.append(("30 dB quieter", lambda x: sets.quieter(x, 30), {}))
        some.append(("context 1500", lambda x: x[:24], {"context": 1500, "batch": 6}))
    return some


class Model:
    """A decoder with its alignment heads."""

    def __init__(self, path: Path) -> None:
        tokens = Tokens(Path(__file__).parents[1] / "vocab.tiktoken")
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
    ) -> tuple[int, float]:
        """Return the word errors and the share of texts without any.

        ``how`` is "offline" or "streaming" to let streamd read; else it is plain greedy decoding.
        """
        sounds = [x.samples for x in said]
        if self.streamd is None or not how:
            read = [one.text for one in self.decoder(sounds, **options)]
        else:
            read = {"offline": self.streamd.offline, "streaming": self.streamd.streaming}[how](
                sounds
            )
        errors = [
            distance(words_of(x.text), words_of(text)) for x, text in zip(said, read, strict=True)
        ]
        return sum(errors), float(np.mean([e == 0 for e in errors]))

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


@dataclass(frozen=True)
class Row:
    """A line of the table: what is measured, and how to measure it of a model."""

    title: str
    figure: Callable[[Model], str]


def rows(shards: Path, data: Path, *, full: bool) -> Iterator[Row]:
    """List the lines of the table."""
    speech = sets.speech(shards, data)
    for name, said in speech.items():
        for label, change, options in conditions(name, full=full):
            yield _errors(change(said), options, (name, label))
        if full:
            for label, change, _ in conditions(name, full=False):
                some = change(said[:MOST_STREAMED])
                for how in ("offline", "streaming"):
                    yield _errors(some, {}, (name, label, f"streamd {how}"), how)
    for name, sounds in sets.not_speech(data).items():
        yield _invented(name, [Said(x, "") for x in sounds])
    yield _invented("speech outside the vocabulary", sets.outside_speech(data))
    for name in STRINGS:
        for k, what in enumerate(("begin", "end")):
            yield _times(what, k, name, speech[name])


def _errors(
    said: list[Said], options: dict[str, object], names: tuple[str, ...], how: str = ""
) -> Row:
    words = sum(len(words_of(x.text)) for x in said)

    def figure(model: Model) -> str:
        errors, exact = model.word_errors(said, options, how)
        return f"{100 * errors / words:.1f} (exact {100 * exact:.0f} %)"

    return Row(f"WER %: {', '.join(filter(None, names))} ({words} words)", figure)


def _invented(name: str, said: list[Said]) -> Row:
    minutes = sum(len(x.samples) for x in said) / RATE_HZ / 60

    def figure(model: Model) -> str:
        read = model.decoder([x.samples for x in said])
        wrong = sum(sets.false_words(d.text, x.text) for d, x in zip(read, said, strict=True))
        return f"{wrong / minutes:.1f}"

    return Row(f"false words per minute: {name}", figure)


def _times(what: str, k: int, name: str, said: list[Said]) -> Row:
    def figure(model: Model) -> str:
        wrong = 1000 * model.time_errors(said)[k]
        return f"{np.median(wrong):.0f} (mean {np.mean(wrong):.0f})"

    return Row(f"word {what}, median error in ms: {name}", figure)


class Worker:
    """Measures in a process of its own, which has the models of its own."""

    _models: ClassVar[list[Model]]
    _rows: ClassVar[list[Row]]

    @classmethod
    def start(cls, models: list[Path], rows: list[Row]) -> None:
        """Load the models."""
        torch.set_num_threads(1)
        cls._models, cls._rows = [Model(path) for path in models], rows

    @classmethod
    def line(cls, number: int) -> str:
        """Measure one row."""
        row = cls._rows[number]
        figures = [row.figure(model) for model in cls._models]
        return f"| {row.title} | {' | '.join(figures)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path)
    parser.add_argument("data", type=Path, help="folder that has eval/ and demo/")
    parser.add_argument("model", type=Path, nargs="+")
    parser.add_argument(
        "--full", action="store_true", help="all conditions; takes many times as long"
    )
    parser.add_argument(
        "--show", action="store_true", help="print what the recordings were read as"
    )
    parser.add_argument("--only", default="", help="rows whose title has this text")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    every = rows(args.shards, args.data, full=args.full)
    chosen = [row for row in every if args.only in row.title]
    print("| | " + " | ".join(path.name for path in args.model) + " |")
    print("|---" * (len(args.model) + 1) + "|")
    # forked processes have the sets without making or copying them
    fork = torch.multiprocessing.get_context("fork")
    with fork.Pool(args.processes, Worker.start, (args.model, chosen)) as pool:
        for line in pool.imap(Worker.line, range(len(chosen))):
            print(line, flush=True)
    if args.show:
        show(Model(args.model[0]), args.data)


def show(model: Model, data: Path) -> None:
    """Print what one model reads in the demo recordings."""
    for x in sets.recordings(data / "demo", ""):
        print(f"  {x.text}\n    {model.decoder([x.samples])[0].text}")


if __name__ == "__main__":
    main()
