"""The speakers of one stream: its voices, clustered.

What one local speaker says without a pause is a *voice*. Live, a voice of more than 1.5 s goes on
as a new voice at the next step. Each cluster of voices is a speaker, with a number from 1.

An embedding costs five times as much as the segmentation of the same audio, so live captions ration
them. Each voice gets one, from the frames in which only its speaker talks and is loudest, as long
as the budget lasts; and a second one later, unless its speaker is clear by then. In whole
recordings, everything is embedded.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from streamd.speakers.boundaries import (
    LEAST_BESIDE,
    Activity,
    Chances,
    Describe,
    Places,
    runs,
    shifts,
    turning,
)
from streamd.speakers.clustering import Embedding, as_bytes, clustered, likeness, own_cosine, unit
from streamd.speakers.steps import HearingStep
from streamd.speakers.turns import REMEMBERED, SpokenTurn

Levels = NDArray[np.float64]
"""(n,): the loudness of each frame in dB."""
Found = tuple[int, int, Places]
"""A voice in a step: its index, the local speaker, and its new places."""
Listen = Callable[[int, int], Describe]
"""Hears some frames of a step, counted from its start, which can then be described."""

GAP = 8
"""After this many silent frames, a local speaker is taken for a new voice, because the segmentation
takes similar voices for one."""
BRIDGED = 25
"""A speaker's turn goes on across a silence of up to this many frames."""
SAMPLE, LEAST_SAMPLE, LEAST_HALVED = 75, 20, 40
"""Frames of a voice that are embedded; a sample of fewer than `LEAST_SAMPLE` is useless. The halves
of one of fewer than `LEAST_HALVED` are as much alike in a hall as elsewhere (cosines of 0.49 and
0.50 with 20 to 26 frames, but 0.32 and 0.49 with more than 45)."""
SHARE, MOST_SPARE = 0.5, 300
"""The budget for embeddings: frames for each new frame of audio, and the most that can be saved."""
LONG = 75
"""After this many frames of a voice, start a new one at the next step, with a sample of its own:
what the segmentation takes for one voice may be two people who talk in turn."""
AHEAD = 0.2
"""A voice is embedded no further once its cosine with its own speaker exceeds that with any other
speaker by this much. A cosine with nobody counts as 0."""
CLEAR = 30
"""A voice needs this many embedded frames to become a new speaker."""
MEANWHILE = 0.5
"""Of a recording, a voice that is hardly ever alone may be an echo that the segmentation takes for
one more speaker. Somebody else has it if it is more like them than this share of its likeness to
who talks meanwhile (for nine in ten of 30 echoes of the design half, it is less than 0.45)."""
LEAST_SHARE = 0.3
"""A local speaker continues a voice if at least this share of its known frames is the voice's."""
MOST = 16
"""Speakers that are told apart live."""
PIECES, LEAST_ALIKE = 2, 0.8
"""What a speaker said more than a minute ago is kept as so many sums of embeddings. If two people
were taken for one, these mostly are one person's each, so that they can still be told apart. Where
one person's samples have a cosine below `LEAST_ALIKE`, mostly in rooms, it is one sum: there, those
of one person came apart (95.2 instead of 97.0 % of the words of twelve dialogues were right)."""
VOICEPRINT_BYTES = 256
"""Bytes by which another session recognises a speaker."""


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """What one local speaker says at `places`.

    `total` is the sum of the embeddings of `n` frames (0: none yet). Of a recording, a voice
    that is hardly ever alone is described by all its frames, and counts as one.
    """

    places: Places
    total: Embedding
    n: int = 0
    speaker: int = 0

    @property
    def end(self) -> int:
        """The first frame after it."""
        return self.places[-1][1]

    @property
    def length(self) -> int:
        """Frames from its first to its last."""
        return self.end - self.places[0][0]

    def gap(self, other: "Voice") -> int:
        """Return the number of frames between two voices, negative if they overlap."""
        return max(other.places[0][0] - self.end, self.places[0][0] - other.end)


