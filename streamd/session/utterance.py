"""The life of an utterance: its states, what moves it from one to the next, and nothing else.

The `Segmenter` sees silence and speech, frame by frame, and decides where an utterance begins and
ends; the `Session` has it transcribed. They have to talk, because the pause that ends an utterance
depends on its last words, and the recognizer that knows the words may be late.

- OPEN: there is speech. Every step, a window is transcribed for a partial. Silence leads to PAUSE.
- PAUSE: the gate has closed. No partials, since there is nothing new to transcribe. Speech leads
  back to OPEN, and forgets all of the pause; `EndpointOptions.trailing_silence` leads to ASKED.
- ASKED: the segmenter needs the text up to here, so the session has the utterance transcribed as if
  it had ended. The segmenter reads on until `EndpointOptions.shortest_pause`; there it waits, even
  if audio goes on, so that utterances do not depend on how fast the engine is. Speech leads to
  OPEN, the text to ANSWERED.
- ANSWERED: the segmenter knows how much silence ends the utterance; the session holds the
  hypothesis as its final. Speech leads to OPEN, and makes the hypothesis one like any other.
- ENDED, from any state above: its silence was long enough, or it was cut or flushed. If it ended
  where the prepared hypothesis ends, that is the final; otherwise it is transcribed up to its end.
- FINAL: the final was published, or there are no words. It is forgotten.

The text also tells where its last sentence began. If that is more than three fifths of the longest
length ago, any pause ends the utterance, and the segmenter waits for the text sooner. A cut, a
flush, and pauses whose length does not depend on the text need no answer. After a cut the rest is
an utterance of its own; if the one that was cut was in a pause, the rest begins with what is left
of it, and with the answer.
"""

from dataclasses import dataclass
from enum import Enum, auto

from streamd.types import following


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
        """Go to the next state. Raises `RuntimeError` if `TRANSITIONS` has none."""
        self.state = following(TRANSITIONS, self.state, trigger)

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
