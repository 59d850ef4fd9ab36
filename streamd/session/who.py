"""Who says the words of a session's events."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from streamd.events import Final, Partial, SessionEvent, SpeakerTurn, SpeakerTurns, TimedWord
from streamd.speakers import HeardVoices, HearingRequest, Roster
from streamd.types import frames_from_ms, ms_from_frames


class WhoSpeaks:
    """Tells the speakers of a session apart, if that is wanted; otherwise it changes nothing."""

    def __init__(self) -> None:
        self._roster: Roster | None = None

    def resume(self, voiceprints: tuple[bytes, ...] | UnsetType) -> None:
        """Know the speakers of an earlier process."""
        if voiceprints is not UNSET:
            self._roster = Roster(voiceprints)

    @property
    def voiceprints(self) -> tuple[bytes, ...] | UnsetType:
        """What another session needs to know the speakers."""
        return self._roster.voiceprints if self._roster else UNSET

    def request(self, window: tuple[int, int], since: int, *, last: bool) -> HearingRequest | None:
        """Return what is to be heard of a window, whose utterance begins at `since`."""
        self._roster = self._roster or Roster()
        return self._roster.request(*window, since=since, last=last)

    def hear(self, heard: HeardVoices | None) -> list[SessionEvent]:
        """Take what the models found, and return who talks in the new audio."""
        if heard is None or self._roster is None:
            return []
        start, end = self._roster.hear(heard)
        turns = tuple(
            SpeakerTurn(
                start_ms=ms_from_frames(max(turn.start, start)),
                end_ms=ms_from_frames(min(turn.end, end)),
                speaker=turn.speaker,
            )
            for turn in self._roster.turns
            if turn.start < end and turn.end > start
        )
        start_ms, end_ms = ms_from_frames(start), ms_from_frames(end)
        return [SpeakerTurns(start_ms=start_ms, end_ms=end_ms, turns=turns)]

    def name(self, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """Return the events with the speaker of each word."""
        if self._roster is None:
            return list(events)
        return [
            replace(event, words=tuple(map(self._named, event.words)))
            if isinstance(event, Partial | Final)
            else event
            for event in events
        ]

    def _named(self, word: TimedWord) -> TimedWord:
        start, end = frames_from_ms(word.start_ms), frames_from_ms(word.end_ms)
        speaker = self._roster.speaker(start, end) if self._roster else 0
        return replace(word, speaker=speaker) if speaker else word
