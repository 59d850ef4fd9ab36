"""Whether a speaker is done, by the sound of the voice: a question that a window may ask."""

from collections.abc import Callable
from concurrent.futures import Future

from streamd.types import (
    FRAME,
    Hypothesis,
    Samples,
    TurnAnswer,
    TurnQuestion,
    Window,
    WindowRecognizer,
)

EndOfTurn = Callable[[Samples], Future[float]]
"""Begins to tell how probable it is that somebody is done, from all that they have said, (n,)."""


class TurnJudge:
    """A recognizer that also says whether a speaker is done, in windows that ask for it.

    It computes that while the words are decoded, and takes about as long as they do. Of nobody who
    says no word it is known.
    """

    def __init__(self, recognizer: WindowRecognizer, end_of_turn: EndOfTurn) -> None:
        self._recognizer, self._end_of_turn = recognizer, end_of_turn

    def recognize(self, window: Window) -> Hypothesis:
        """Transcribe the window, and answer its `TurnQuestion`."""
        if (question := window.asked(TurnQuestion)) is None:
            return self._recognizer.recognize(window)
        since = max(question.since, window.start) - window.start
        turn = self._end_of_turn(window.samples[since * FRAME :])
        hypothesis = self._recognizer.recognize(window)
        prob = turn.result()
        return hypothesis.answered(TurnAnswer(prob)) if hypothesis.words else hypothesis
