"""Who says what: the training clips by voice and word."""

from __future__ import annotations

from collections import defaultdict

from clips import Clip
from vocabulary import DIGITS


class Voices:
    """All clips for training, by voice and word."""

    def __init__(self, clips: list[Clip]) -> None:
        self.singles: dict[str, dict[str, list[Clip]]] = defaultdict(lambda: defaultdict(list))
        self.phrases: dict[str, list[Clip]] = defaultdict(list)
        self.unknown: dict[str, list[Clip]] = defaultdict(list)
        self.sentences: dict[str, list[Clip]] = defaultdict(list)
        self.all = [clip for clip in clips if not clip.held]
        for clip in self.all:
            if clip.kind in ("digit", "word"):
                self.singles[clip.voice][clip.runs[0].text].append(clip)
            else:
                named = {
                    "phrase": self.phrases,
                    "unknown": self.unknown,
                    "sentence": self.sentences,
                }
                named[clip.kind][clip.voice].append(clip)
        self.outside = [clip for some in self.unknown.values() for clip in some]

        def saying(words: list[str], least: int) -> list[str]:
            said = self.singles
            return sorted(
                v for v in said if sum(len(said[v].get(w, ())) > 0 for w in words) >= least
            )

        counters = saying(DIGITS, 8)
        self.counters = [v for v in counters if not _synthetic(v)]
        recorded = [v for v in self.counters if v.startswith("fsdd")]
        # about as often as all the speakers that were made of them
        self.digit_people = recorded + 3 * [v for v in recorded if "~" not in v]
        people = [v for v in self.singles if not _synthetic(v)]
        self.people = sorted(v for v in people if len(self.singles[v]) >= 20)
        self.makers = sorted(v for v in people if len(self.singles[v]) >= 90)
        self.robots = sorted(v for v in self.singles if v.startswith("espeak"))
        self.ohs = [said["oh"] for v, said in self.singles.items() if said.get("oh")]
        self.fluent = sorted(v for v in self.singles if v.startswith(("flite", "festival")))


def _synthetic(voice: str) -> bool:
    return voice.startswith(("espeak", "flite", "festival", "pico"))
