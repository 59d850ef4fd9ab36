"""The life of an utterance: its states, what moves it from one to the next, and nothing else.

Two parties follow each utterance. The `Segmenter` sees silence and speech, frame by frame, and
decides where the utterance begins and ends. The `Session` transcribes it. They have to talk,
because the length of the pause that ends an utterance depends on its last words, and the recognizer
that knows the words may be late. This is what happens:

- An utterance is OPEN while there is speech. Every step the session may have a window of it
  transcribed, for a partial.
- When the gate closes, the utterance is in a PAUSE. No partial is made: there is nothing new to
  transcribe.
- When the silence has lasted `EndpointOptions.tail` frames, the utterance is ASKED: the segmenter
  needs the text up to here, and the session has it transcribed as if the utterance had ended. The
  segmenter may read on until `EndpointOptions.shortest_pause`; there it stops and waits, even if
  the audio goes on. So utterances do not depend on how fast the engine is.
- When the text is there, the utterance is ANSWERED: the segmenter knows how much silence ends it.
  The session holds the hypothesis, which is the final if that silence comes.
- If there is speech again (in a PAUSE, or ASKED, or ANSWERED), the utterance is OPEN again. A
  hypothesis that was held becomes one like any other, and the question of the next pause is a new
  one.
- The utterance is ENDED when its silence was long enough, when it grew too long and was cut, or
  when the owner of the stream flushed it. If it ended where the held hypothesis ends, that is the
  final, at once. Otherwise (it was cut elsewhere, or there was no answer) the session has it
  transcribed up to its end.
- When its final is published, or it turned out that it has no words, it is FINAL and forgotten.

Some ends need no answer: a cut, a flush, a pause at more than three fifths of the longest length,
and pauses whose length does not depend on the text. So an utterance can end in any state before
ENDED.

After a cut the rest is an utterance of its own. It begins in the state of the one that was cut: if
that was in a pause, the rest begins with the silence that is left of it, and with the answer, if
there was one.
"""

from dataclasses import dataclass
from enum import Enum, auto


class State(Enum):
    """Where an utterance is in its life."""

    OPEN = auto()
    PAUSE = auto()
    ASKED = auto()
    ANSWERED = auto()
    ENDED = auto()
    FINAL = auto()


class Trigger(Enum):
    """What moves an utterance to another state."""

    SPEECH = auto()
    """The gate is open."""
    SILENCE = auto()
    """The gate has closed."""
    ASK = auto()
    """The silence lasted so long that the text is needed."""
    ANSWER = auto()
    """The recognizer's text for this pause is there."""
    END = auto()
    """The silence was long enough, or the utterance was cut or flushed."""
    PUBLISH = auto()
    """The session has published the final, or found that there is none."""


TRANSITIONS = {
    State.OPEN: {Trigger.SILENCE: State.PAUSE, Trigger.END: State.ENDED},
    State.PAUSE: {Trigger.SPEECH: State.OPEN, Trigger.ASK: State.ASKED, Trigger.END: State.ENDED},
    State.ASKED: {
        Trigger.SPEECH: State.OPEN,
        Trigger.ANSWER: State.ANSWERED,
        Trigger.END: State.ENDED,
    },
    State.ANSWERED: {Trigger.SPEECH: State.OPEN, Trigger.END: State.ENDED},
    State.ENDED: {Trigger.PUBLISH: State.FINAL},
    State.FINAL: {},
}
"""The whole life of an utterance. What is not in this table is a bug of its owner."""


@dataclass(slots=True, eq=False)
class Utterance:
    """A stretch of speech, which begins at frame `start`."""

    start: int
    state: State = State.OPEN
    pause: int | None = None
    """Where the silence began that it is in; it keeps the one that it ended in."""
    ending_pause: int | None = None
    """Frames of silence that end it: the answer, while it is ANSWERED."""
    gap: tuple[int, int] | None = None
    """The last pause that was followed by speech: its first frame and the first after it."""
    end: int | None = None
    """The first frame after it, once it is ENDED."""

    def on(self, trigger: Trigger) -> None:
        """Go to the next state.

        Raises
        ------
        RuntimeError
            `TRANSITIONS` has no such trigger in this state.
        """
        following = TRANSITIONS[self.state]
        if trigger not in following:
            raise RuntimeError(f"{trigger.name} cannot happen to an utterance in {self.state.name}")
        self.state = following[trigger]

    def speak(self, at: int) -> None:
        """There is speech in frame `at`: leave the pause, and forget the answer to it."""
        if self.state is State.OPEN:
            return
        self.on(Trigger.SPEECH)
        if self.pause is not None:
            self.gap = (self.pause, at)
        self.pause = self.ending_pause = None

    def fall_silent(self, since: int) -> None:
        """Enter a pause that began at frame `since`."""
        self.on(Trigger.SILENCE)
        self.pause = since

    def answer(self, ending_pause: int) -> None:
        """Take the answer: this many frames of silence end the utterance."""
        self.on(Trigger.ANSWER)
        self.ending_pause = ending_pause

    def close(self, end: int) -> None:
        """End before frame `end`."""
        self.on(Trigger.END)
        self.end = end
