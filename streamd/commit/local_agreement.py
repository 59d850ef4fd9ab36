"""LocalAgreement-n: commit what n hypotheses in a row begin with (the default policy).

Liu et al. 2020 (arXiv 2005.11185); Machacek et al. 2023 (arXiv 2307.14743), whose rule is sharpened
here by the age of the words: agreement alone commits words that the recognizer has only half heard.
"""

from collections import deque
from collections.abc import Sequence

from streamd.commit.words import agreement, normalised, settled
from streamd.types import Word

SILENCE = 15
"""After 300 ms of silence nothing is half heard any more: everything is committed."""
CONFIDENT_PROB = 0.95
CONFIDENT_AGE = 50
"""Words of at least this mean probability that ended a second ago are committed when seen once."""


class LocalAgreement:
    """Commits the words on which the last `agree` hypotheses agree, once they are `hold` old."""

    def __init__(self, agree: int = 2, hold: int = 12, min_progress: int = 15) -> None:
        """`hold` and `min_progress` (new audio between two hypotheses that may agree) in frames."""
        self._agree, self._hold, self._min_progress = agree, hold, min_progress
        self._history: deque[list[str]] = deque(maxlen=agree)
        self._heard = 0  # the end of the newest window in the history

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Count the words to commit (see `CommitPolicy`)."""
        if silence >= SILENCE:
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
        if self._history and now - self._heard < self._min_progress:
            self._history[-1] = names  # too soon to count as a second opinion
            return 0
        self._history.append(names)
        self._heard = now
        if len(self._history) < self._agree:
            return 0
        return min(agreement(list(self._history)), settled(words, now - self._hold))

    @staticmethod
    def _confident(words: Sequence[Word], now: int) -> int:
        old = words[: settled(words, now - CONFIDENT_AGE)]
        sure = (i for i, word in enumerate(old) if word.prob < CONFIDENT_PROB)
        return next(sure, len(old))
