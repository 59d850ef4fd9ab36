"""LocalAgreement-n: commit what n hypotheses in a row begin with (the default policy).

Liu et al. 2020 (arXiv 2005.11185); Machacek et al. 2023 (arXiv 2307.14743), whose rule is sharpened
here by the age of the words: agreement alone commits words that the recognizer has only half heard.
"""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from streamd.commit.words import HEARD_OUT, agreement, normalised, settled
from streamd.options import AgreementOptions
from streamd.types import Word


class LocalAgreement:
    """Commits the words on which the last hypotheses agree, once they are old enough."""

    def __init__(self, options: AgreementOptions | None = None) -> None:
        self._options = options or AgreementOptions()
        self._history: deque[list[str]] = deque(maxlen=self._options.agree)
        self._heard = 0  # the end of the newest window in the history

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Count the words to commit (see `CommitPolicy`)."""
        if silence >= HEARD_OUT:
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
