"""What the decoder is told of the text before a window."""

from collections.abc import Sequence


class Prompt:
    """The newest tokens that were said, timestamps included, behind an initial prompt."""

    def __init__(self, initial: Sequence[int], *, carry: bool, longest: int) -> None:
        """`carry`: the initial prompt stays for all windows; `longest`: in tokens."""
        self._always = tuple(initial) if carry else ()
        self._told = () if carry else tuple(initial)
        self._room = max(0, longest - len(self._always))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt of the next window."""
        return (*self._always, *self._told)

    def remember(self, tokens: Sequence[int]) -> None:
        """Add what a window said."""
        told = (*self._told, *tokens)
        self._told = told[max(0, len(told) - self._room) :]

    def forget(self) -> None:
        """The text so far shall not influence the next windows."""
        self._told = ()
