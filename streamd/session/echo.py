"""Both sides of a call: what the microphone hears of the loudspeaker is captioned only once.

The words of the microphone wait until the other channel has been read up to half a second behind
them. Words that both have within half a second belong to the other channel, unless the microphone
was louder: then two people have said the same. Finals never change, so it is decided before.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from streamd.events import Final, Partial, SessionEvent, TimedWord, aligned
from streamd.session.gate import SILENCE_DB, levels_db
from streamd.types import FRAME_MS, N_AUDIO_CTX, Frames

CaptionT = TypeVar("CaptionT", Partial, Final)

MIC, SYSTEM = 1, 2
"""The channels."""
WITHIN_MS = 500
"""Between the same word in both channels: an echo is up to 300 ms late, and each of the two times
may be wrong by 0.1 s."""
LONGEST_MS = 4_000
"""How long a final waits at most for the other channel to be read, which takes a step and the wait
for a window; then it is judged by what is known."""
QUIETER_DB = 6.0
"""By how much the microphone is quieter where a single word, or one that was read otherwise, is
taken for an echo."""
MOSTLY = 0.5
"""The share of words in a caption that both have, from which on the others at the same time are the
same text, read otherwise."""


class EchoGuard:
    """Holds back captions of the microphone until it is clear whose words they are."""

    def __init__(self) -> None:
        # In dB, of both channels: those of a final, which may be a window long, and of its wait.
        self._levels: deque[tuple[float, float]] = deque(maxlen=2 * N_AUDIO_CTX)
        self._now_ms = 0
        self._theirs: deque[TimedWord] = deque(maxlen=500)  # of finals
        self._newest: tuple[TimedWord, ...] = ()  # of their partial
        self._reached_ms = 0  # by their captions
        self._held: deque[Final] = deque()
        self._partial: Partial | None = None  # the newest, if it may still change what is shown
        self._shown: dict[int, Partial] = {}  # what readers have of segments that are open

    def hear(self, frames: Frames, end_ms: int) -> None:
        """Take the next (n, channels, 320) frames, which end at `end_ms`."""
        n_lost = (end_ms - self._now_ms) // FRAME_MS - len(frames)
        self._levels.extend([(SILENCE_DB, SILENCE_DB)] * min(n_lost, 2 * N_AUDIO_CTX))  # in a gap
        both = frames[:, :2]
        self._levels.extend(zip(levels_db(both[:, 0]), levels_db(both[:, -1]), strict=True))
        self._now_ms = end_ms

    @property
    def is_idle(self) -> bool:
        """Whether no final waits."""
        return not self._held

    @property
    def held_since_ms(self) -> int | None:
        """When the first final begins that waits, which nobody has by now; None if none does."""
        return min((final.start_ms for final in self._held), default=None)

    def take(
        self, events: Sequence[SessionEvent], read_ms: int, *, is_over: bool = False
    ) -> list[SessionEvent]:
        """Take the events of both channels, and return those that may be told by now.

        The other channel is read up to `read_ms`; `is_over`: nothing more will be read of any.
        """
        events_now: list[SessionEvent] = []
        for event in events:
            if isinstance(event, Partial | Final) and event.channel == MIC:
                self._hold(event)
            else:
                self._know(event)
                events_now.append(event)
        read_ms = max(read_ms, self._reached_ms)
        while self._held and (is_over or self._is_clear(self._held[0], read_ms)):
            events_now += self._judged(self._held.popleft())
        if self._partial is not None and not self._held:
            events_now += self._shown_of(self._partial, read_ms - WITHIN_MS)
            self._partial = None
        return events_now

    def _hold(self, event: Partial | Final) -> None:
        if isinstance(event, Partial):
            self._partial = event
            return
        self._held.append(event)
        if self._partial is not None and self._partial.seg <= event.seg:
            self._partial = None

    def _know(self, event: SessionEvent) -> None:
        if not isinstance(event, Partial | Final) or event.channel != SYSTEM:
            return
        self._reached_ms = max(self._reached_ms, event.end_ms)
        self._newest = event.words if isinstance(event, Partial) else ()
        if isinstance(event, Final):
            self._theirs.extend(event.words)

    def _is_clear(self, final: Final, read_ms: int) -> bool:
        is_read = final.end_ms + WITHIN_MS <= read_ms
        return is_read or self._now_ms - final.end_ms >= LONGEST_MS

    def _judged(self, final: Final) -> Iterator[SessionEvent]:
        shown = self._shown.pop(final.seg, None)
        own = self._own(final)
        if own.text:
            yield own
        elif shown is not None:  # readers take away what they have of it
            yield replace(shown, rev=shown.rev + 1, text="", stable=0, words=())

    def _shown_of(self, partial: Partial, until_ms: int) -> Iterator[SessionEvent]:
        words = tuple(word for word in partial.words if word.end_ms <= until_ms)
        own = self._own(_with_words(partial, [word in words for word in partial.words]))
        # All of it may still turn out to be an echo, so none of its words is told as final.
        open_words = tuple(replace(word, final=False) for word in own.words)
        own = replace(own, stable=0, words=open_words)
        if own.text or partial.seg in self._shown:
            self._shown[partial.seg] = own
            yield own

    def _own(self, event: CaptionT) -> CaptionT:
        """Return a caption of the microphone without what it has heard of the loudspeaker."""
        words = event.words
        if not words:
            return event
        theirs = [*self._theirs, *self._newest]
        near = [
            [each for each in theirs if abs(each.start_ms - word.start_ms) <= WITHIN_MS]
            for word in words
        ]
        same = [
            any(_bare(each) == _bare(word) for each in others)
            for word, others in zip(words, near, strict=True)
        ]
        levels = [self._louder_db(word) for word in words]
        is_mostly = sum(same) >= MOSTLY * len(words) and sum(same) > 1
        kept = []
        for i, louder_db in enumerate(levels):
            beside = same[max(0, i - 1) : i] + same[i + 1 : i + 2]
            if same[i] and any(beside):
                kept.append(louder_db > 0)
            elif same[i] or (is_mostly and near[i]):
                kept.append(louder_db > -QUIETER_DB)
            else:
                kept.append(True)
        return event if all(kept) else _with_words(event, kept)

    def _louder_db(self, word: TimedWord) -> float:
        """Return by how much the microphone was louder than the other channel before and at it."""
        end = len(self._levels) - (self._now_ms - word.end_ms) // FRAME_MS
        n = max(1, (word.end_ms - word.start_ms) // FRAME_MS)
        rows = list(self._levels)[max(0, end - n - WITHIN_MS // FRAME_MS) : max(0, end)]
        if not rows:
            return 0.0
        power = 10 ** (np.array(rows) / 10)
        mine, theirs = power[-n:, 0].mean(), np.sort(power[:, 1])[-n:].mean()  # whenever played
        return float(10 * np.log10(mine / theirs))


def _bare(word: TimedWord) -> str:
    return "".join(filter(str.isalnum, word.text.casefold()))


def _with_words(event: CaptionT, kept: Sequence[bool]) -> CaptionT:
    """Return a caption with some of its words only."""
    ends: list[int] = [end for _, end, _ in aligned(event.text, event.words)]
    edges: list[int] = [0, *ends, *[len(event.text)] * (len(kept) - len(ends))]
    edges[-1] = len(event.text)
    spans = [(edges[i], edges[i + 1]) for i in range(len(kept)) if kept[i]]
    text = "".join(event.text[start:end] for start, end in spans)
    words = tuple(word for word, is_kept in zip(event.words, kept, strict=True) if is_kept)
    if isinstance(event, Final):
        return replace(event, text=text.strip(), words=words)
    stable = sum(max(0, min(end, event.stable) - start) for start, end in spans)
    stable = max(0, min(stable - (len(text) - len(text.lstrip())), len(text.strip())))
    return replace(event, text=text.strip(), words=words, stable=stable)
