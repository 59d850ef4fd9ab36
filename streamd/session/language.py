"""The language of a stream: detected once in each utterance, when it is long enough."""

from streamd.types import Hypothesis


class Language:
    """Remembers the language for the recognizer, which changes it only if it is clear."""

    def __init__(self, after: int) -> None:
        """`after`: frames of an utterance that are enough to detect its language."""
        self._after = after
        self._decided = False
        self.known = ""
        """The language of the last utterance that was long enough, or empty."""

    def begin(self) -> None:
        """Allow for another language: a new utterance begins."""
        self._decided = False

    def detect(self, n_frames: int) -> bool:
        """Whether to detect the language in the first `n_frames` of an utterance."""
        return not self.known or (not self._decided and n_frames >= self._after)

    def learn(self, hypothesis: Hypothesis, n_frames: int) -> None:
        """Take the language of the first `n_frames`, unless the hypothesis is suspect."""
        if not self._decided and n_frames >= self._after and not hypothesis.suspect:
            self.known, self._decided = hypothesis.language, True
