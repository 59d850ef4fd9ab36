"""Who says the words of a session's events."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from streamd.events import Final, Partial, SessionEvent, SpeakerName, SpeakerTurns, TimedWord
from streamd.labels import changed, numbered, with_speakers
from streamd.speakers import (
    REMEMBERED,
    VOICEPRINT_BYTES,
    HearingRequest,
    HearingSteps,
    Roster,
    SpokenTurn,
    changes,
)
from streamd.speakers.people import Person, recognised
from streamd.types import Samples, ms_from_frames


class WhoSpeaks:
    """Tells the speakers of a session apart, if that is wanted; otherwise it changes nothing.

    Readers see numbers of its own: a voice gets the next one with the first word that is final. So
    who only coughs or laughs takes none. A voice that is known gets one with any word.
    """

    def __init__(self) -> None:
        self._roster: Roster | None = None
        self._steps = HearingSteps()
        self._turns: list[SpokenTurn] = []  # under the numbers of the roster, of all voices
        self._told: list[SpokenTurn] = []  # under those that readers see
        self._numbers: dict[int, int] = {}  # from the former to the latter
        self._finals: list[Final] = []  # of the last minute
        self._people: tuple[Person, ...] = ()
        self._called: dict[int, str] = {}  # by the numbers that readers see
        self._who_is: dict[int, str] = {}  # by the numbers of the roster

    def resume(self, voiceprints: tuple[bytes, ...] | UnsetType) -> None:
        """Know the speakers of an earlier process."""
        if voiceprints is not UNSET:
            self._roster = Roster(voiceprints)
            self._numbers = {number: number for number in range(1, len(voiceprints) + 1)}

    def meet(self, people: Sequence[Person]) -> None:
        """Know the voices of people."""
        self._people = tuple(people)

    def voice(self, number: int) -> tuple[bytes, int] | None:
        """Return the voiceprint of a speaker, and of how many frames; None if it is not known."""
        if self._roster is None:
            return None
        known = enumerate(self._roster.prints, 1)
        own = (each for voice, each in known if self._numbers.get(voice) == number)
        return max(own, key=lambda each: each[1], default=None)

    @property
    def voiceprints(self) -> tuple[bytes, ...] | UnsetType:
        """What another session needs to know the speakers, in the order of their numbers."""
        if self._roster is None:
            return UNSET
        known = {voice: each for voice, (each, _) in enumerate(self._roster.prints, 1)}
        prints = {number: known.get(each) for each, number in self._numbers.items()}
        order = range(1, max(prints, default=0) + 1)
        return tuple(prints.get(number) or bytes(VOICEPRINT_BYTES) for number in order)

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

    def hear(self, heard: Sequence[object]) -> list[SessionEvent]:
        """Take what was heard, step by step, and return who talks wherever that changes."""
        events: list[SessionEvent] = []
        for roster in (each for each in heard if isinstance(each, Roster)):
            since = self._roster.heard if self._roster else 0
            self._roster, self._turns = roster, roster.turns
            if self._people:
                self._who_is = {
                    voice: recognised(*each, self._people, self._who_is.get(voice, ""))
                    for voice, each in enumerate(roster.prints, 1)
                }
            oldest_ms = ms_from_frames(roster.heard - REMEMBERED)
            self._finals = [final for final in self._finals if final.end_ms > oldest_ms]
            if new := [turn.start for turn in self._turns if turn.speaker not in self._numbers]:
                # What was taken for one voice may turn out to be two. Readers keep earlier words.
                said = (with_speakers(final, self._turns, min(new)) for final in self._finals)
                self._number(word for final in said for word in final.words)
            events.append(self._tell(since, roster.heard))
        return events

    def _number(self, words: Iterable[TimedWord]) -> bool:
        """Give numbers to those who say words and have none; return whether there are any."""
        n_known = len(self._numbers)
        for word in words:
            numbered(word, self._numbers)
        return len(self._numbers) > n_known

    def _tell(self, since: int, end: int) -> SpeakerTurns:
        """Return who talks from frame `since` to `end`, and before, wherever that has changed."""
        shown = (turn for turn in self._turns if turn.speaker in self._numbers)
        now = [SpokenTurn(turn.start, turn.end, self._numbers[turn.speaker]) for turn in shown]
        before, self._told = self._told, now
        return changed(before, now, since, end)

    @property
    def changes(self) -> list[int]:
        """The frames of the last minute at which another speaker begins."""
        return changes(self._turns)

    def name(self, events: Sequence[SessionEvent]) -> list[SessionEvent]:
        """Return the events with the speaker of each word.

        Before them comes who talked where somebody has just got a number, and who they are, if
        their voice is known.
        """
        if self._roster is None:
            return list(events)
        turns = [event for event in events if isinstance(event, SpeakerTurns)]
        said = [
            with_speakers(event, self._turns) if isinstance(event, Partial | Final) else event
            for event in events
            if not isinstance(event, SpeakerTurns)
        ]
        captions = [event for event in said if isinstance(event, Partial | Final)]
        self._finals += [event for event in captions if isinstance(event, Final)]
        words = (word for event in captions for word in event.words)
        if self._number(word for word in words if word.final or self._is_known(word)):
            turns.append(self._tell(self._roster.heard, self._roster.heard))
        numbers = dict(self._numbers)  # words that are not final may vanish again
        told: list[SessionEvent] = [*turns, *self._greeted()]
        return told + [
            replace(event, words=tuple(numbered(word, numbers) for word in event.words))
            if isinstance(event, Partial | Final)
            else event
            for event in said
        ]

    def _is_known(self, word: TimedWord) -> bool:
        """Whether who says a word is known: nobody else's cough takes their number."""
        return bool(self._who_is.get(word.speaker or 0))

    def _greeted(self) -> list[SpeakerName]:
        """Return who was recognised since, and who is not who they seemed to be."""
        told = []
        for voice, number in self._numbers.items():
            name = self._who_is.get(voice, "")
            if name != self._called.get(number, ""):
                self._called[number] = name
                told.append(SpeakerName(speaker=number, name=name))
        return told
