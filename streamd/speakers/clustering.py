"""Who speaks in a whole recording: all voices are compared with each other, when all are there."""

import numpy as np
from numpy.typing import NDArray

from streamd.speakers import (
    LEAST_SAMPLE,
    Embedding,
    HeardVoices,
    HearingRequest,
    Places,
    SpokenTurn,
)

STEP, CONTEXT = 400, 100
"""Frames that are heard at a time (8 s), and those before them that are heard again: together the
10 s that the segmentation was trained with."""
SAMPLE = 100
"""Frames of a stretch that are embedded."""
FARTHEST = 0.8
"""Cosine distance, on average, of voices that are still one speaker's."""


class VoiceRecording:
    """What was heard of a recording so far, step by step."""

    def __init__(self) -> None:
        self._voices: list[tuple[Places, Embedding | None, int]] = []  # the last: which before it
        self.heard = 0
        """The frame up to which it was heard."""

    def request(self, end: int) -> HearingRequest:
        """Return what is to be heard next, up to frame `end`."""
        start = max(0, self.heard - CONTEXT)
        known = {n: v[0] for n, v in enumerate(self._voices, 1) if v[0][-1][1] > start}
        return HearingRequest(start, self.heard, end, end, known, SAMPLE)

    def hear(self, heard: HeardVoices) -> None:
        """Take what was found."""
        self.heard = heard.request.end
        newest: dict[int, int] = {}
        for stretch in sorted(heard.stretches, key=lambda stretch: stretch.places):
            if stretch.same and stretch.embedding is None:
                places, embedding, before = self._voices[stretch.voice - 1]
                voice = places + stretch.places, embedding, before
                self._voices[stretch.voice - 1] = voice
                continue
            clear = stretch.embedding if stretch.n >= LEAST_SAMPLE else None
            before = newest.get(stretch.local, stretch.voice)
            self._voices.append((stretch.places, clear, before))
            newest[stretch.local] = len(self._voices)

    def turns(self, n_speakers: int = 0) -> list[SpokenTurn]:
        """Return who talks when, in order; `n_speakers`: how many they are, if that is known."""
        clear = [voice for _, voice, _ in self._voices if voice is not None]
        labels = iter(clustered(np.stack(clear), n_speakers) if clear else ())
        speakers: list[int] = []
        numbers: dict[int, int] = {}  # as they come
        for _, voice, before in self._voices:
            if voice is not None:
                label = int(next(labels))
                speakers.append(numbers.setdefault(label, len(numbers) + 1))
            else:
                speakers.append(speakers[before - 1] if before else (speakers or [1])[-1])
        every = (
            SpokenTurn(*place, speaker)
            for (places, *_), speaker in zip(self._voices, speakers, strict=True)
            for place in places
        )
        return sorted(every, key=lambda turn: (turn.start, turn.end, turn.speaker))


def clustered(voices: NDArray[np.float32], n_clusters: int = 0) -> list[int]:
    """Return a label for each of (n, 256) voices, by average linkage of their cosines.

    The nearest two clusters become one, until there are `n_clusters`, or, if that is 0, until none
    are nearer than `FARTHEST`.
    """
    n = len(voices)
    distances = 1 - voices.astype(np.float64) @ voices.T.astype(np.float64)
    np.fill_diagonal(distances, np.inf)
    labels, sizes, nearest = np.arange(n), np.ones(n), distances.min(1)
    for _ in range(n - max(1, n_clusters)):
        a = int(nearest.argmin())
        if not n_clusters and nearest[a] > FARTHEST:
            break
        b = int(distances[a].argmin())
        merged = (sizes[a] * distances[a] + sizes[b] * distances[b]) / (sizes[a] + sizes[b])
        merged[a] = np.inf
        distances[a] = distances[:, a] = merged
        distances[b] = distances[:, b] = np.inf
        sizes[a] += sizes[b]
        labels[labels == labels[b]] = labels[a]
        nearest = distances.min(1)
    return [int(label) for label in labels]
