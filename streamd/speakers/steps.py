"""Which audio is heard when, to tell speakers apart.

What the gate says of each frame decides, so that it does not matter how fast audio arrives.
"""

from collections import deque
from dataclasses import dataclass

FIRST, EVERY = 50, 150
"""Frames after a pause that are heard first (1 s), and then at a time (3 s)."""
WHOLE = 400
"""As both, for a whole recording (8 s): voices end with their step, and with 3 s more of their ends
are too short to be told apart: 9.8 instead of 8.6 % of the time of built dialogues is wrong."""
CONTEXT = 75
"""Frames before them that are heard again, if there was no pause, so that a local speaker is known
from before."""
ATTACK, QUIET = 5, 6
"""Frames that speech may have begun before the gate opens, and silent frames that end it, of which
the last window of an utterance has as many: who says its words is heard with it. With 12 and 12,
voices of several speakers were taken for one: 23 instead of 18 % of the time is wrong."""


@dataclass(frozen=True, slots=True)
class HearingStep:
    """Frames `start` to `end` are heard, of which those from `new` on are new.

    That is known at frame `due`, and depends on nothing after it.
    """

    start: int
    new: int
    end: int
    due: int


class HearingSteps:
    """Which audio is heard when: what the gate says of each frame decides, and nothing else."""

    def __init__(self, *, whole: bool = False) -> None:
        self._first, self._every = (WHOLE, WHOLE) if whole else (FIRST, EVERY)
        self._waiting: deque[HearingStep] = deque()
        self._now = self._new = self._begin = 0
        self._is_open = False

    def push(self, end: int, silence: int, late: int = 0) -> None:
        """Take what the gate says of the frame before `end` (`GatedFrame`)."""
        self._now = end
        if silence == 0 and not self._is_open:
            self._is_open = True
            self._new = self._begin = max(self._new, self._now - ATTACK - late)
        if silence == 0:
            is_first = self._new == self._begin
            if self._now - self._new >= (self._first if is_first else self._every):
                self._add(self._now)
        elif self._is_open and silence >= QUIET:
            self._add(self._now - silence)
            self._is_open = False

    def flush(self) -> None:
        """What was said so far is heard now."""
        if self._is_open:
            self._add(self._now)

    def take(self, until: int) -> list[HearingStep]:
        """Take the steps that are due at frame `until`, in order."""
        due = []
        while self._waiting and self._waiting[0].due <= until:
            due.append(self._waiting.popleft())
        return due

    @property
    def oldest(self) -> int:
        """The frame from which on audio is still to be heard."""
        if self._waiting:
            return self._waiting[0].start
        if self._is_open:
            return max(self._begin, self._new - CONTEXT)
        return max(self._new, self._now - CONTEXT)  # speech may begin late (`GatedFrame.late`)

    def _add(self, end: int) -> None:
        if end > self._new:
            start = max(self._begin, self._new - CONTEXT)
            self._waiting.append(HearingStep(start, self._new, end, self._now))
            self._new = end
