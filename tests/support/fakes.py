"""Stand-ins that are driven through the code that ships.

The scripted world: speech is a grid of words, one in `WORD` frames, wherever the audio is loud.
The recognizer reads the words off the samples (each frame's first sample carries its number), so it
cannot know what it was not given.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import cycle

import numpy as np

from streamd.events import Event
from streamd.options import EndpointOptions, GateOptions, SessionOptions
from streamd.session import Session
from streamd.session.commit import CommitPolicy, LocalAgreement
from streamd.session.gate import Gate
from streamd.session.rules import RuleNote
from streamd.session.segmenter import Segmenter
from streamd.types import FRAME, Frames, Hypothesis, Window, Word

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


def words_said(speech: Sequence[bool]) -> list[str]:
    """The words of scripted audio, as they are written."""
    middles = range(WORD // 2, len(speech), WORD)
    return [f"w{n}{ending(n)}" for n, middle in enumerate(middles) if speech[middle]]


def scripted_audio(speech: Iterable[bool]) -> Frames:
    """One frame per item: loud where it is true, all but silent where not."""
    loud = np.fromiter(speech, bool)
    frames = np.where(loud, np.float32(0.1), np.float32(0.0))[:, None].repeat(FRAME, axis=1)
    frames[:, 0] = np.arange(len(loud)) * _COUNT
    return frames


LOUD = 0.05


def loud_frames(frames: Frames) -> list[bool]:
    """A `VoiceDetector` for scripted audio."""
    loud: list[bool] = (frames[:, 1] > LOUD).tolist()
    return loud


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
    *,
    speech_prob: float = 0.0,
    report: Callable[[RuleNote], None] | None = None,
    auto_step: Callable[[], int] | None = None,
) -> Session:
    """A session whose gate follows the loudness of scripted audio at once.

    With `speech_prob`, a second detector finds speech so probable in all that is loud.
    """
    confirm = (lambda _, likely: [speech_prob * each for each in likely]) if speech_prob else None
    gate = Gate(loud_frames, GateOptions(attack=1), confirm=confirm)
    rule = policy or LocalAgreement()
    return Session(gate, Segmenter(endpoint), rule, options, report, auto_step=auto_step)


Recognizing = ScriptedRecognizer | Callable[[Window], Hypothesis]


def drain(
    session: Session, recognizer: Recognizing, seen: list[Window] | None = None
) -> list[Event]:
    """Give the session all the windows it wants."""
    events: list[Event] = []
    recognize = recognizer.recognize if hasattr(recognizer, "recognize") else recognizer
    while (window := session.next_window()) is not None:
        if seen is not None:
            seen.append(window)
        events += session.accept(window, recognize(window))
    return events


def fed(
    session: Session,
    recognizer: Recognizing,
    frames: Frames,
    seen: list[Window] | None = None,
    *,
    flush: bool = False,
) -> list[Event]:
    """All events of a session that is fed frame by frame, and has its windows as it wants them."""
    events: list[Event] = []
    for frame in frames:
        events += session.feed(frame[None])
        events += drain(session, recognizer, seen)
    if flush:
        events += session.flush()
        events += drain(session, recognizer, seen)
    return events


def played(
    session: Session,
    recognizer: ScriptedRecognizer,
    frames: Frames,
    delays: Sequence[int],
    block: int = 1,
    *,
    flushes: Collection[int] = (),
) -> tuple[list[Event], list[Window]]:
    """All events and windows of a session that is fed `block` frames at a time, and flushed.

    For each window, the engine takes the next of `delays` frames. It is also flushed behind the
    blocks that begin at the frames `flushes`.
    """
    events: list[Event] = []
    windows: list[Window] = []
    window, free_at, delay = None, 0, cycle(delays)
    for i in range(0, len(frames), block):
        events += session.feed(frames[i : i + block])
        if i in flushes:
            events += session.flush()
        if window is not None and i >= free_at:
            events += session.accept(window, recognizer.recognize(window))
            window = None
        if window is None and (window := session.next_window()) is not None:
            windows.append(window)
            free_at = i + next(delay)
    if window is not None:
        events += session.accept(window, recognizer.recognize(window))
    events += session.flush()
    events += drain(session, recognizer, windows)
    assert session.idle
    return events, windows
