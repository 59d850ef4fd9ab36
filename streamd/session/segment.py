"""The transcription of one utterance: the stages between its windows.

What the session does with the windows moves the segment from one `Stage` to the next:

- READING: no window is out. One may become due.
- OUT: the recognizer has a window. The text stays as it is until it comes back.
- PREPARED: the hypothesis of a pause will be the final if the silence lasts. No window is due. The
  utterance is ANSWERED (`streamd.session.utterance`).
- DONE: its final was published, or there are no words.

Every last window that comes back ends the utterance, prepares its final, is too late because of
later audio, or moves the text's anchor. So their number is finite.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from streamd.session.segmenter import Segmenter
from streamd.session.text import SpokenText
from streamd.session.utterance import State, Utterance
from streamd.types import Hypothesis, following


class Stage(Enum):
    """Where a segment is between two windows."""

    READING = auto()
    OUT = auto()
    PREPARED = auto()
    DONE = auto()


class Move(Enum):
    """What takes a segment from one stage to another."""

    SEND = auto()
    """The recognizer gets a window."""
    RETURN = auto()
    """The window has come back."""
    PREPARE = auto()
    """It was the last one of a pause that still lasts."""
    RELEASE = auto()
    """That pause is over: there was speech, or the utterance has ended."""
    FINISH = auto()
    """The final is published, or there is none."""


MOVES = {
    Stage.READING: {Move.SEND: Stage.OUT, Move.PREPARE: Stage.PREPARED, Move.FINISH: Stage.DONE},
    Stage.OUT: {Move.RETURN: Stage.READING},
    Stage.PREPARED: {Move.RELEASE: Stage.READING},
    Stage.DONE: {},
}
"""The whole life of a segment. What is not in this table is a bug of the session."""


@dataclass(slots=True)
class Segment:
    """The transcription of one utterance: its text, and the state of its windows."""

    utterance: Utterance
    text: SpokenText
    next_due: int
    """Where the next window for a partial may end."""
    latest: Hypothesis = field(default_factory=Hypothesis)
    """The last hypothesis about any window of the utterance."""
    is_certain: bool = False
    """Whether it is certain that somebody speaks (`Segmenter.is_certain`)."""
    was_probable: bool = False
    """Whether any hypothesis about it was more than a guess (`is_probable`)."""
    heard_from: int | None = None
    """Where the decoder heard the first word of the last hypothesis."""
    was_read: bool = False
    """Whether there was text in any hypothesis about it."""
    turn_prob: float | None = None
    """The probability that the speaker is done, in the pause for which it was computed."""
    stage: Stage = Stage.READING
    _prepared: int = 0

    def on(self, move: Move) -> None:
        """Go to the next stage. Raises `RuntimeError` if `MOVES` has none."""
        self.stage = following(MOVES, self.stage, move)

    def prepare(self, end: int) -> None:
        """Keep the latest hypothesis, that of a pause, as the final of the audio up to `end`."""
        self.on(Move.PREPARE)
        self._prepared = end

    def release(self) -> int:
        """Return what `prepare` was given, since the pause is over."""
        self.on(Move.RELEASE)
        return self._prepared

    def last_end(self, segmenter: Segmenter) -> int | None:
        """Where the utterance ended, or would end if its pause lasts, or None."""
        utterance = self.utterance
        if utterance.state is State.ASKED and utterance.pause is not None:
            return utterance.pause + segmenter.options.trailing_silence
        return utterance.end

    def due(self, segmenter: Segmenter, step: int) -> tuple[int, bool] | None:
        """The end of the window that is due, if any, and whether it is the utterance's last."""
        if self.stage is not Stage.READING:
            return None
        last_end = self.last_end(segmenter)
        if last_end is not None:
            return last_end, True
        now = segmenter.cursor
        if step == 0 or now < self.next_due or self.utterance.state is not State.OPEN:
            return None
        # If a pause begins, its window replaces this one, and must not wait for it. So this one
        # waits, at most for as many more frames as a pause takes to be asked about.
        if segmenter.may_pause and now - self.next_due < segmenter.options.trailing_silence:
            return None
        end = now - (now - self.next_due) % step  # the latest step; missed ones merge
        return (end, False) if end > self.text.anchor else None
