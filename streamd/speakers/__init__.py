"""Who speaks: tells the voices of a stream apart, without I/O, clock or model.

The models (`streamd.engines.voices`) say in which frames each of up to three *local* speakers of a
piece of audio talks (segmentation), and describe a voice by a vector (embedding). `Roster` gives
each stretch of speech the number of a speaker, from 1, by comparing its voice with those it knows.

An embedding costs ten times as much as the segmentation of the same audio. So they are rationed:
each stretch gets one, of the frames in which its speaker is alone and loudest, until the share that
may be embedded is used up; those that continue a voice, by the segmentation, come last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Activity = NDArray[np.bool_]
"""(n, 3): whether each local speaker talks in each of n frames."""
Levels = NDArray[np.float64]
"""(n,): the loudness of each frame in dB."""
Embedding = NDArray[np.float32]
"""(256,): a voice, of the length 1."""
Places = tuple[tuple[int, int], ...]
"""Each the first frame and the first after it."""

FIRST, EVERY = 60, 150
"""Frames of an utterance that are heard first (1.2 s), and then at a time."""
CONTEXT = 75
"""Frames before them that are heard again, so that a local speaker is known from before."""
GAP = 15
"""Frames of silence after which a speaker is recognised anew: the segmentation takes similar voices
for one."""
SAMPLE, LEAST_SAMPLE = 60, 15
"""Frames of a stretch that are embedded, and fewer that tell nothing."""
SHARE, MOST_SPARE = 0.3, 300
"""Frames that may be embedded for each new one, on average, and how many may be saved up."""
SAME, SAME_SHORT, SHORT = 0.25, 0.1, 40
"""Cosine from which a voice is that of a known speaker, and if fewer frames than SHORT were
embedded: they found no new speaker."""
CHECKED = 75
"""Frames of a stretch from which its voice is embedded although it continues one."""
LEAST_SHARE = 0.3
"""Share of its known frames that a local speaker has to share with a voice to continue it."""
MOST = 16
"""Speakers that are told apart; a further one gets the number of the most similar."""
VOICEPRINT_BYTES = 256
"""Of what another session needs to know a speaker."""
REMEMBERED = 3_000
"""Frames (a minute) for which it is known who has talked when, and numbers may be revised."""


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """Frames `start` to `end`, in which `speaker` talks; turns overlap where people do."""

    start: int
    end: int
    speaker: int


@dataclass(frozen=True, slots=True)
class HearingRequest:
    """Audio to be heard: frames `start` to `end`, of which those from `new` on are new.

    `known` are the places of the voices before, by their numbers; `spare` is how many frames may be
    embedded, at most `sample` of each stretch.
    """

    start: int
    new: int
    end: int
    spare: int
    known: Mapping[int, Places]
    sample: int = SAMPLE


@dataclass(frozen=True, slots=True, eq=False)
class VoiceStretch:
    """New speech of one local speaker without a long pause.

    If `same`, it goes on with the voice of number `voice`; otherwise that one talked before it (0:
    nobody), says the segmentation. `n` frames of it made the `embedding`, if there is one.
    """

    places: Places
    local: int
    voice: int
    same: bool
    embedding: Embedding | None = None
    n: int = 0

    @property
    def length(self) -> int:
        """Frames of speech."""
        return sum(end - start for start, end in self.places)


@dataclass(frozen=True, slots=True, eq=False)
class HeardVoices:
    """What the models found in the audio of a request."""

    request: HearingRequest
    stretches: tuple[VoiceStretch, ...]


def runs(active: NDArray[np.bool_], gap: int = 1) -> list[Places]:
    """Return the places where `active` (n,) is true, in groups that are `gap` frames apart."""
    edges = np.flatnonzero(np.diff(active.astype(np.int8), prepend=0, append=0)).tolist()
    groups: list[Places] = []
    for place in zip(edges[::2], edges[1::2], strict=True):
        if groups and place[0] - groups[-1][-1][1] < gap:
            groups[-1] += (place,)
        else:
            groups.append((place,))
    return groups


def stretches(activity: Activity, request: HearingRequest) -> list[VoiceStretch]:
    """Return the new stretches of speech in the activity of a request's frames."""
    n_known, continued = request.new - request.start, _continued(activity, request)
    found = []
    for local, active in enumerate(activity.T):
        voice = continued.get(local, 0)
        for places in runs(active, GAP):
            new = tuple((max(a, n_known), b) for a, b in places if b > n_known)
            same = voice > 0 and places[0][0] < n_known
            if new:
                found.append(VoiceStretch(_moved(new, request.start), local, voice, same))
    return found


