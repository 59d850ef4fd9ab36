"""When a word becomes stable: `local_agreement` (default), `align_att`, `sliding`."""

from collections.abc import Sequence
from typing import Protocol

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