@dataclass(frozen=True, slots=True, eq=False)
class HearingRequest:
    """Steps to process, the audio from frame `start` on, and the roster so far."""

    steps: tuple[HearingStep, ...]
    start: int
    audio: NDArray[np.float32]
    roster: "Roster"


@dataclass(frozen=True, slots=True, eq=False)
class HeardVoices:
    """The roster after each step of a `HearingRequest`."""

    rosters: tuple["Roster", ...]


class Roster:
    """The speakers of one stream, and who talked when.

    Live, the last minute is kept; of a `whole` recording everything.
    """

    def __init__(self, known: Sequence[bytes] = (), *, whole: bool = False) -> None:
        """`known` are the voiceprints of the speakers of an earlier roster."""
        n = 10 * SAMPLE
        self._forgotten: tuple[Voice, ...] = tuple(  # without places, up to PIECES of each speaker
            Voice((), n * unit(print_), n, speaker)
            for speaker, print_ in enumerate(known, 1)
            if any(print_)
        )
        self._voices: dict[int, Voice] = {}
        self._n_voices = 0
        self._n_speakers = len(known)
        self._spare = float(MOST_SPARE)
        self._halves, self._n_samples = 0.0, 0  # cosines of the halves of samples
        self._adjacent = np.zeros(2)  # of a whole recording: see `turning`
        self.whole = whole
        """Whether it is of a recording, of which everything is kept."""
        self.heard = 0
        """The frame up to which audio was heard."""

    def copy(self) -> "Roster":
        """Return another one that knows the same."""
        other = copy(self)
        other._voices = dict(self._voices)
        return other

    @property
    def prints(self) -> list[tuple[bytes, int]]:
        """The voices of the speakers in order, 256 bytes each, and of how many frames they are.

        They are zeros for a number without one.
        """
        totals, ns = self._totals(), Counter[int]()
        for voice in (*self._forgotten, *self._voices.values()):
            ns[voice.speaker] += voice.n
        nobody = np.zeros(VOICEPRINT_BYTES, np.float32)
        order = range(1, max(totals, default=0) + 1)
        return [(as_bytes(totals.get(speaker, nobody)), ns[speaker]) for speaker in order]

    def _totals(self, *, least: int = 1, but: int = 0) -> dict[int, Embedding]:
        """Return the sum of each speaker's voices of `least` frames or more, `but` one of them."""
        totals: dict[int, Embedding] = {}
        voices = [voice for number, voice in self._voices.items() if number != but]
        for voice in (*self._forgotten, *voices):
            if voice.n >= least and voice.speaker:
                totals[voice.speaker] = totals.get(voice.speaker, 0) + voice.total
        return totals

    @property
    def turns(self) -> list[SpokenTurn]:
        """Who talked when, in order, as far as it is remembered."""
        places: dict[int, list[tuple[int, int]]] = {}
        for voice in self._voices.values():
            places.setdefault(voice.speaker, []).extend(voice.places)
        turns = []
        for speaker, each in places.items():
            last_start, last_end = -1, -1
            for start, end in sorted(each):
                if last_start < 0 or start - last_end >= BRIDGED:
                    last_start, last_end = start, end
                    turns.append(SpokenTurn(start, end, speaker))
                last_end = max(last_end, end)
                turns[-1] = SpokenTurn(last_start, last_end, speaker)
        return sorted(turns, key=lambda turn: (turn.start, turn.end, turn.speaker))

    def hear(
        self,
        step: HearingStep,
        activity: Activity,
        chances: Chances,
        levels: Levels,
        listen: Listen,
    ) -> None:
        """Take who talks in the frames of a step, and tell the speakers apart anew."""
        alone = activity & (activity.sum(1, keepdims=True) == 1)
        found = self._spoken(step, activity, alone, chances)
        self.heard = step.end
        if self.whole:
            self._hear_all(step, alone, found, listen)
        else:
            self._hear_some(step, alone, found, levels, listen)
            self._forget(step.end - REMEMBERED)
            self.tell_apart()

    def _hear_all(
        self, step: HearingStep, alone: Activity, found: Sequence[Found], listen: Listen
    ) -> None:
        """Embed all of a step, and end voices where the embedding changes."""
        n_known, n = step.new - step.start, step.end - step.start
        heard = []
        for each in found:
            usable, every = (
                _usable(step, among, each)[n_known:] for among in (alone, np.ones_like(alone))
            )
            is_alone = usable.sum() >= LEAST_SAMPLE
            if is_alone or every.sum() >= CLEAR:
                heard.append((each, usable if is_alone else every, is_alone))
        if not heard:
            return
        describe = listen(n_known, n)
        for (number, _, places), usable, is_alone in heard:
            cuts = turning(usable, describe, self._adjacent) if is_alone else []
            parts = np.zeros((len(cuts) + 1, len(usable)), np.bool_)
            for part, first, end in zip(parts, (0, *cuts), (*cuts, len(usable)), strict=True):
                part[first:end] = usable[first:end]
            bounds = (places[0][0], *(step.new + cut for cut in cuts), places[-1][1])
            for ends, part, voice in zip(pairwise(bounds), parts, describe(parts), strict=True):
                n_part = int(part.sum()) if is_alone else 1
                self._voices[number] = Voice(_clipped(places, *ends), n_part * voice, n_part)
                number = self._new_voice()

    def _hear_some(
        self,
        step: HearingStep,
        alone: Activity,
        found: Sequence[Found],
        levels: Levels,
        listen: Listen,
    ) -> None:
        """Embed as much of a step as may be, of voices of which least is known."""
        self._spare = min(self._spare + SHARE * (step.end - step.new), MOST_SPARE)
        for each in sorted(found, key=lambda each: self._voices[each[0]].n):
            number, local, _ = each
            n = min(SAMPLE - self._voices[number].n, step.end - step.start, int(self._spare))
            if n < LEAST_SAMPLE or self._is_sure(number):
                continue
            usable = _usable(step, alone, each)
            worth = np.where(usable, np.maximum(levels + 60, 1), 0)
            first = int(np.convolve(worth, np.ones(n), "valid").argmax())
            inside = np.flatnonzero(usable[first : first + n])
            if len(inside) >= LEAST_SAMPLE:
                first, end = first + int(inside[0]), first + int(inside[-1]) + 1
                embedding, *halves = listen(first, end)(_with_halves(alone[first:end, local]))
                if len(inside) >= LEAST_HALVED:
                    self._halves += likeness(*halves)
                    self._n_samples += 1
                voice, n = self._voices[number], end - first
                total: Embedding = voice.total + n * embedding
                self._voices[number] = replace(voice, total=total, n=voice.n + n)
                self._spare -= n

    def _is_sure(self, number: int) -> bool:
        """Whether it is so clear who has a voice that more of it tells no more."""
        voice = self._voices[number]
        if voice.n < CLEAR or not voice.speaker:
            return False
        alike = {
            speaker: likeness(voice.total, total)
            for speaker, total in self._totals(but=number).items()
        }
        own = alike.pop(voice.speaker, 0.0)
        return own - max(alike.values(), default=0.0) >= AHEAD

    def _spoken(
        self, step: HearingStep, activity: Activity, alone: Activity, chances: Chances
    ) -> list[Found]:
        """Return the voices of a step."""
        n_known, continued = step.new - step.start, self._continued(step, activity)
        found = []
        for local, active in enumerate(activity.T):
            for places in runs(active, GAP):
                begin, end = places[0][0], places[-1][1]
                frames = begin + np.flatnonzero(alone[begin:end, local])
                cuts = [int(frames[at]) for at in shifts(chances[frames])]
                for first, after in pairwise((begin, *cuts, end)):
                    if after > n_known:
                        found.append((_clipped(places, first, after), local, first > begin))
        voices = []
        for part, local, is_cut in sorted(found):
            before, places = continued.get(local, 0), _moved(part, step.start)
            goes_on = before > 0 and part[0][0] < n_known and not self.whole
            if goes_on and is_cut:
                goes_on = not self._end(before, places[0][0])
            if goes_on or self.whole:
                places = _clipped(places, step.new, step.end)
            if not places:
                continue  # all of it lies before a pause at the beginning of the step
            if goes_on and self._voices[before].length < LONG:
                voice = self._voices[before]
                self._voices[before] = replace(voice, places=voice.places + places)
            else:
                continued[local] = self._new_voice()
                self._voices[self._n_voices] = Voice(places, np.zeros(VOICEPRINT_BYTES, np.float32))
            voices.append((continued[local], local, places))
        return voices

    def _new_voice(self) -> int:
        self._n_voices += 1
        return self._n_voices

    def _end(self, number: int, at: int) -> bool:
        """End a voice at frame `at`, from which on another talks, unless little of it is left."""
        voice = self._voices[number]
        left = _clipped(voice.places, 0, at)
        if not left or at - left[0][0] < LEAST_BESIDE:
            return False
        self._voices[number] = replace(voice, places=left)
        return True

    def _continued(self, step: HearingStep, activity: Activity) -> dict[int, int]:
        """Return which local speaker is which voice from before, those heard last first."""
        known = activity[: step.new - step.start]
        pairs = []
        for number, voice in self._voices.items():
            if voice.end <= step.start:
                continue
            mask = np.zeros(len(known), np.bool_)
            for start, end in _moved(voice.places, -step.start):
                mask[max(0, start) : max(0, end)] = True
            for local, active in enumerate(known.T):
                shared = int((active & mask).sum())
                if shared and shared >= LEAST_SHARE * int(active.sum()):
                    pairs.append((voice.end, shared, local, number))
        found: dict[int, int] = {}
        for *_, local, number in sorted(pairs, reverse=True):
            if local not in found and number not in found.values():
                found[local] = number
        return found

    def tell_apart(self, n_speakers: int = 0) -> None:
        """Cluster the voices, and give each cluster the number that most of it had before.

        Of a whole recording this is asked for at its end; `n_speakers`: how many, if it is known.
        """
        own = own_cosine(self._halves, self._n_samples)
        if own < LEAST_ALIKE:
            self._forgotten = _in_pieces(self._forgotten, 1)
        clear = [number for number, voice in self._voices.items() if voice.n >= CLEAR]
        voices = [*self._forgotten, *(self._voices[number] for number in clear)]
        if voices:
            totals, ns = np.stack([voice.total for voice in voices]), [voice.n for voice in voices]
            if self.whole:
                labels = clustered(totals, np.array(ns), n_clusters=n_speakers)
            else:
                labels = clustered(totals, np.array(ns), most=MOST, least_own=own)
            speakers = self._numbered(labels, voices)
            voices = [
                replace(voice, speaker=speakers[label])
                for voice, label in zip(voices, labels, strict=True)
            ]
            n_forgotten = len(self._forgotten)
            self._forgotten = _in_pieces(voices[:n_forgotten])
            self._voices.update(zip(clear, voices[n_forgotten:], strict=True))
        self._name_others()

    def _numbered(self, labels: Sequence[int], voices: Sequence[Voice]) -> dict[int, int]:
        """Return the speaker of each cluster. Speakers of forgotten voices keep their numbers."""
        shares: dict[tuple[int, int], tuple[bool, int]] = {}
        for label, voice in zip(labels, voices, strict=True):
            is_forgotten, n = shares.get((label, voice.speaker), (False, 0))
            shares[label, voice.speaker] = is_forgotten or not voice.places, n + voice.n
        speakers: dict[int, int] = {}
        for (label, speaker), _ in sorted(shares.items(), key=lambda item: item[1], reverse=True):
            if speaker and label not in speakers and speaker not in speakers.values():
                speakers[label] = speaker
        before = {voice.speaker for voice in voices}
        for label in labels:
            if label not in speakers:
                speakers[label] = self._new_speaker({*speakers.values(), *before})
        return speakers

    def _new_speaker(self, taken: set[int]) -> int:
        if self._n_speakers < MOST or self.whole:
            self._n_speakers += 1
            return self._n_speakers
        return next((number for number in range(1, MOST) if number not in taken), MOST)

    def _name_others(self) -> None:
        """Name the voices of which too little was embedded to be of a new speaker."""
        centres = self._totals(least=CLEAR)
        clear = [voice for voice in self._voices.values() if voice.n >= CLEAR]
        for number, voice in self._voices.items():
            if voice.n >= CLEAR:
                continue
            if voice.n and centres:
                alike = {who: likeness(voice.total, centre) for who, centre in centres.items()}
                for who in _meanwhile(voice, clear) if voice.n == 1 else ():
                    alike[who] *= MEANWHILE
                speaker = max(alike, key=lambda who: alike[who])
            else:
                speaker = self._beside(voice, clear) or voice.speaker or min(centres, default=1)
            self._voices[number] = replace(voice, speaker=speaker)
            self._n_speakers = max(self._n_speakers, speaker)

    def _beside(self, voice: Voice, clear: Sequence[Voice]) -> int:
        """Return who talks next to a voice, but not at once with it; 0 if nobody does.

        What is too little to be embedded is mostly the beginning or the end of a turn, in which the
        one before or after it is still heard.
        """
        meanwhile = _meanwhile(voice, clear)
        others = [each for each in clear if each.speaker not in meanwhile]
        return min(others, key=voice.gap).speaker if others else 0

    def _forget(self, before: int) -> None:
        old = [number for number, voice in self._voices.items() if voice.end <= before]
        voices = [replace(self._voices.pop(number), places=()) for number in old]
        clear = (voice for voice in voices if voice.n >= CLEAR)
        self._forgotten = _in_pieces((*self._forgotten, *clear))


