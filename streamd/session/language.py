"""Which language a stream is in: heard once in an utterance, when enough was said, then held.

The recognizer is told the language that was spoken before, and whether to listen for another. It
does not change within an utterance, and at the beginning of the next one only to a language that is
clearly likelier (`streamd.search.decode.spoken`).
"""

from streamd.types import Hypothesis


class Language:
    """Remembers the language for the recognizer; knows no probabilities."""

    def __init__(self, after: int) -> None:
        """`after`: frames of an utterance that say which language it is in."""
        self._after = after
        self._decided = False
        self.known = ""
        """The language of the last utterance that was long enough, or nothing."""

    def begin(self) -> None:
        """A new utterance begins: it may be in another language."""
        self._decided = False

    def detect(self, n_frames: int) -> bool:
        """Whether the recognizer should listen for the language, so far into the utterance."""
        return not self.known or (not self._decided and n_frames >= self._after)

    def learn(self, hypothesis: Hypothesis, n_frames: int) -> None:
        """Take in what was heard so far into the utterance; what is suspect teaches nothing."""
        if not self._decided and n_frames >= self._after and not hypothesis.suspect:
            self.known, self._decided = hypothesis.language, True