def _continued(activity: Activity, request: HearingRequest) -> dict[int, int]:
    """Return which local speaker is which voice: {local: number}, those heard last first."""
    known = activity[: request.new - request.start]
    pairs = []
    for number, places in request.known.items():
        mask = np.zeros(len(known), np.bool_)
        for start, end in _moved(places, -request.start):
            mask[max(0, start) : max(0, end)] = True
        for local, active in enumerate(known.T):
            shared = int((active & mask).sum())
            if shared and shared >= LEAST_SHARE * int(active.sum()):
                pairs.append((places[-1][1], shared, local, number))
    found: dict[int, int] = {}
    for *_, local, number in sorted(pairs, reverse=True):
        if local not in found and number not in found.values():
            found[local] = number
    return found


def samples(
    activity: Activity, levels: Levels, request: HearingRequest, found: Sequence[VoiceStretch]
) -> list[tuple[int, int] | None]:
    """Choose what to embed of each stretch: frames from the request's start, or None."""
    alone = activity & (activity.sum(1, keepdims=True) == 1)
    chosen: list[tuple[int, int] | None] = [None] * len(found)
    spare = request.spare
    for i in sorted(range(len(found)), key=lambda i: (found[i].voice > 0, found[i].places)):
        stretch = found[i]
        n = min(request.sample, spare, len(activity))
        if n < LEAST_SAMPLE or (stretch.same and stretch.length < CHECKED):
            continue
        usable = np.zeros(len(activity), np.bool_)
        for start, end in _moved(stretch.places, -request.start):
            usable[start:end] = alone[start:end, stretch.local]
        worth = np.where(usable, np.maximum(levels + 60, 1), 0)
        first = int(np.convolve(worth, np.ones(n), "valid").argmax())
        inside = np.flatnonzero(usable[first : first + n])
        if len(inside) >= LEAST_SAMPLE:
            place = chosen[i] = first + int(inside[0]), first + int(inside[-1]) + 1
            spare -= place[1] - place[0]
    return chosen


def _moved(places: Places, by: int) -> Places:
    return tuple((start + by, end + by) for start, end in places)


def speaker_at(turns: Iterable[SpokenTurn], start: int, end: int) -> int:
    """Return who talks most in these frames, or next to them; 0 if there are no turns near."""
    inside: dict[int, int] = {}
    nearest = (REMEMBERED, 0)
    for turn in turns:
        shared = min(end, turn.end) - max(start, turn.start)
        if shared > 0:
            inside[turn.speaker] = inside.get(turn.speaker, 0) + shared
        nearest = min(nearest, (-shared, turn.speaker))
    return max(inside, key=lambda each: inside[each]) if inside else nearest[1]


@dataclass(slots=True)
class _Voice:
    places: Places
    speaker: int


