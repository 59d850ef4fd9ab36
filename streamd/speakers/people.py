"""People whose voices are known from earlier sessions: who of them a speaker is, if anybody.

A voice is kept as the voiceprint of a `Roster`, with the number of frames that it was made of. Two
are compared by the cosine of their embeddings. What a room makes of a recording is kept, too: a
voice in another room, or over a telephone, is more like that than like the recording.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from streamd.speakers.clustering import as_bytes, unit

LIKE, FEW = 0.56, 15
"""The least cosine of a speaker of whom n frames were embedded with somebody who is known:
n / (n + FEW) of LIKE, since little that was heard of a voice is less like itself. On half of the
speakers of ``benchmarks/people.py``, one of a hundred others is as much alike (0.47 with 75 frames,
0.51 with 160)."""
LEAST = 50
"""Frames of a speaker who is compared: the least that the first step of live captions hears."""
KEPT_BY = 0.05
"""Somebody who was recognised stays so with a cosine that is lower by this much: names do not
come and go."""
LEAST_KEPT = 100
"""Frames of a voice that is kept (2 s, of about 4 s of speech). With voices of 6 s of speech, 34 %
of those who spoke for 3 s were not recognised, with 20 s 14 %."""
MOST_KEPT = 3_000
"""What is known of a voice counts as at most so many frames (a minute), so that it follows how
somebody speaks today."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whose voice is known: a voiceprint of `n` frames, and one in a room, or none."""

    name: str
    voiceprint: bytes
    n: int
    in_room: bytes = b""


def likeness_of(a: bytes, b: bytes) -> float:
    """Return how alike two voiceprints are, -1 to 1."""
    return float(unit(a) @ unit(b))


def threshold(n: int) -> float:
    """Return the least cosine with which a speaker, of whom `n` frames are known, is recognised."""
    return LIKE * n / (n + FEW)


def recognised(voiceprint: bytes, n: int, people: Sequence[Person], before: str = "") -> str:
    """Return the name of who has a voice of `n` frames, or nothing if it is nobody who is known.

    `before` is who it was taken for.
    """
    if n < LEAST or not people:
        return ""
    own = [(each.name, kept) for each in people for kept in (each.in_room, each.voiceprint) if kept]
    alike: dict[str, float] = {}
    for name, kept in own:
        alike[name] = max(alike.get(name, -1.0), likeness_of(kept, voiceprint))
    best = max(alike, key=lambda name: alike[name])
    if alike[best] >= threshold(n):
        return best
    return before if alike.get(before, -1.0) >= threshold(n) - KEPT_BY else ""


def with_more(person: Person, heard: Person) -> Person:
    """Return a person, of whose voice more was `heard`, under the name that it has now."""
    known = min(person.n, MOST_KEPT)
    total = known * unit(person.voiceprint) + heard.n * unit(heard.voiceprint)
    in_room = heard.in_room or person.in_room
    return Person(heard.name, as_bytes(total), person.n + heard.n, in_room)
