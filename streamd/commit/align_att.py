"""AlignAtt: commit what the model heard well before the edge of the audio.

Papi et al. 2023 (arXiv 2305.11408), for Whisper: Simul-Whisper (arXiv 2406.10052) and
SimulStreaming. Each word's place comes from the decoder's attention; a word that attends to audio
which ends `frame_threshold` frames before the window does will not be recognised better later. One
hypothesis is enough.
"""

from collections.abc import Sequence

from streamd.commit.words import HEARD_OUT, settled
from streamd.options import AlignAttOptions
from streamd.types import Word


class AlignAtt:
    """Commits the words that end `frame_threshold` frames before the window's end."""

    def __init__(self, options: AlignAttOptions | None = None) -> None:
        self._options = options or AlignAttOptions()
        self._committed = 0

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Count the words to commit (see `CommitPolicy`)."""
        if words and words[0].start < self._committed - self._options.rewind:
            return 0
        heard_out = silence >= HEARD_OUT
        n = settled(words, now if heard_out else now - self._options.frame_threshold)
        if not heard_out:
            n = min(n, max(0, len(words) - 1))  # the newest word may still be growing
        if n:
            self._committed = words[n - 1].end
        return n

    def reset(self) -> None:
        """Forget where the attention was: a new utterance begins."""
        self._committed = 0
