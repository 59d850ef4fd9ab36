"""One stream of audio: frames in, windows out, hypotheses in, events out.

The session owns all state of a stream and does no I/O, knows no clock and starts no thread. It
never pushes work: whoever has a free engine *asks* for the window most worth transcribing
(`next_window`) and brings the hypothesis back (`accept`). Steps that were missed while the engine
was busy are thereby merged, and no audio is ever dropped.

Three promises: committed text never changes; utterances and their finals depend on the audio (and
on what the recognizer says about it), not on the speed of the engine or on how the audio was cut
into blocks; every frame that the gate lets through lies in a window that was accepted.
"""

from dataclasses import dataclass, replace

import numpy as np

from streamd.audio.ring import Ring
from streamd.commit import CommitPolicy
from streamd.events import Gap, Lag, SessionEvent
from streamd.session.segment import Segment
from streamd.types import FRAME, FRAME_MS, Frames, Hypothesis, Window, Word, ms_from_frames
from streamd.vad.energy import level_db
from streamd.vad.gate import Gate
from streamd.vad.segmenter import Segmenter

MIN_GAP = 15
"""A pause of this many frames is heard out: nothing before it is still growing."""
FORCE_AFTER, FORCE_AGE = 400, 100
"""When nothing could be committed for so long, words of this age are committed unseen twice."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How often and how far back a session looks; in frames."""

    step: int = 25
    """A partial is due after this much new audio; 0: only finals (the "VAD mode")."""
    length: int = 250
    """The window is trimmed to its uncommitted part when it gets longer than this."""
    context_tokens: int = 64
    """Committed tokens before the window that the decoder gets as its prompt."""
    keep_context: bool = False
    """Whether the prompt reaches back into the utterances before this one."""
    backlog: int = 30_000
    """Audio kept for an engine that is behind; what goes beyond is lost and reported (`Gap`)."""