class Roster:
    """The speakers of one stream, and who of them talked when in the last minute."""

    def __init__(self, known: Iterable[bytes] = ()) -> None:
        """`known` are the `voiceprints` of an earlier roster."""
        self._centres: dict[int, NDArray[np.float32]] = {}
        for number, print_ in enumerate(known, 1):
            centre = np.frombuffer(print_, np.int8).astype(np.float32)
            self._centres[number] = 10 * SAMPLE * _normal(centre)
        self._voices: dict[int, _Voice] = {}
        self._n_voices = 0
        self._spare = float(MOST_SPARE)
        self._recent: list[int] = []  # speakers, the last one at the end
        self.heard = 0
        """The frame up to which audio was heard."""

    @property
    def voiceprints(self) -> tuple[bytes, ...]:
        """The voices of the speakers in order, 256 bytes each."""
        order = range(1, max(self._centres, default=0) + 1)
        return tuple(_as_bytes(self._centres[speaker]) for speaker in order)

    @property
    def turns(self) -> list[SpokenTurn]:
        """Who talked when in the last minute, in order."""
        every = (SpokenTurn(*place, v.speaker) for v in self._voices.values() for place in v.places)
        return sorted(every, key=lambda turn: (turn.start, turn.end, turn.speaker))

    def request(self, start: int, end: int, *, since: int, last: bool) -> HearingRequest | None:
        """Return what is to be heard of the window from `start` to `end`, if anything.

        Its utterance began at `since`; a `last` window ends it.
        """
        new = max(self.heard, since, start)
        least = 1 if last else FIRST if self.heard <= since else EVERY
        if end - new < least:
            return None
        start = max(start, new - CONTEXT)
        known = {n: v.places for n, v in self._voices.items() if v.places[-1][1] > start}
        return HearingRequest(start, new, end, int(self._spare), known)

    def hear(self, heard: HeardVoices) -> tuple[int, int]:
        """Take what was found; return the frames in which it is now known better who talks."""
        request = heard.request
        self._spare += SHARE * (request.end - request.new) - sum(s.n for s in heard.stretches)
        self._spare = min(self._spare, MOST_SPARE)
        self.heard = request.end
        newest: dict[int, int] = {}
        for stretch in sorted(heard.stretches, key=lambda stretch: stretch.places):
            voice = self._voices.get(stretch.voice)
            before = self._voices.get(newest.get(stretch.local, stretch.voice))
            speaker = self._name(stretch, before.speaker if before else 0)
            if voice is not None and stretch.same and voice.speaker == speaker:
                voice.places += stretch.places
                continue
            self._n_voices += 1
            newest[stretch.local] = self._n_voices
            self._voices[self._n_voices] = _Voice(stretch.places, speaker)
            self._recent = [*(each for each in self._recent if each != speaker), speaker]
        self._forget(request.end - REMEMBERED)
        return request.new, request.end

    def speaker(self, start: int, end: int) -> int:
        """Return who talks most in these frames, or next to them; 0 if nobody is known."""
        return speaker_at(self.turns, start, end)

    def changes(self, start: int, end: int) -> list[int]:
        """Return the frames between `start` and `end` at which another speaker begins."""
        pairs = pairwise(self.turns)
        return [b.start for a, b in pairs if a.speaker != b.speaker and start < b.start < end]

    def _name(self, stretch: VoiceStretch, carried: int) -> int:
        if stretch.embedding is None:
            # The segmentation has found another than the one before, not who it is.
            others = [speaker for speaker in self._recent[:-1] if speaker in self._centres]
            return carried or (others or self._recent or [1])[-1]
        likely = {
            speaker: float(stretch.embedding @ _normal(centre))
            for speaker, centre in self._centres.items()
        }
        best = max(likely, key=lambda each: likely[each], default=0)
        least = SAME if stretch.n >= SHORT else SAME_SHORT
        if not best or (likely[best] < least and len(likely) < MOST):
            best = len(self._centres) + 1
        self._centres[best] = self._centres.get(best, 0) + stretch.n * stretch.embedding
        return best

    def _forget(self, before: int) -> None:
        for number in [n for n, v in self._voices.items() if v.places[-1][1] <= before]:
            del self._voices[number]


def _normal(vector: NDArray[np.float32]) -> Embedding:
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def _as_bytes(vector: NDArray[np.float32]) -> bytes:
    scale = 127 / max(float(np.abs(vector).max()), 1e-9)
    quantised: NDArray[np.int8] = np.rint(scale * vector).astype(np.int8)
    return quantised.tobytes()
