"""Which language a stream is in, from what the recognizer detects in its utterances."""

from streamd.types import Hypothesis

SURE = 0.5
"""Probability below which a language is asked for again: of the first two seconds of 46 recordings
in nine languages, every language detected with at least this probability was right."""


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
        """Take the language of the first `n_frames`, unless it or the hypothesis is doubtful."""
        sure = hypothesis.language_prob >= SURE and not hypothesis.suspect
        if not self._decided and n_frames >= self._after and sure:
            self.known, self._decided = hypothesis.language, True
