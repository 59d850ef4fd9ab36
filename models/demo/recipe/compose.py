"""Compose training examples: one voice says something, somewhere, into some microphone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from clips import RATE_HZ, Clip, Run, Samples, audible
from noise import Noises, knocks, room
from vocabulary import ALONE, DIGITS, UNKNOWN, phrase
from voices import Voices

FRAME = 320  # samples: one position of the encoder
LONGEST_S = 24.0
ALIKE = ("five", "nine")  # in a telephone's band, most of all; so they come twice as often
T = TypeVar("T")


@dataclass
class Example:
    """A sound of fixed length with what is to be written.

    ``heard`` is how much of ``samples`` was recorded; the rest is padding.
    """

    samples: Samples
    runs: list[Run]
    heard: int
    prompt: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Style:
    """How one example is made: whose clips follow one another, and which pauses are between."""

    voice: str
    kind: str  # digits, words, phrases, spliced
    outside: float  # share of words outside the vocabulary
    run_together: bool = False  # clips are cut to their words, and overlap
    says_oh: bool = False  # for zero


class Composer:
    """Makes examples; the same seed makes the same ones."""

    def __init__(self, clips: list[Clip], seed: int) -> None:
        self.r = np.random.default_rng(seed)
        self._grammar = random.Random(seed)
        self._voices = Voices(clips)
        self._noises = Noises(self.r, self._voices.all)
        self._alone = frozenset(ALONE)

    def _pick(self, items: list[T]) -> T:
        return items[int(self.r.integers(len(items)))]

    def example(self, context: int) -> Example:
        """Make one example for an encoder context (positions of 20 ms)."""
        n, u = context * FRAME, self.r.random()
        cap = min(n - RATE_HZ // 10, int(LONGEST_S * RATE_HZ))
        if u < 0.07:
            return self._silence(n)
        if u < 0.14:
            told = self._sentence(n, cap)
            if told is not None:
                return self._air(self._cut(told))
        if u < 0.15:
            style = Style(self._pick(sorted(self._voices.unknown)), "words", 1.0)
        else:
            style = self._style()
            fast = style.kind in ("digits", "spliced") and self.r.random() < 0.35
            says_oh = self.r.random() < 0.2
            style = replace(style, run_together=fast, says_oh=says_oh)
        example = self._air(self._cut(self._speech(n, cap, style)))
        if self.r.random() < 0.18 and style.outside < 1:
            said = (" ".join(run.text for run in clip.runs) for clip in self._say(style, 8))
            example.prompt = [text for text in said if text != UNKNOWN]
        return example

    def _style(self) -> Style:
        v = self._voices
        kinds = ["human digits", "human words", "human spliced", "fluent", "robot"]
        kind = kinds[self.r.choice(5, p=[0.45, 0.13, 0.11, 0.19, 0.12])]
        if kind == "human digits":
            return Style(
                self._pick(v.digit_people if self.r.random() < 0.75 else v.counters), "digits", 0.01
            )
        if kind == "human words":
            return Style(self._pick(v.people), self._pick(["words", "phrases"]), 0.04)
        if kind == "human spliced":
            return Style(self._pick(v.makers), "spliced", 0.02)
        voice = self._pick(v.fluent if kind == "fluent" else v.robots)
        return Style(voice, self._pick(["digits", "words", "phrases", "phrases", "mixed"]), 0.03)

    def _say(self, style: Style, about: int) -> list[Clip]:
        """Choose clips that make up about so many words."""
        said: list[Clip] = []
        while len(said) < about:
            if self.r.random() < style.outside:
                own = self._voices.unknown.get(style.voice)
                said.append(
                    self._pick(own if own and self.r.random() < 0.7 else self._voices.outside)
                )
            elif style.kind == "spliced":
                said += self._spliced(style)
            else:
                said.append(self._one(style, said))
        return said

    def _one(self, style: Style, said: list[Clip]) -> Clip:
        singles = self._voices.singles[style.voice]
        kind = self._pick(["words", "phrases"]) if style.kind == "mixed" else style.kind
        if kind == "phrases" and self._voices.phrases.get(style.voice):
            return self._pick(self._voices.phrases[style.voice])
        if kind == "digits":
            before = said[-1].runs[-1].text if said else ""
            if before in singles and before in DIGITS and self.r.random() < 0.22:
                return self._pick(singles[before])  # people have numbers like 4 4 0 0
            if self.r.random() < 0.03:  # few people were recorded saying it
                return self._pick(self._pick(self._voices.ohs))
            known = [w for w in (*DIGITS, *ALIKE, "oh") if w in singles]
            digit = self._pick(known)
            if digit == "zero" and style.says_oh:
                return self._pick(singles.get("oh") or self._pick(self._voices.ohs))
            return self._pick(singles[digit])
        # glue words, cut out of fluent speech, are too reduced to be read alone
        known = [w for w in singles if w in self._alone] or list(singles)
        return self._pick(singles[self._pick(known)])

    def _spliced(self, style: Style) -> list[Clip]:
        """Speak a phrase of the grammar with the words that were cut out of somebody's speech."""
        singles = self._voices.singles[style.voice]
        for _ in range(40):
            words = phrase(self._grammar).split()
            if all(singles.get(word) for word in words):
                return [self._pick(singles[word]) for word in words]
        return [self._one(replace(style, kind="words"), [])]

    def _pause(self, style: Style, fluency: float) -> int:
        u = self.r.random()
        if style.run_together and u < 0.92:
            return int(self.r.uniform(-0.07, 0.02) * RATE_HZ)
        if u < (0.9 if style.kind == "spliced" else fluency):
            return int(self.r.uniform(-0.04, 0.1) * RATE_HZ)
        if u < 0.88:
            return int(self.r.uniform(0.08, 0.6) * RATE_HZ)
        return int(self.r.uniform(0.6, 2.2) * RATE_HZ)

    def _speech(self, n: int, cap: int, style: Style) -> Example:
        r, x, runs = self.r, np.zeros(n, np.float32), list[Run]()
        tempo = float(np.clip(r.normal(1.15 if style.run_together else 1, 0.11), 0.78, 1.45))
        fluency, room_for = r.random() * 0.9, int(cap * r.uniform(0.4, 1.0) ** 0.7)
        at = int(
            r.choice([0.02, 0.2, 0.5, 1.0])
            * r.uniform(0.3, 1.2)
            * RATE_HZ
            * min(1, room_for / RATE_HZ / 3)
        )
        alone = r.random() < (0.3 if n <= 512 * FRAME else 0.08)
        if alone and style.outside < 1:  # or a strange voice alone would be taken for strange words
            style = replace(style, outside=0.0)
        for clip in self._say(style, 1 if alone else 60):
            if style.run_together:
                clip = _bare(clip)
            y, spoken = self._paced(clip, tempo * float(np.clip(r.normal(1, 0.03), 0.9, 1.1)))
            if at + len(y) > (cap if not runs else room_for):
                if runs:
                    break
                continue
            x[at : at + len(y)] += y
            runs += [replace(run, begin=run.begin + at, end=run.end + at) for run in spoken]
            at = max(0, at + len(y) + self._pause(style, fluency))
        return Example(x, _joined(runs), n)

    def _paced(self, clip: Clip, tempo: float) -> tuple[Samples, list[Run]]:
        y = audible(clip)
        n = int(len(y) / tempo)
        y = np.interp(np.arange(n) * tempo, np.arange(len(y)), y).astype(np.float32)
        y *= float(10 ** (self.r.normal(0, 2.0) / 20))
        fade = min(80, n // 4)
        y[:fade] *= np.linspace(0, 1, fade, dtype=np.float32)
        y[n - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
        scaled = [
            replace(run, begin=int(run.begin / tempo), end=int(run.end / tempo))
            for run in clip.runs
        ]
        return y, scaled

    def _sentence(self, n: int, cap: int) -> Example | None:
        some = self._voices.sentences[self._pick(sorted(self._voices.sentences))]
        clip = self._pick(some)
        y, runs = self._paced(clip, float(np.clip(self.r.normal(1, 0.08), 0.85, 1.2)))
        if len(y) > cap:
            return None
        at = int(self.r.integers(0, cap - len(y) + 1) * self.r.random())
        x = np.zeros(n, np.float32)
        x[at : at + len(y)] = y
        return Example(x, [replace(run, begin=run.begin + at, end=run.end + at) for run in runs], n)

    def _cut(self, e: Example) -> Example:
        """Now and then let the recording end or begin inside a word, as windows of a stream do."""
        r, u = self.r, self.r.random()
        if u < 0.40 and e.runs:
            k = int(r.integers(len(e.runs)))
            run = e.runs[k]
            early = r.random() < 0.6
            share = r.uniform(0, 0.5) if early else r.uniform(0.92, 1.1)
            at = int(run.begin + (run.end - run.begin) * share)
            at = min(at, e.runs[k + 1].begin) if k + 1 < len(e.runs) else at
            kept = e.runs[:k] + ([] if early else [replace(run, end=min(run.end, at))])
            if run.text == UNKNOWN and early and at - run.begin > RATE_HZ // 4:
                kept.append(replace(run, phones=run.phones[: int(len(run.phones) * share)], end=at))
            e.samples[max(at, 0) :] = 0
            return Example(e.samples, kept, max(at, RATE_HZ // 10))
        if u < 0.48 and len(e.runs) > 1 and e.runs[0].text != UNKNOWN:
            first = e.runs[0]
            at = min(
                int(first.begin + (first.end - first.begin) * r.uniform(0.6, 1.0)), e.runs[1].begin
            )
            x = np.concatenate([e.samples[at:], np.zeros(at, np.float32)])
            kept = [replace(run, begin=run.begin - at, end=run.end - at) for run in e.runs[1:]]
            return Example(x, kept, e.heard)
        return e

    def _air(self, e: Example) -> Example:
        """Put the speech into a room with noise, and set the gain."""
        r, n = self.r, len(e.samples)
        last = max((run.end for run in e.runs), default=RATE_HZ // 10)
        heard = min(e.heard, n)  # a cut word may have reached beyond the end
        if heard == n and r.random() < 0.6:  # the recording ends soon after the last word
            heard = min(
                n, last + int(r.choice([0.02, 0.2, 0.6, 1.2]) * r.uniform(0.5, 1) * RATE_HZ)
            )
        x = e.samples
        x[heard:] = 0
        if e.runs:
            loud = np.concatenate([x[run.begin : run.end] for run in e.runs])
            power = float(np.sqrt(np.mean(loud**2))) + 1e-4
        else:
            power = 0.05
        if r.random() < 0.28:
            x = room(r, x)
        u = r.random()
        if u < 0.6:
            snr_db = r.uniform(4, 16) if u < 0.3 else r.uniform(10, 34)
            x[:heard] += self._noises.piece(r, heard) * power * 10 ** (-snr_db / 20)
        elif u < 0.9:
            x[:heard] += (
                r.standard_normal(heard).astype(np.float32)
                * power
                * 10 ** (-r.uniform(32, 65) / 20)
            )
        x[heard:] = 0
        x *= float(10 ** (r.uniform(-28, 8) / 20))
        return Example(np.clip(x, -1, 1), e.runs, heard)

    def _silence(self, n: int) -> Example:
        r, x = self.r, np.zeros(n, np.float32)
        heard = n if r.random() < 0.5 else int(n * r.uniform(0.1, 1.0))
        if r.random() > 0.12:
            x[:heard] += self._noises.piece(r, heard) * 0.05 * 10 ** (-r.uniform(0, 40) / 20)
        if r.random() < 0.25:
            x[:heard] += knocks(r, heard) * 0.05 * r.random()
        x *= float(10 ** (r.uniform(-28, 14) / 20))
        return Example(np.clip(x, -1, 1), [], heard)


def _bare(clip: Clip) -> Clip:
    """Cut the quiet around a clip's words, 20 ms aside."""
    margin = RATE_HZ // 50
    begin = max(0, clip.runs[0].begin - margin)
    end = min(len(clip.samples), clip.runs[-1].end + margin)
    if end - begin < RATE_HZ // 20:
        return clip
    runs = tuple(replace(run, begin=run.begin - begin, end=run.end - begin) for run in clip.runs)
    return replace(clip, samples=clip.samples[begin:end], runs=runs)


def _joined(runs: list[Run]) -> list[Run]:
    """Write unknown stretches that touch one another once."""
    out: list[Run] = []
    for run in runs:
        if out and run.text == UNKNOWN == out[-1].text and run.begin - out[-1].end < RATE_HZ // 2:
            out[-1] = replace(out[-1], phones=out[-1].phones + run.phones, end=run.end)
        else:
            out.append(run)
    return out
