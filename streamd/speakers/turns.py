"""Who talks when: turns of speakers, and who says a word."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

REMEMBERED = 3_000
"""Frames (a minute) for which turns are kept and speakers' numbers may be revised."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """Frames `start` to `end`, in which `speaker` talks; turns overlap where people do."""

    start: int
    end: int
    speaker: int


def changes(turns: Iterable[SpokenTurn]) -> list[int]:
    """Return the frames at which the speaker changes."""
    return [b.start for a, b in pairwise(turns) if a.speaker != b.speaker]


def talking(turns: Iterable[SpokenTurn], start: int, end: int) -> dict[int, int]:
    """Return who talks in these frames, and in how many, or next to them; nobody if it is far."""
    inside: dict[int, int] = {}
    nearest = (REMEMBERED, 0)
    for turn in turns:
        shared = min(end, turn.end) - max(start, turn.start)
        if shared > 0:
            inside[turn.speaker] = inside.get(turn.speaker, 0) + shared
        nearest = min(nearest, (-shared, turn.speaker))
    return inside or ({nearest[1]: 0} if nearest[1] else {})
