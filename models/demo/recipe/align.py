"""Forced alignment: find when each word of a known text is heard.

Uses the CMU en-us acoustic model and dictionary that come with the ``pocketsphinx`` package (BSD).
Words outside the dictionary get their phones from flite's letter-to-sound rules.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pocketsphinx
from clips import RATE_HZ, Samples

_FLITE_PHONES = {"ax": "AH", "dx": "T", "el": "AH L", "em": "AH M", "en": "AH N", "pau": ""}
_PRONOUNCED = {"athena": "AH TH IY N AH", "xray": "EH K S R EY", "foxtrot": "F AA K S T R AA T"}
_VARIANT = re.compile(r"\(\d+\)$")
_SAY = {str(i): word for i, word in enumerate(
    "zero one two three four five six seven eight nine ten".split())}  # fmt: skip


class Aligned(NamedTuple):
    """A word, where it is heard (samples), how sure the aligner is (0..1), and its phones."""

    word: str
    begin: int
    end: int
    probability: float
    phones: tuple[str, ...]


def spoken(text: str) -> list[str]:
    """Split a printed text into lower-case words as they are said."""
    s = text.lower().replace("’", "'")
    for printed, said in (("mr.", "mister"), ("mrs.", "missus"), ("#", " pound ")):
        s = s.replace(printed, said)
    s = re.sub(r"\d+", lambda m: _SAY.get(m[0], " ".join(_SAY[c] for c in m[0])), s)
    return re.sub(r"(^| )'|'( |$)", " ", re.sub(r"[^a-z']", " ", s)).split()


@cache
def _dictionary() -> dict[str, str]:
    path = Path(pocketsphinx.get_model_path()) / "en-us" / "cmudict-en-us.dict"
    entries = (line.split(maxsplit=1) for line in path.read_text().splitlines())
    return {word: phones.strip() for word, phones in entries} | _PRONOUNCED


@cache
def phones_of(word: str) -> tuple[str, ...]:
    """Return a word's usual phones (ARPAbet), by rule when the dictionary lacks it."""
    if word not in _dictionary():
        command = ["flite", "-ps", "-t", word, "none"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        _dictionary()[word] = " ".join(_FLITE_PHONES.get(p, p.upper()) for p in said)
    return tuple(_dictionary()[word].split())


class Aligner:
    """Aligns one clip after the other."""

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder(
            lm=None, beam=1e-100, pbeam=1e-100, wbeam=1e-80, loglevel="FATAL"
        )
        self._known: set[str] = set()

    def __call__(self, x: Samples, words: list[str]) -> list[Aligned] | None:
        """Return the words with their times, or None where the text does not fit the sound."""
        for word in set(words) - self._known:
            if self._decoder.lookup_word(word) is None:
                self._decoder.add_word(word, " ".join(phones_of(word)), update=True)
            self._known.add(word)
        self._decoder.set_align_text(" ".join(words))
        self._decoder.start_utt()
        # 100 ms of silence at both ends give the first and last word something to lean on
        margin = np.zeros(RATE_HZ // 10, np.float32)
        sound = np.concatenate([margin, x, margin])
        self._decoder.process_raw((sound * 32767).astype("<i2").tobytes(), full_utt=True)
        self._decoder.end_utt()
        try:
            segments = [s for s in self._decoder.seg() if s.word[0] not in "<[+("]
        except TypeError:  # no path through the text: seg() is None
            return None
        if [_VARIANT.sub("", s.word) for s in segments] != words:
            return None
        return [self._aligned(s, len(x)) for s in segments]

    def _aligned(self, segment: pocketsphinx.Segment, length: int) -> Aligned:
        frame, margin = RATE_HZ // 100, RATE_HZ // 10
        begin = segment.start_frame * frame - margin
        end = (segment.end_frame + 1) * frame - margin
        phones = tuple(_dictionary().get(segment.word, "").split())
        word = _VARIANT.sub("", segment.word)
        begin, end = max(0, min(begin, length)), max(0, min(end, length))
        return Aligned(word, begin, end, float(segment.prob), phones or phones_of(word))
