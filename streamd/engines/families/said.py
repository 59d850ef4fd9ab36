"""What a model of another family says, in the units of the library; and its words one by one.

A word of a hypothesis needs tokens, because the session gives those of committed words back as the
prefix of the next window. Here they are the word's number, so that the recognizer knows which words
of a stream are committed, and then the bytes of its text, so that they can be read by a recognizer
that has never seen the word. The mark that closes the word is the last of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from streamd.language import MARKS
from streamd.types import Samples, TextOptions, Word

_CJK = r"\u3041-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"\s*(?:[{_CJK}][{re.escape(MARKS)}]*|[^\s{_CJK}]+)")
"""A word with the blank before it. In Chinese and Japanese, each character is one."""
_NUMBERED = 256
"""Tokens from here on number a word; those below are bytes."""


@dataclass(frozen=True, slots=True)
class SaidWord:
    """A word with the blank before it; the times count from where the stream or the sound began.

    What the model does not tell is None. It may tell the times of a segment, which its words share.
    """

    text: str
    start_ms: int | None = None
    end_ms: int | None = None
    prob: float | None = None
    shares_time: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """All words of a stream or a piece of sound; a stream does not change the first `n_stable`.

    `language` is empty if the model does not tell it.
    """

    words: tuple[SaidWord, ...] = ()
    n_stable: int = 0
    language: str = ""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model can do.

    `arch` is its architecture, `variant` its name by the maker, `device` where it runs, and
    `languages` are codes; none: they are not known. `timestamps` says what has times: "none",
    "segment", "word" or "token". A run takes at most `longest_ms` of sound (0: any length). A
    model with `look_aheads_ms` hears so much after a word before it decides; `look_ahead_ms` is
    what was chosen, None if there is no choice.
    """

    arch: str
    variant: str
    device: str
    languages: tuple[str, ...] = ()
    streams: bool = False
    translates: bool = False
    detects_language: bool = False
    takes_vocabulary: bool = False
    takes_prompt: bool = False
    timestamps: str = "none"
    longest_ms: int = 0
    look_aheads_ms: tuple[int, ...] = ()
    look_ahead_ms: int | None = None


class FamilyStream(Protocol):
    """An open stream; whoever drops it without closing it has closed it."""

    def feed(self, samples: Samples) -> None:
        """Take the next samples, (n,), which are finite."""

    def settle(self) -> int:
        """Have the model say all that it has heard; return how many ms of silence that took."""

    def said(self) -> Said:
        """Return all words since the stream began."""

    def close(self) -> None:
        """Free what it takes; what was said stays."""


class FamilyModel(Protocol):
    """A model that is open. Its streams may be used at a time, each by one thread."""

    @property
    def abilities(self) -> Abilities:
        """What it can do."""

    def begin(self, options: TextOptions) -> FamilyStream:
        """Open a stream; only for models that stream."""

    def run(self, samples: Samples, options: TextOptions) -> Said:
        """Transcribe a piece of sound, (n,) finite samples."""


def split(text: str) -> list[str]:
    """Return the words of a text, each with the blank before it; together they are the text."""
    return _WORD.findall(text.rstrip())


def tokens_of(text: str, number: int) -> tuple[int, ...]:
    """Return the tokens of a word, the `number`-th of its stream."""
    return (_NUMBERED + number, *text.encode())


def number_of(tokens: Sequence[int]) -> int | None:
    """Return the number of the last word of these, or None if there is none."""
    return next((token - _NUMBERED for token in reversed(tokens) if token >= _NUMBERED), None)


def text_of_tokens(tokens: Sequence[int]) -> str:
    """Return the text that tokens spell; of tokens of another recognizer, it is nonsense."""
    return bytes(token for token in tokens if 0 <= token < _NUMBERED).decode(errors="replace")


def are_timed(words: Sequence[SaidWord]) -> bool:
    """Return whether the model tells the times of all words."""
    return all(word.start_ms is not None and word.end_ms is not None for word in words)


def word_of(
    said: SaidWord, number: int, place: tuple[int, int], *, stable: bool | None, shares_time: bool
) -> Word:
    """Return a word of a hypothesis, in frames of the stream."""
    mark = said.text[-1:] if said.text[-1:] in MARKS and len(said.text.strip()) > 1 else ""
    return Word(
        said.text,
        *place,
        prob=said.prob,
        tokens=tokens_of(said.text, number),
        n_mark=len(mark.encode()),
        stable=stable,
        shares_time=shares_time or said.shares_time,
    )


def shared(words: Sequence[str], start: int, end: int) -> list[tuple[int, int]]:
    """Return when words of unknown times are said: they share a span by their length."""
    total, done, places = sum(map(len, words)), 0, []
    for word in words:
        begin = start + (end - start) * done // max(1, total)
        done += len(word)
        places.append((begin, start + (end - start) * done // max(1, total)))
    return places


def behind(given: Sequence[str], words: Sequence[str]) -> int:
    """Return how many of the first `words` say what was `given`; the others come behind it.

    Usually they are the same. Where the model has changed its mind, they are those with the fewest
    insertions, deletions and substitutions.
    """
    old, new = ([_letters(word) for word in each] for each in (given, words))
    if new[: len(old)] == old:
        return len(old)
    costs = list(range(len(new) + 1))
    for n, word in enumerate(old, 1):
        before, costs[0] = costs[0], n
        for i, other in enumerate(new, 1):
            cost = min(before + (word != other), costs[i] + 1, costs[i - 1] + 1)
            before, costs[i] = costs[i], cost
    return min(range(len(costs)), key=lambda n: (costs[n], abs(n - len(old))))


def _letters(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum()) or word.strip()
