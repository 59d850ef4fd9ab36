"""AlignAtt: commit what the model heard well before the edge of the audio.

Papi et al. 2023 (arXiv 2305.11408), for Whisper: Simul-Whisper (arXiv 2406.10052) and
SimulStreaming. Each word's place comes from the decoder's attention; a word that attends to audio
which ends `threshold` frames before the window does will not be heard better later. One hypothesis
is enough.
"""

from collections.abc import Sequence

from streamd.commit.words import HEARD_OUT, settled
from streamd.types import Word


class AlignAtt:
    """Commits the words that end `threshold` frames before the window's end."""

    def __init__(self, threshold: int = 25, rewind: int = 200) -> None:
        """`rewind`: when the attention jumps back further than this, the hypothesis is ignored."""
        self._threshold, self._rewind = threshold, rewind
        self._committed = 0

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Count the words to commit (see `CommitPolicy`)."""
        if words and words[0].start < self._committed - self._rewind:
            return 0
        heard_out = silence >= HEARD_OUT
        n = settled(words, now if heard_out else now - self._threshold)
        if not heard_out:
            n = min(n, max(0, len(words) - 1))  # the newest word may still be growing
        if n:
            self._committed = words[n - 1].end
        return n

    def reset(self) -> None:
        """Forget where the attention was: a new utterance begins."""
        self._committed = 0
