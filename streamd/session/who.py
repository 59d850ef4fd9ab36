"""Who says the words of a session's events."""

from collections.abc import Callable, Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from streamd.events import Final, Partial, SessionEvent, SpeakerTurn, SpeakerTurns, with_speaker
from streamd.speakers import (
    REMEMBERED,
    HearingRequest,
    HearingSteps,
    Roster,
    SpokenTurn,
    changes,
)
from streamd.types import Samples, ms_from_frames


class WhoSpeaks:
    """Tells the speakers of a session apart, if that is wanted; otherwise it changes nothing."""

    def __init__(self) -> None:
        self._roster: Roster | None = None
        self._steps = HearingSteps()
        self._turns: list[SpokenTurn] = []

    def resume(self, voiceprints: tuple[bytes, ...] | UnsetType) -> None:
        """Know the speakers of an earlier process."""
        if voiceprints is not UNSET:
            self._roster = Roster(voiceprints)

    @property
    def voiceprints(self) -> tuple[bytes, ...] | UnsetType:
        """What another session needs to know the speakers."""
        return self._roster.voiceprints if self._roster else UNSET

    def push(self, end: int, silence: int, late: int) -> None:
        """Take what the gate says of a frame; see `HearingSteps.push`."""
        self._steps.push(end, silence, late)

    def flush(self) -> None:
        """What was said so far is heard with the next window."""
        self._steps.flush()

    @property
    def oldest(self) -> int:
        """The frame from which on audio is still to be heard."""
        return self._steps.oldest

    def request(
        self, end: int, held: int, read: Callable[[int, int], Samples]
    ) -> HearingRequest | None:
        """Return what is due to be heard up to frame `end`; `read` audio from frame `held` on."""
        self._roster = self._roster or Roster()
        steps = tuple(step for step in self._steps.take(end) if step.start >= held)
        if not steps:
            return None
        start = min(step.start for step in steps)
        return HearingRequest(steps, start, read(start, steps[-1].end), self._roster)

    def hear(self, heard: Sequence[Roster]) -> list[SessionEvent]:
        """Take what was heard, step by step, and return who talks wherever that changes."""
        return [self._changed(roster) for roster in heard]

    def _changed(self, roster: Roster) -> SpeakerTurns:
        start, end = self._roster.heard if self._roster else 0, roster.heard
        before, self._roster, self._turns = self._turns, roster, roster.turns
        changed = min((turn.start for turn in {*before} ^ {*self._turns}), default=start)
        start = max(min(start, changed), end - REMEMBERED, 0)
        turns = tuple(
            SpeakerTurn(
                start_ms=ms_from_frames(max(turn.start, start)),
                end_ms=ms_from_frames(turn.end),
                speaker=turn.speaker,
            )
            for turn in self._turns
            if turn.end > start
        )
        start_ms, end_ms = ms_from_frames(start), ms_from_frames(end)
        return SpeakerTurns(start_ms=start_ms, end_ms=end_ms, turns=turns)

    @property
    def changes(self) -> list[int]:
        """The frames of the last minute at which another speaker begins."""
        return changes(self._turns)

    def name(self, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """Return the events with the speaker of each word."""
        if self._roster is None:
            return list(events)
        return [
            replace(event, words=tuple(with_speaker(word, self._turns) for word in event.words))
            if isinstance(event, Partial | Final)
            else event
            for event in events
        ]
