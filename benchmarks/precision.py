"""What int8 changes: recordings of real speech, written down in both precisions, clip by clip.

    python benchmarks/precision.py [-m tiny.en NAME=MODEL...] [--data ../shared/data/eval]
        [--page FILE]

Each English clip of the recorded speech (README.md) goes through ``streamd transcribe --vad off``
on one thread, with each model in float32 and in int8. Prints a table of word error rates and CPU
seconds, and the clips in which other words were read; writes both down as a page; and prints, last,
one JSON line.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec

from sounds import DATA, sets
from streamd.cli.bench import n_edits, spoken
from streamd.system.processor import machine
from tables import table

STREAMD = Path(sys.executable).with_name("streamd")
PRECISIONS = ("float32", "int8")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A clip: what was said, what was read (by precision), and how many words of that are wrong."""

    model: str
    clip: str
    said: str
    read: tuple[str, ...]
    wrong: tuple[int, ...]

    @property
    def differs(self) -> bool:
        """Whether the words are not the same."""
        return len({tuple(spoken(text)) for text in self.read}) > 1


def transcribe(files: Sequence[Path], model: str, precision: str) -> tuple[list[str], float]:
    """The text of each file, and the CPU seconds that all of them took."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-m", model, "--precision", precision, "--language", "en", "--vad", "off"]
        options += ["--threads", "1", "--output-dir", folder, "--output-format", "txt", "-q"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [STREAMD, "transcribe", *map(str, files), *options],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        texts = [
            " ".join((Path(folder) / f"{file.stem}.txt").read_text(encoding="utf-8").split())
            for file in files
        ]
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return texts, round(cpu_s, 1)


def compare(name: str, model: str, said: dict[Path, str]) -> tuple[list[Row], dict[str, Any]]:
    """All clips in both precisions: the rows, and their sums."""
    done = [transcribe(list(said), model, precision) for precision in PRECISIONS]
    rows = [
        Row(
            model=name,
            clip=file.stem,
            said=text,
            read=read,
            wrong=tuple(n_edits(spoken(text), spoken(each)) for each in read),
        )
        for (file, text), read in zip(
            said.items(), zip(*(texts for texts, _ in done), strict=True), strict=True
        )
    ]
    n_words = sum(len(spoken(row.said)) for row in rows)
    wrong = [sum(row.wrong[i] for row in rows) for i in range(len(PRECISIONS))]
    sums = {"model": name, "clips": len(rows), "words": n_words}
    sums |= {"differ": sum(row.differs for row in rows)}
    for precision, n_wrong in zip(PRECISIONS, wrong, strict=True):
        sums[precision] = round(100 * n_wrong / n_words, 2)
    for precision, (_, cpu_s) in zip(PRECISIONS, done, strict=True):
        sums[f"{precision}_cpu_s"] = cpu_s
    return rows, sums


def passages(row: Row) -> tuple[str, ...]:
    """Of each reading, the places where they differ, with a word on either side."""
    a, b = (spoken(text) for text in row.read)
    places = [
        (" ".join(a[max(0, i - 1) : i_end + 1]), " ".join(b[max(0, j - 1) : j_end + 1]))
        for tag, i, i_end, j, j_end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
    return tuple(" / ".join(texts) for texts in zip(*places, strict=True))


def page(sums: Sequence[dict[str, Any]], rows: Sequence[Row]) -> str:
    """The whole comparison, for people."""
    head = ("model", "clips", "words", "clips differ", "WER float32, %", "WER int8, %")
    head += ("CPU s float32", "CPU s int8")
    date, on = time.strftime("%Y-%m-%d"), machine()
    differing = [row for row in rows if row.differs]
    lines = [
        (row.model, row.clip, *passages(row), " → ".join(map(str, row.wrong))) for row in differing
    ]
    return f"""# What int8 changes
Each recording goes through `streamd transcribe --vad off` with float32 and with int8 arithmetic; everything else is the same. Words are counted after Whisper's English normaliser, and each digit counts as a word. {date}, {on.cores} cores of an {on.cpu}, load {on.load}, one thread: under load CPU times are too long, but their ratio holds.

{table(head, [tuple(each.values()) for each in sums])}

## Every clip whose words differ
The words that differ, with a word on either side. *Wrong* is the number of wrong words in the clip, in float32 and in int8.

{table(("model", "clip", *PRECISIONS, "wrong"), lines)}
"""  # noqa: E501 - paragraphs of Markdown


def main() -> None:
    """Compare the precisions of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--models", nargs="+", metavar="[NAME=]MODEL", default=["tiny.en"])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of recorded speech")
    parser.add_argument("--page", type=Path, help="a page of documentation to write")
    args = parser.parse_args()
    clips = sets(["clips"], args.data, Path())["clips"]
    said = {clip.path: " ".join(clip.passages) for clip in clips}
    sums, rows = [], []
    for model in args.models:
        name, _, path = model.rpartition("=")
        its_rows, its_sums = compare(name or Path(path).name, path, said)
        rows, sums = rows + its_rows, [*sums, its_sums]
        print(json.dumps(its_sums), file=sys.stderr, flush=True)
    text = page(sums, rows)
    print(text)
    if args.page:
        args.page.write_text(text, encoding="utf-8")
    print(json.dumps({"precision": sums}))


if __name__ == "__main__":
    main()
