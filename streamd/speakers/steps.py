"""Schedule which audio the speaker models process, and when.

Only the gate's decisions about frames count, so the speed at which audio arrives does not matter.
"""

from collections import deque
from dataclasses import dataclass

FIRST, EVERY = 50, 150
"""Frames in the first step after a pause (1 s), and in each later step (3 s)."""
WHOLE = 400
"""Replaces both for a whole recording (8 s). Voices end with their step; with steps of 3 s, more of
their ends are too short to be told apart: 9.8 instead of 8.6 % of built dialogues is wrong."""
CONTEXT = 75
"""Frames before a step that are processed again if there was no pause, to match its local speakers
with those of the step before."""
ATTACK, QUIET = 5, 6
"""`ATTACK`: frames by which speech may begin before the gate opens. `QUIET`: silent frames that end
speech, as many as the last window of an utterance has, so that its speakers are known with it. With
12 and 12, several speakers were taken for one: 23 instead of 18 % of the time is wrong."""


@dataclass(frozen=True, slots=True)
class HearingStep:
    """A step processes frames `start` to `end`, of which those from `new` on are new.

    It is due at frame `due`, and depends on nothing after it.
    """

    start: int
    new: int
    end: int
    due: int


class HearingSteps:
    """The steps of one stream, from the gate's decisions alone."""

    def __init__(self, *, whole: bool = False) -> None:
        self._first, self._every = (WHOLE, WHOLE) if whole else (FIRST, EVERY)
        self._waiting: deque[HearingStep] = deque()
        self._now = self._new = self._begin = 0
        self._is_open = False

    def push(self, end: int, silence: int, late: int = 0) -> None:
        """Add the gate's decision about the frame that ends at `end` (`GatedFrame`)."""
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
        """Make a step of what was said so far."""
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
        """The first frame that later steps need."""
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
