"""A stream whose channels are a person each: a session for each channel, on one clock.

It has the methods of a `Session` that a stream needs. The speaker of every word is the number of
its channel, from 1, unless the second channel has several. All channels hear the same frames at the
same time, so that the times of their events are those of one clock. Windows of the channels take
turns; each channel may have one that is being transcribed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from streamd.events import (
    Final,
    Gap,
    GapReason,
    Partial,
    SessionEvent,
    SpeakerName,
    SpeakerTurns,
    TurnEvent,
    Vad,
)
from streamd.labels import behind, of_channel
from streamd.session.echo import SYSTEM, EchoGuard
from streamd.session.session import Session
from streamd.types import FRAME, Frames, Hypothesis, ResumeState, Window

NumberedT = TypeVar("NumberedT", Partial, Final, TurnEvent, Partial | Final)


class SplitSession:
    """The sessions of the channels of one stream; `new_session` makes them when frames come.

    With `new_theirs` the second one is made by that, and tells its speakers apart by their voices:
    they have the numbers from 2 on.
    """

    def __init__(
        self, new_session: Callable[[], Session], new_theirs: Callable[[], Session] | None = None
    ) -> None:
        self.new_session, self.new_theirs = new_session, new_theirs
        self.channels: list[Session] = []
        self._begins = ResumeState(), 0
        self._out: dict[int, tuple[Window, Session]] = {}  # windows that recognizers have
        self._turns: list[Session] = []  # those whose window was taken longest ago come first
        self._seg = 1  # of the next segment of any channel
        self._segs: dict[tuple[int, int], int] = {}  # by channel and number in its session
        self._guard: EchoGuard | None = None

    def guard(self) -> None:
        """Take the first channel for a microphone that may hear what is in the second."""
        self._guard = EchoGuard()

    def _without_echo(self, events: list[SessionEvent]) -> list[SessionEvent]:
        """Return what may be told of the events by now, and of those that were held back."""
        if self._guard is None or len(self.channels) < SYSTEM:
            return events
        theirs = self.channels[SYSTEM - 1]
        read_ms = theirs.now_ms if theirs.idle else theirs.finalised_ms
        is_over = all(session.idle for session in self.channels)
        return self._guard.take(events, read_ms, is_over=is_over)

    def resume(self, state: ResumeState, finalised_ms: int, seg: int) -> None:
        """Go on after `finalised_ms`; see `Session.resume`. The channels begin anew."""
        self._begins, self._seg = (ResumeState(start_ms=state.start_ms), finalised_ms), seg

    def voice(self, speaker: int) -> tuple[bytes, int] | None:
        """Return the voiceprint of a speaker, as `Session`; a channel as such is no voice."""
        has_voices = self.new_theirs is not None and len(self.channels) >= SYSTEM
        has_voice = has_voices and speaker >= SYSTEM
        return self.channels[SYSTEM - 1].voice(speaker - 1) if has_voice else None

    @property
    def resume_state(self) -> ResumeState:
        """What another one needs to continue: each channel begins anew."""
        return ResumeState(start_ms=self.finalised_ms, language=self.language)

    @property
    def now(self) -> int:
        return max((session.now for session in self.channels), default=0)

    @property
    def now_ms(self) -> int:
        return max((session.now_ms for session in self.channels), default=self._begins[0].start_ms)

    @property
    def language(self) -> str:
        """The language that was heard last in the first channel that has one, or empty."""
        return next((session.language for session in self.channels if session.language), "")

    @property
    def backlog(self) -> int:
        return max((session.backlog for session in self.channels), default=0)

    @property
    def late(self) -> bool:
        return any(session.late for session in self.channels)

    @property
    def idle(self) -> bool:
        is_told = self._guard is None or self._guard.is_idle
        return is_told and all(session.idle for session in self.channels)

    @property
    def finalised_ms(self) -> int:
        """Time before which no channel needs its audio again."""
        reached_ms = min((each.finalised_ms for each in self.channels), default=self._begins[1])
        held_ms = self._guard.held_since_ms if self._guard is not None else None
        return reached_ms if held_ms is None else min(reached_ms, held_ms)

    @property
    def due(self) -> bool:
        return any(session.due for session in self.channels)

    @property
    def due_for_final(self) -> bool:
        return any(session.due_for_final for session in self.channels)

    def feed(self, frames: Frames) -> list[SessionEvent]:
        """Take the next (n, channels, 320) frames, or (n, 320) of one; what they lack is silent."""
        frames = frames if frames.ndim == 3 else frames[:, np.newaxis]
        self._grow(frames.shape[1])
        silence = np.zeros((len(frames), FRAME), np.float32)
        told = self._all(
            session.feed(frames[:, i] if i < frames.shape[1] else silence)
            for i, session in enumerate(self.channels)
        )
        if self._guard is not None:
            self._guard.hear(frames, self.now_ms)
        return self._without_echo(told)

    def gap(self, duration_ms: int, why: GapReason) -> list[SessionEvent]:
        self._grow(1)
        return self._without_echo(
            self._all(session.gap(duration_ms, why) for session in self.channels)
        )

    def flush(self) -> list[SessionEvent]:
        return self._without_echo(self._all(session.flush() for session in self.channels))

    def next_window(self) -> Window | None:
        """Return a window that a final waits for, or that of the channel that has waited longest.

        See `Session.next_window`.
        """
        for session in sorted(self._turns, key=lambda each: not each.due_for_final):
            if session.due and (window := session.next_window()) is not None:
                self._turns.remove(session)
                self._turns.append(session)
                self._out[self.channels.index(session) + 1] = window, session
                return window
        return None

    def accept(self, window: Window, hypothesis: Hypothesis) -> list[SessionEvent]:
        for channel, (out, session) in self._out.items():
            if out is window:
                del self._out[channel]
                return self._without_echo(self._of(channel, session.accept(window, hypothesis)))
        raise RuntimeError("this window did not come from next_window()")

    def _grow(self, n_channels: int) -> None:
        state, finalised_ms = self._begins
        if self.channels:  # a source with more channels follows one with fewer
            state, finalised_ms = ResumeState(start_ms=self.now_ms), self.now_ms
        while len(self.channels) < n_channels:
            session = self.new(len(self.channels) + 1)
            session.resume(state, finalised_ms, 1)
            self.channels.append(session)
            self._turns.append(session)

    def new(self, channel: int) -> Session:
        """Make a session for a channel."""
        has_voices = channel == SYSTEM and self.new_theirs is not None
        return self.new_theirs() if has_voices and self.new_theirs else self.new_session()

    def _all(self, events: Iterable[Sequence[SessionEvent]]) -> list[SessionEvent]:
        """Return the events of all channels; what all of them lost is told once."""
        told: list[SessionEvent] = []
        for channel, own in enumerate(events, 1):
            told += [
                event
                for event in self._of(channel, own)
                if not isinstance(event, Gap) or event not in told
            ]
        return told

    def _of(self, channel: int, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """Return the events of a channel as those of the stream."""
        told: list[SessionEvent] = []
        has_voices = channel == SYSTEM and self.new_theirs is not None
        for event in events:
            if isinstance(event, Partial | Final):
                own = behind(event, channel) if has_voices else of_channel(event, channel)
                told.append(self._numbered(channel, own))
            elif has_voices and isinstance(event, SpeakerTurns | SpeakerName):
                told.append(behind(event, channel))
            elif isinstance(event, TurnEvent):
                told.append(self._numbered(channel, event))
            else:
                told.append(replace(event, channel=channel) if isinstance(event, Vad) else event)
        return told

    def _numbered(self, channel: int, event: NumberedT) -> NumberedT:
        seg = self._segs.setdefault((channel, event.seg), self._seg)
        self._seg = max(self._seg, seg + 1)
        if isinstance(event, Final):
            over = [key for key in self._segs if key[0] == channel and key[1] <= event.seg]
            for key in over:
                del self._segs[key]
        return replace(event, seg=seg)


AnySession = Session | SplitSession


def adopt(session: AnySession, other: AnySession) -> None:
    """Go on with the options of another session of the same kind; see `Session.adopt`."""
    if isinstance(session, SplitSession) and isinstance(other, SplitSession):
        session.new_session, session.new_theirs = other.new_session, other.new_theirs
        for number, channel in enumerate(session.channels, 1):
            channel.adopt(session.new(number))
    elif isinstance(session, Session) and isinstance(other, Session):
        session.adopt(other)
