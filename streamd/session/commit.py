"""When a word becomes stable. Another rule is a class with the interface of `CommitPolicy`."""

import unicodedata
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from streamd.options import AgreementOptions
from streamd.types import Word


class CommitPolicy(Protocol):
    """Decides how many words of a new hypothesis will never change."""

    def propose(
        self, words: Sequence[Word], *, now: int, silence: int, first: int | None = None
    ) -> int:
        """Return how many of the leading words to commit; `committed` must be called next.

        `words` are the uncommitted words of the last hypothesis, `now` is the end of its window,
        and `silence` is how many frames of silence the window ends with (0 during speech). `first`
        is where the decoder heard the first of them, if that is not where it starts: words are
        moved behind those that are committed.
        """
        ...

    def committed(self, n: int) -> None:
        """Learn that the first `n` of these words are committed; the next call has the others.

        The session may commit more than was proposed.
        """
        ...

    def reset(self) -> None:
        """Forget everything: a new utterance begins."""
        ...


COMPLETE_AFTER = 15
"""Frames of silence (300 ms) after which no word is incomplete: without, finals are 0.2 s later."""


def normalised(text: str) -> str:
    """The word without case, punctuation and blanks, so that "And," agrees with "and"."""
    letters = (c for c in text.casefold() if unicodedata.category(c)[0] not in "PZ")
    return "".join(letters) or text.strip()


def agreement(hypotheses: Sequence[Sequence[str]]) -> int:
    """Length of the longest common prefix of all the (normalised) word lists."""
    same = takewhile(lambda column: len(set(column)) == 1, zip(*hypotheses, strict=False))
    return sum(1 for _ in same)


def count_ended(words: Sequence[Word], by: int) -> int:
    """How many leading words end at frame `by` or earlier."""
    return sum(1 for _ in takewhile(lambda word: word.end <= by, words))


class LocalAgreement:
    """Commits the words on which the last hypotheses agree.

    LocalAgreement-n of Liu et al. 2020 (arXiv 2005.11185) and Machacek et al. 2023 (arXiv
    2307.14743). That the last word and improbable ones wait is an addition: agreement alone
    commits words of which only the beginning was in the audio.
    """

    def __init__(self, options: AgreementOptions | None = None) -> None:
        self._options = options or AgreementOptions()
        self._history: deque[list[str]] = deque(maxlen=self._options.agree)
        self._now = 0  # the end of the last window in the history

    def propose(
        self, words: Sequence[Word], *, now: int, silence: int, first: int | None = None
    ) -> int:
        is_complete = silence >= COMPLETE_AFTER
        if is_complete:
            self._history.clear()
        is_early = bool(self._history) and now - self._now < self._options.min_progress
        if is_early:  # about almost the same audio: it replaces the last hypothesis
            self._history.pop()
        else:
            self._now = now
        self._history.append([normalised(word.text) for word in words])
        sure = self._sure(words, now)
        if is_complete:  # all words are, but later audio may change a doubtful one
            return sure
        if is_early or len(self._history) < self._options.agree:
            return 0
        n = min(agreement(list(self._history)), sure)
        if silence == 0:
            n = min(n, len(words) - 1)  # the last word may still be growing
        return max(n, 0)

    def committed(self, n: int) -> None:
        """Leave these words out of what the next hypothesis is compared with."""
        for i, seen in enumerate(self._history):
            self._history[i] = seen[n:]

    def reset(self) -> None:
        self._history.clear()
        self._now = 0

    def _sure(self, words: Sequence[Word], now: int) -> int:
        """How many leading words are probable, or old enough for more audio not to help."""
        options = self._options
        old = now - options.doubtful_age
        is_sure = lambda word: not word.is_doubtful(options.doubtful_prob) or word.end <= old  # noqa: E731
        return sum(1 for _ in takewhile(is_sure, words))


FRAME_THRESHOLD, REWIND = 25, 200
"""Frames: the least distance of a committed word from the end of the window, and how far back
attention may jump. Both are SimulStreaming's."""


class AlignAtt:
    """Commits the words that end `FRAME_THRESHOLD` frames before the window's end.

    The place of a word comes from the decoder's attention, and more audio would not improve a word
    well before the edge; so one hypothesis is enough. Papi et al. 2023 (arXiv 2305.11408), for
    Whisper: Simul-Whisper (arXiv 2406.10052) and SimulStreaming.
    """

    def __init__(self) -> None:
        self._words: Sequence[Word] = ()
        self._committed = 0

    def propose(
        self, words: Sequence[Word], *, now: int, silence: int, first: int | None = None
    ) -> int:
        self._words = words
        first = words[0].start if words and first is None else first
        if first is not None and first < self._committed - REWIND:
            return 0  # the attention jumped back: the decoder has lost its place
        complete = silence >= COMPLETE_AFTER
        n = count_ended(words, now if complete else now - FRAME_THRESHOLD)
        if not complete:
            n = min(n, max(0, len(words) - 1))  # the last word may still be growing
        return n

    def committed(self, n: int) -> None:
        """Note where the attention was."""
        if n:
            self._committed = self._words[n - 1].end

    def reset(self) -> None:
        self._committed = 0


class NativeRule:
    """Commits the words that the model itself will not change, if it says which (`Word.stable`).

    Otherwise another rule decides. The words that a model still may change wait, also in a pause.
    """

    def __init__(self, otherwise: CommitPolicy) -> None:
        self._otherwise = otherwise

    def propose(
        self, words: Sequence[Word], *, now: int, silence: int, first: int | None = None
    ) -> int:
        n = self._otherwise.propose(words, now=now, silence=silence, first=first)
        if all(word.stable is None for word in words):
            return n
        return sum(1 for _ in takewhile(lambda word: word.stable, words))

    def committed(self, n: int) -> None:
        self._otherwise.committed(n)

    def reset(self) -> None:
        self._otherwise.reset()
