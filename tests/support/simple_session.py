"""A simple session: the shortest code that turns audio into captions and keeps the promises.

It is for reading, and for tests, which hold the real `Session` against it; nothing runs it live.
The parts are those of the real one: frames in (`feed`), windows out (`next_window`), hypotheses in
(`accept`), events out. What the real one adds is an answer to what goes wrong here:

- Each window begins with its utterance, so a long utterance costs more and more: the real one lets
  committed words leave the window (`streamd.session.text`).
- Any pause of 0.6 s ends an utterance: the real one asks what was said
  (`streamd.session.segmenter`).
- A word that nothing precedes is often misread: the real one begins with the words before.
- Whatever the recognizer writes is believed, if it says it twice: the real one has rules
  (`streamd.session.rules`), waits with improbable words (`streamd.session.commit`), and detects the
  language (`streamd.session.language`).
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from streamd.events import SessionEvent, Vad
from streamd.session.captions import Captions
from streamd.session.commit import agreement, normalised
from streamd.session.gate import Gate, GatedFrame
from streamd.session.rules import in_turn
from streamd.session.text import SpokenText
from streamd.types import Frames, Hypothesis, Samples, Window, Word, ms_from_frames

STEP = 25
"""Frames (0.5 s) from one window of an utterance to the next."""
PRE_ROLL, SILENCE = 25, 30
"""Frames of audio before the gate opens that belong to an utterance, and of silence that end it."""
LONGEST = 1_400
"""Frames of an utterance after which it is cut; Whisper hears 30 s at once."""


@dataclass
class SimpleUtterance:
    """An utterance: where it begins and ends, if it has ended, and its words so far."""

    text: SpokenText
    end: int | None = None
    next_due: int = 0
    heard: list[Word] = field(default_factory=list)
    """The words of the last hypothesis that are not committed."""


class SimpleSession:
    """One stream. Call `feed` with audio, `next_window` and `accept` when the engine is free."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._frames: deque[Samples] = deque()  # those that a window may still need
        self._utterances: deque[SimpleUtterance] = deque()  # that are not final, the oldest first
        self._open: SimpleUtterance | None = None  # the newest of them, while somebody speaks
        self._floor = 0  # where the last utterance ended
        self._out: Window | None = None
        self._captions = Captions()
        self.now = 0
        """Frames fed so far."""

    # Audio

    def feed(self, frames: Frames) -> list[SessionEvent]:
        """Take the next (n, 320) frames: find out where utterances begin and end."""
        events: list[SessionEvent] = []
        gated = self._gate.feed(frames)
        self._frames.extend(frames.copy())
        for heard in gated:
            self.now += 1
            events += self._follow(heard)
        self._forget()
        return events

    def flush(self) -> list[SessionEvent]:
        """End the utterance here. All is final when `next_window` returns None."""
        if self._open is None and self._gate.doubtful:
            return self._begin(self.now - 1) + self._end()
        return self._end() if self._open else []

    def _follow(self, heard: GatedFrame) -> list[SessionEvent]:
        """Read the frame before `now`: open an utterance, or close it."""
        if self._open is None:
            return self._begin(self.now - 1 - heard.late) if heard.silence == 0 else []
        if heard.silence >= SILENCE:
            return self._end()
        if self.now - self._open.text.start >= LONGEST:
            return self._end() + self._begin(self.now)
        return []

    def _begin(self, at: int) -> list[SessionEvent]:
        start = max(at - PRE_ROLL, self._floor)
        self._open = SimpleUtterance(SpokenText(start, start), next_due=start + STEP)
        self._utterances.append(self._open)
        return [Vad(speech=True, t_ms=ms_from_frames(start))]

    def _end(self) -> list[SessionEvent]:
        if self._open is not None:
            self._open.end = self._floor = self.now
        self._open = None
        return [Vad(speech=False, t_ms=ms_from_frames(self.now))]

    # Windows

    @property
    def idle(self) -> bool:
        """Whether all speech so far is final."""
        return not self._utterances

    @property
    def due(self) -> bool:
        """Whether `next_window` would return one."""
        if self._out is not None or not self._utterances:
            return False
        oldest = self._utterances[0]
        return oldest.end is not None or self.now >= oldest.next_due

    def next_window(self) -> Window | None:
        """Return the audio of the oldest utterance so far, which `accept` must get back.

        Steps that were missed while the engine was busy are one window.
        """
        if not self.due:
            return None
        utterance = self._utterances[0]
        text, end = utterance.text, utterance.end or self.now
        utterance.next_due = end + STEP
        self._out = Window(
            start=text.start,
            end=end,
            samples=self._read(text.start, end),
            prefix=text.prefix,
            prefix_end=text.read_until,
            draft=tuple(token for word in utterance.heard for token in word.tokens),
            last=utterance.end is not None,
        )
        return self._out

    def accept(self, window: Window, hypothesis: Hypothesis) -> list[SessionEvent]:
        """Take the words behind those that are committed; commit those that were said twice."""
        if window is not self._out:
            raise RuntimeError("this window did not come from next_window()")
        self._out, utterance = None, self._utterances[0]
        text = utterance.text
        said = [word for word in hypothesis.words if word.text.strip()]
        words = in_turn(said, text.read_until, window.end)
        if window.last:
            return self._finish(utterance, [*text.committed, *words], hypothesis)
        before, now = (
            [normalised(word.text) for word in each] for each in (utterance.heard, words)
        )
        n = min(agreement([before, now]), max(0, len(words) - 1))  # the last word may be half said
        text.commit(words, n)
        utterance.heard = words[n:]
        return self._captions.partial(text, window.end, self.now)

    def _finish(
        self, utterance: SimpleUtterance, words: list[Word], hypothesis: Hypothesis
    ) -> list[SessionEvent]:
        """Publish the final, or take back what was shown if nothing was said."""
        self._utterances.popleft()
        start, end = utterance.text.start, utterance.end or self.now
        if words:
            events: list[SessionEvent] = [self._captions.final(words, start, end, hypothesis)]
        else:
            events = self._captions.partial(SpokenText(start, start), end, self.now)
            self._captions.begin()
        self._forget()
        return events

    # Audio that a window may need

    def _read(self, start: int, end: int) -> Samples:
        oldest = self.now - len(self._frames)
        parts = [self._frames[i - oldest] for i in range(start, end)]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _forget(self) -> None:
        late = self.now - PRE_ROLL - 100  # how late a gate may notice a word
        needed = self._utterances[0].text.start if self._utterances else max(self._floor, late)
        while len(self._frames) > self.now - needed:
            self._frames.popleft()