def _in_pieces(voices: Iterable[Voice], most: int = PIECES) -> tuple[Voice, ...]:
    """Add up those voices of a speaker that are most alike, until there are no more than `most`."""
    of: dict[int, list[Voice]] = {}
    for voice in voices:
        pieces = of.setdefault(voice.speaker, [])
        pieces.append(voice)
        if len(pieces) > most:
            a, b = min(combinations(pieces, 2), key=lambda pair: _apart(*pair))
            both = replace(a, total=a.total + b.total, n=a.n + b.n)
            pieces[:] = (*(each for each in pieces if each not in (a, b)), both)
    return tuple(piece for pieces in of.values() for piece in pieces)


def _apart(a: Voice, b: Voice) -> float:
    """Return by how much the error grows if two voices are taken for one (Ward, 1963)."""
    return (1 - likeness(a.total, b.total)) * a.n * b.n / (a.n + b.n)


def _meanwhile(voice: Voice, others: Sequence[Voice]) -> set[int]:
    """Return who of others talks while a voice does."""
    return {each.speaker for each in others if voice.gap(each) < 0}


def _with_halves(frames: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return frames (n,), the first half of them, and the other half, (3, n)."""
    count = frames.cumsum()
    first = frames & (2 * count <= count[-1])
    return np.stack([frames, first, frames & ~first])


def _usable(step: HearingStep, alone: Activity, found: Found) -> NDArray[np.bool_]:
    """Return in which frames of a step (n,) a voice of it is alone."""
    _, local, places = found
    mask = np.zeros(len(alone), np.bool_)
    for start, end in _moved(places, -step.start):
        mask[start:end] = True
    return mask & alone[:, local]


def _clipped(places: Places, start: int, end: int) -> Places:
    clipped = ((max(a, start), min(b, end)) for a, b in places)
    return tuple((a, b) for a, b in clipped if a < b)


def _moved(places: Places, by: int) -> Places:
    return tuple((start + by, end + by) for start, end in places)
