"""How many cues of subtitle files keep to the limits that broadcasters publish.

    python benchmarks/subtitles.py talk.srt [other.srt ...]

The limits are those of Netflix' Timed Text Style Guide for English (at most 20 characters a second,
two lines of 42, 5/6 s to 7 s, two frames between cues) and the BBC's subtitle guidelines (at most
180 words a minute; line breaks at ends of clauses, not behind an article or a preposition).
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from streamd.language import BINDING

FRAMES_APART_MS = 80
"""Two frames at 25 a second."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A cue of a file: when it is shown, and its lines."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The lines as one."""
        return " ".join(self.lines)

    @property
    def seconds(self) -> float:
        """How long it is shown."""
        return (self.end_ms - self.start_ms) / 1000


def cues_of(text: str) -> Iterator[Shown]:
    """Yield the cues of a SubRip file."""
    for block in re.split(r"\n\n+", text.strip()):
        _, times, *lines = block.splitlines()
        start, end = (_ms(time) for time in times.split(" --> "))
        yield Shown(start, end, tuple(lines))


def _ms(time: str) -> int:
    hours, minutes, rest = time.split(":")
    seconds, ms = rest.split(",")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1000 + int(ms)


def count(cues: list[Shown]) -> dict[str, int]:
    """Return how many cues there are, and how many break each limit."""
    broken: Counter[str] = Counter()
    for cue in cues:
        words = cue.text.split()
        broken["over 20 characters/s"] += len(cue.text) > 20 * cue.seconds
        broken["over 17 characters/s"] += len(cue.text) > 17 * cue.seconds
        broken["over 180 words/min"] += len(words) > 3 * cue.seconds
        broken["under 5/6 s"] += cue.seconds < 5 / 6
        broken["over 7 s"] += cue.seconds > 7
        broken["over 2 lines of 42"] += len(cue.lines) > 2 or any(len(x) > 42 for x in cue.lines)
        broken["line ends mid-phrase"] += any(
            line.split()[-1].lower() in BINDING for line in cue.lines
        )
        broken["cue ends mid-phrase"] += words[-1].lower() in BINDING
    for one, two in pairwise(cues):
        broken["0 to 2 frames apart"] += 0 < two.start_ms - one.end_ms < FRAMES_APART_MS
        room_ms = two.start_ms - one.end_ms - FRAMES_APART_MS
        broken["too fast with room"] += len(one.text) > 20 * one.seconds and room_ms > 20
    return {"cues": len(cues), **broken}


def main() -> None:
    """Print a table with a column for each file, and the figures as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    files = parser.parse_args().files
    counted = {str(file): count(list(cues_of(file.read_text()))) for file in files}
    print(f"| | {' | '.join(file.name for file in files)} |")
    print(f"|---|{'---:|' * len(files)}")
    for what in next(iter(counted.values())):
        print(f"| {what} | {' | '.join(str(each.get(what, 0)) for each in counted.values())} |")
    print(json.dumps({"subtitles": counted}))


if __name__ == "__main__":
    main()