class Session:
    """The pull-driven core; see the module's docstring.

    `gate`, `segmenter` and `policy` belong to this session alone. Call order: `feed` whenever
    frames arrive, and whenever the engine is free `next_window`, `accept`, again until None. At the
    end `flush`, then the same.
    """

    def __init__(
        self,
        gate: Gate,
        segmenter: Segmenter,
        policy: CommitPolicy,
        options: SessionOptions | None = None,
    ) -> None:
        self._gate, self._segmenter, self._policy = gate, segmenter, policy
        self._options = options or SessionOptions()
        self._ring = Ring(self._options.backlog)
        self._segment: Segment | None = None
        self._pending: Window | None = None
        self._context: list[int] = []  # committed tokens before the window
        self._seg = 1
        self._heard = 0  # the end of the newest accepted window
        self._final_until = 0  # audio before this frame is in a final

    @property
    def now(self) -> int:
        """Frames heard so far."""
        return self._ring.end

    @property
    def backlog(self) -> int:
        """Frames of speech that wait for their first window."""
        utterances = self._segmenter.utterances
        return self.now - max(utterances[0].start, self._heard) if utterances else 0

    @property
    def idle(self) -> bool:
        """Whether everything said so far is final."""
        return not self._segmenter.utterances

    def feed(self, frames: Frames) -> list[SessionEvent]:
        """Take in audio, (n, 320) float32 at 16 kHz; what it tells at once."""
        events: list[SessionEvent] = []
        lost = self._ring.append(frames)
        for frame in frames:
            level = level_db(frame)
            events += self._segmenter.push(self._gate.update(frame, level), level)
            events += self._settle()
        if lost:
            events += self._lose(lost)
        self._forget()
        return events

    def gap(self, duration_ms: int, why: str) -> list[SessionEvent]:
        """Audio of this length was lost before it got here: silence takes its place in time."""
        gap = Gap(t_ms=ms_from_frames(self.now), duration_ms=duration_ms, why=why)
        return [gap, *self.feed(np.zeros((round(duration_ms / FRAME_MS), FRAME), np.float32))]

    def flush(self) -> list[SessionEvent]:
        """End the utterance here; afterwards pull windows until there are none.

        Then everything said so far is final. The stream may go on.
        """
        events: list[SessionEvent] = list(self._segmenter.flush(doubtful=self._gate.doubtful))
        return events + self._settle()

    def next_window(self) -> Window | None:
        """The audio most worth transcribing now, or None while nothing is due.

        Call it whenever the engine is free. Steps missed meanwhile are merged, not queued. Every
        window returned must come back through `accept` before the next call.
        """
        if self._pending is not None:
            raise RuntimeError("the last window has not come back through accept()")
        segment = self._current()
        if segment is None:
            return None
        utterance = segment.utterance
        if utterance.end is not None:
            self._pending = self._window(segment, max(utterance.end, segment.anchor), last=True)
        elif self._segmenter.asked() is utterance and utterance.pause is not None:
            end = utterance.pause + self._segmenter.options.tail
            self._pending = self._window(segment, end, last=True)
        else:
            self._pending = self._step(segment)
        return self._pending

    def accept(self, window: Window, hypothesis: Hypothesis) -> list[SessionEvent]:
        """Take in what the recognizer heard in the window that `next_window` gave out."""
        if window is not self._pending:
            raise RuntimeError("this window was not given out by next_window()")
        self._pending = None
        segment = self._segment
        if segment is None or window.start < segment.anchor:  # its audio was overwritten meanwhile
            return []
        self._heard = max(self._heard, window.end)
        hypothesis = self._without_repeats(hypothesis)
        events = self._lag(window)
        if not window.last:
            pause = segment.utterance.pause
            silence = 0 if pause is None else max(0, window.end - pause)
            events += self._revise(segment, window.end, hypothesis, silence=silence)
        elif segment.utterance.end is not None and segment.utterance.end <= window.end:
            events += self._finalise(segment, window.end, hypothesis)
        else:
            events += self._hold(segment, window.end, hypothesis)
        self._forget()
        return events

    # -- windows ---------------------------------------------------------------------------------

    def _current(self) -> Segment | None:
        """The segment of the oldest utterance that is not final yet."""
        if self._segment is None and self._segmenter.utterances:
            utterance = self._segmenter.utterances[0]
            start = max(utterance.start, self._ring.start)
            self._segment = Segment(utterance, start, start + self._options.step)
            self._policy.reset()
            if not self._options.keep_context:
                self._context.clear()
        return self._segment

    def _step(self, segment: Segment) -> Window | None:
        """A window for a partial, if one is due and somebody is speaking."""
        step, now = self._options.step, self._segmenter.cursor
        if step == 0 or now < segment.next_due or segment.utterance.pause is not None:
            return None
        end = now - (now - segment.next_due) % step  # the newest boundary: missed steps merge
        segment.next_due = end + step
        return self._window(segment, end, last=False)

    def _window(self, segment: Segment, end: int, *, last: bool) -> Window:
        n = self._options.context_tokens
        return Window(
            start=segment.anchor,
            end=end,
            samples=self._ring.read(segment.anchor, end),
            prompt=tuple(self._context[-n:]) if n else (),
            prefix=segment.prefix,
            draft=segment.draft,
            last=last,
        )

    # -- hypotheses ------------------------------------------------------------------------------

    def _revise(
        self, segment: Segment, end: int, hypothesis: Hypothesis, *, silence: int
    ) -> list[SessionEvent]:
        """Commit what the policy is sure of; the rest is the new tail."""
        if hypothesis.suspect:
            return []
        words = hypothesis.words
        n = self._policy.commit(words, now=end, silence=silence)
        if n == 0 and end - segment.anchor > max(FORCE_AFTER, self._options.length * 3 // 2):
            n = sum(1 for word in words if word.end <= end - FORCE_AGE)
        segment.revise(words, n)
        if end - segment.anchor > self._options.length:
            self._remember(segment.trim(self._segmenter))
        return segment.show(self._seg, end, self.now)

    def _hold(self, segment: Segment, end: int, hypothesis: Hypothesis) -> list[SessionEvent]:
        """The hypothesis of a pause: final if the silence lasts, else as good as any other."""
        segment.held = (end, hypothesis)
        if segment.utterance.pause != end - self._segmenter.options.tail:
            return self._settle()  # speech went on meanwhile
        segment.tail = hypothesis.words
        events = segment.show(self._seg, end, self.now)
        words = [*segment.committed, *hypothesis.words]
        return [*events, *self._segmenter.answer(segment.utterance, words), *self._settle()]

    def _settle(self) -> list[SessionEvent]:
        """Publish the held hypothesis if its utterance ended there; revise if speech went on."""
        segment = self._segment
        if segment is None or segment.held is None:
            return []
        (end, hypothesis), utterance = segment.held, segment.utterance
        pause = end - self._segmenter.options.tail
        if utterance.end == end:
            return self._finalise(segment, end, hypothesis)
        if utterance.end is None and utterance.pause == pause:
            return []  # still silent
        segment.held = None
        if utterance.end is not None:
            return []  # ended elsewhere: another window will tell
        resumed = utterance.gap[1] if utterance.gap and utterance.gap[0] == pause else end
        events = self._revise(segment, end, hypothesis, silence=resumed - pause)
        if resumed - pause >= MIN_GAP and not segment.tail:
            cut = min(end, max(pause, resumed - self._segmenter.options.tail))
            segment.safe_cut = (cut, len(segment.committed))
        return events

    def _finalise(self, segment: Segment, end: int, hypothesis: Hypothesis) -> list[SessionEvent]:
        """The utterance is over: everything is committed."""
        self._segmenter.utterances.popleft()
        self._segment, self._final_until = None, end
        segment.revise(hypothesis.words, len(hypothesis.words))
        self._remember(segment.committed[segment.n_left :])
        final = segment.final(self._seg, end, hypothesis)
        if final is None:
            return segment.show(self._seg, end, self.now)  # takes back what was tentative
        self._seg += 1
        return [final]

    def _without_repeats(self, hypothesis: Hypothesis) -> Hypothesis:
        """Leave out words from audio that is final already (overlapping lines)."""
        words = tuple(w for w in hypothesis.words if w.start + w.end >= 2 * self._final_until)
        return hypothesis if words == hypothesis.words else replace(hypothesis, words=words)

    def _lag(self, window: Window) -> list[SessionEvent]:
        """Tell when more than two steps (at least a second) of audio came during one window."""
        behind = self.now - window.end
        if window.last or behind < max(2 * self._options.step, 50):
            return []
        return [Lag(lag_ms=ms_from_frames(behind))]

    # -- housekeeping ----------------------------------------------------------------------------

    def _remember(self, words: list[Word]) -> None:
        """Words that the window leaves behind become its prompt."""
        self._context += [token for word in words for token in word.tokens]
        del self._context[: -max(1, self._options.context_tokens)]

    def _lose(self, n_frames: int) -> list[SessionEvent]:
        """The engine is so far behind that audio was overwritten before it was transcribed."""
        start = self._ring.start
        utterances = self._segmenter.utterances
        while utterances and (end := utterances[0].end) is not None and end <= start:
            utterances.popleft()
            self._segment = None
        if self._segment is not None:
            self._segment.anchor = max(self._segment.anchor, start)
        t_ms, duration_ms = ms_from_frames(start), ms_from_frames(n_frames)
        return [Gap(t_ms=t_ms, duration_ms=duration_ms, why="engine too slow")]

    def _forget(self) -> None:
        """Free the audio that no window will need again."""
        oldest = self._segmenter.cursor - self._segmenter.options.pre_roll
        if self._segmenter.utterances:
            oldest = min(oldest, self._segmenter.utterances[0].start)
        if self._segment is not None:
            oldest = self._segment.anchor
        self._ring.forget(oldest)
        self._segmenter.forget(oldest - 2)
