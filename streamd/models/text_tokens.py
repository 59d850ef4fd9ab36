"""A model's text tokens, in little memory: a dict of them takes 5 MB, tiktoken's tables 13."""

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise

import numpy as np


class TextTokens:
    """The bytes of text tokens, in the order of their ids, and the id of each. Immutable.

    `tokens[id]` needs an id from 0 on that is less than the length; for the other way there is
    `find`.
    """

    __slots__ = ("_block", "_ends", "_hashes", "_order", "longest")

    def __init__(self, tokens: Iterable[bytes]) -> None:
        """`tokens` are all different, and the first one has the id 0."""
        every = list(tokens)
        self._block = b"".join(every)
        self._ends = np.fromiter(accumulate(map(len, every), initial=0), np.int32)
        hashes = np.fromiter(map(hash, every), np.int64)
        self._order = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes = hashes[self._order]
        self.longest = max(map(len, every), default=0)
        """Bytes of the longest token."""

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[bytes]:
        return (self._block[begin:end] for begin, end in pairwise(self._ends.tolist()))

    def __getitem__(self, number: int) -> bytes:
        begin, end = self._ends[number : number + 2].tolist()
        return self._block[begin:end]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextTokens) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._block)

    def find(self, token: bytes) -> int | None:
        """Return the id of a token, or None."""
        return self.among([token]).get(token)

    def among(self, pieces: Iterable[bytes]) -> dict[bytes, int]:
        """Return the ids of those of the `pieces` that are tokens."""
        asked = list(pieces)
        hashes = np.fromiter(map(hash, asked), np.int64)
        first, last = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        found = {}
        for at in np.flatnonzero(first < last).tolist():
            for number in self._order[first[at] : last[at]].tolist():
                if self[number] == asked[at]:
                    found[asked[at]] = number
        return found

    def packed(self) -> tuple[bytes, list[int]]:
        """Return the bytes of all tokens, and where each of them begins, for `unpacked`."""
        return self._block, self._ends.tolist()


def unpacked(packed: tuple[bytes, list[int]]) -> TextTokens:
    """Return the tokens that were `packed`."""
    block, ends = packed
    return TextTokens(block[begin:end] for begin, end in pairwise(ends))
