"""When a word becomes stable: the rules that commit words of a stream.

`LocalAgreement` is the default, `AlignAtt` needs one hypothesis only, `Sliding` is whisper.cpp's
``stream``. A new rule is a class with the interface of `CommitPolicy`.
"""

import unicodedata
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from streamd.options import AgreementOptions, AlignAttOptions
from streamd.types import Word


class CommitPolicy(Protocol):
    """Decides how many words of a new hypothesis may be shown as committed."""

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Count the leading words that will never change.

        `words` are the uncommitted words of the newest hypothesis; `now` is the window's end and
        `silence` the frames of silence the window ends with (0 while somebody speaks). The words
        counted are taken out of what the next call gets.
        """
        ...

    def reset(self) -> None:
        """Forget everything: a new utterance begins."""
        ...


COMPLETE_AFTER = 15
"""After so many frames (300 ms) of silence no word is half heard any more."""


def normalised(text: str) -> str:
    """The word without case, punctuation and blanks: "And," agrees with "and"."""
    letters = (c for c in text.casefold() if unicodedata.category(c)[0] not in "PZ")
    return "".join(letters) or text.strip()


def agreement(hypotheses: Sequence[Sequence[str]]) -> int:
    """Length of the longest common prefix of all the (normalised) word lists."""
    same = takewhile(lambda column: len(set(column)) == 1, zip(*hypotheses, strict=False))
    return sum(1 for _ in same)


def settled(words: Sequence[Word], before: int) -> int:
    """How many leading words end at frame `before` or earlier."""
    return sum(1 for _ in takewhile(lambda word: word.end <= before, words))


class LocalAgreement:
    """Commits the words on which the last hypotheses agree, once they are old enough."""

    def __init__(self, options: AgreementOptions | None = None) -> None:
        self._options = options or AgreementOptions()
        self._history: deque[list[str]] = deque(maxlen=self._options.agree)
        self._heard = 0  # the end of the newest window in the history

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Count the words to commit (see `CommitPolicy`)."""
        if silence >= COMPLETE_AFTER:
            self._history.clear()
            return len(words)
        n = max(self._agreed(words, now), self._confident(words, now))
        if silence == 0:
            n = min(n, len(words) - 1)  # the newest word may still be growing
        n = max(n, 0)
        for i, seen in enumerate(self._history):
            self._history[i] = seen[n:]
        return n

    def reset(self) -> None:
        """Forget the hypotheses: a new utterance begins."""
        self._history.clear()
        self._heard = 0

    def _agreed(self, words: Sequence[Word], now: int) -> int:
        names = [normalised(word.text) for word in words]
        if self._history and now - self._heard < self._options.min_progress:
            self._history[-1] = names  # too soon to count as a second opinion
            return 0
        self._history.append(names)
        self._heard = now
        if len(self._history) < self._options.agree:
            return 0
        return min(agreement(list(self._history)), settled(words, now - self._options.hold))

    def _confident(self, words: Sequence[Word], now: int) -> int:
        options = self._options
        old = words[: settled(words, now - options.confident_age)]
        return sum(1 for _ in takewhile(lambda word: word.prob >= options.confident_prob, old))


class AlignAtt:
    """Commits the words that end `frame_threshold` frames before the window's end."""

    def __init__(self, options: AlignAttOptions | None = None) -> None:
        self._options = options or AlignAttOptions()
        self._committed = 0

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Count the words to commit (see `CommitPolicy`)."""
        if words and words[0].start < self._committed - self._options.rewind:
            return 0
        complete = silence >= COMPLETE_AFTER
        n = settled(words, now if complete else now - self._options.frame_threshold)
        if not complete:
            n = min(n, max(0, len(words) - 1))  # the newest word may still be growing
        if n:
            self._committed = words[n - 1].end
        return n

    def reset(self) -> None:
        """Forget where the attention was: a new utterance begins."""
        self._committed = 0


class Sliding:
    """Commits nothing before the line ends."""

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Commit no word (see `CommitPolicy`)."""
        return 0

    def reset(self) -> None:
        """Do nothing: there is nothing to forget."""
