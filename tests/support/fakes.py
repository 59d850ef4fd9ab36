"""Stand-ins that are driven through the code that ships.

The scripted world: speech is a grid of words, one in `WORD` frames, wherever the audio is loud.
The recognizer reads the words off the samples (each frame's first sample carries its number), so it
cannot know what it was not given.
"""

from collections.abc import Callable, Iterable

import numpy as np

from streamd.commit import CommitPolicy, LocalAgreement
from streamd.events import Event
from streamd.options import EndpointOptions, GateOptions, SessionOptions
from streamd.session import Session
from streamd.types import FRAME, Frames, Hypothesis, Samples, Window, Word
from streamd.vad import Gate
from streamd.vad.segmenter import Segmenter

WORD = 12
"""Frames a scripted word lasts."""
_COUNT = 2.0**-20
"""A frame's number is the multiple of this in its first sample."""


def speech_of(stretches: Iterable[tuple[int, int]]) -> list[bool]:
    """For each frame whether there is speech: stretches of words, and the silence behind each."""
    speech = [False] * WORD
    for loud, quiet in stretches:
        speech += [True] * loud + [False] * (quiet + -quiet % WORD)  # words stay on their grid
    return speech


def ending(n: int) -> str:
    """The mark after word `n`."""
    return [".", "", ",", "", ""][n % 5]


def scripted_audio(speech: Iterable[bool]) -> Frames:
    """One frame per item: loud where it is true, all but silent where not."""
    loud = np.fromiter(speech, bool)
    frames = np.where(loud, np.float32(0.1), np.float32(0.0))[:, None].repeat(FRAME, axis=1)
    frames[:, 0] = np.arange(len(loud)) * _COUNT
    return frames


LOUD = 0.05


def loud_frame(frame: Samples) -> bool:
    """A `Vad` for scripted audio."""
    return bool(frame[1] > LOUD)


class ScriptedRecognizer:
    """Hears the word whose number is its place on the grid; the newest one wrong in a partial."""

    def __init__(self, ending: Callable[[int], str] = lambda n: "") -> None:
        self._ending = ending  # what word n ends with: "." or "," or ""

    def recognize(self, window: Window) -> Hypothesis:
        frames = window.samples.reshape(-1, FRAME)
        numbers = np.rint(frames[:, 0] / _COUNT).astype(int)
        assert len(frames) == 0 or numbers[0] == window.start, "wrong audio in the window"
        loud = set(numbers[frames[:, 1] > LOUD].tolist())
        words = []
        for n in range(window.start // WORD, window.end // WORD + 1):
            middle = n * WORD + WORD // 2
            if middle not in loud or n in (*window.before, *window.prefix):
                continue
            start, end = max(n * WORD, window.start), min((n + 1) * WORD, window.end)
            words.append(Word(f" w{n}{self._ending(n)}", start, end, 0.9, (n,)))
        if words and not window.last:
            newest = words[-1]
            words[-1] = Word(f" ?{window.end}", newest.start, newest.end, 0.2, (0,))
        tokens = tuple(token for word in words for token in word.tokens)
        return Hypothesis(words=tuple(words), tokens=tokens)


def scripted_session(
    options: SessionOptions | None = None,
    endpoint: EndpointOptions | None = None,
    policy: CommitPolicy | None = None,
) -> Session:
    """A session whose gate follows the loudness of scripted audio at once."""
    gate = Gate(loud_frame, GateOptions(attack=1, hangover=0))
    return Session(gate, Segmenter(endpoint), policy or LocalAgreement(), options)


def drain(session: Session, recognizer: ScriptedRecognizer, seen: list[Window]) -> list[Event]:
    """Give the session all the windows it wants."""
    events: list[Event] = []
    while (window := session.next_window()) is not None:
        seen.append(window)
        events += session.accept(window, recognizer.recognize(window))
    return events
