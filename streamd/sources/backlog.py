"""Blocks that a live source has captured and nobody has consumed yet."""

from collections import deque

from streamd.audio.framer import Block
from streamd.events import GapReason
from streamd.sources import Lost
from streamd.sources.frames import Ended


class Backlog:
    """A queue of blocks, losses and the end, in order; not more than `limit` samples of blocks.

    A block beyond the limit is dropped, and a `Lost` of the right length stands where it was. Old
    blocks are never dropped for new ones: the consumer may be working on what follows from them.
    """

    def __init__(self, *, limit: int, rate_hz: int) -> None:
        self._limit = limit
        self._rate_hz = rate_hz
        self._items: deque[Block | Lost | Ended] = deque()
        self.n_samples = 0
        """How many samples wait."""
        self._n_dropped = 0

    def put(self, item: Block | Lost | Ended) -> None:
        """Take the next item, or drop it when it is a block for which there is no room."""
        if isinstance(item, Lost | Ended):
            self._note_dropped()
        elif self.n_samples + len(item) > self._limit:
            self._n_dropped += len(item)
            return
        else:
            self._note_dropped()
            self.n_samples += len(item)
        self._items.append(item)

    def take(self) -> Block | Lost | Ended | None:
        """Give the oldest item, or None when there is none. What is `Ended` stays so."""
        if not self._items:
            return None
        if isinstance(self._items[0], Ended):
            return self._items[0]
        item = self._items.popleft()
        if not isinstance(item, Lost | Ended):
            self.n_samples -= len(item)
        return item

    def _note_dropped(self) -> None:
        """Put the loss, whole now that it is over, where the blocks were missed."""
        if self._n_dropped:
            duration_ms = max(1, round(self._n_dropped * 1000 / self._rate_hz))
            self._items.append(Lost(duration_ms, GapReason.QUEUE_FULL))
            self._n_dropped = 0
