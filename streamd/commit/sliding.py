"""whisper.cpp's ``stream``: nothing is stable until its line ends.

The line is an utterance of fixed length (`EndpointOptions.exact_cut`), so all that this policy has
to do is nothing: the last window of the line commits every word.
"""

from collections.abc import Sequence

from streamd.types import Word


class Sliding:
    """Commits nothing before the line ends."""

    def commit(self, words: Sequence[Word], *, now: int, silence: int) -> int:
        """Commit no word (see `CommitPolicy`)."""
        return 0

    def reset(self) -> None:
        """Do nothing: there is nothing to forget."""
