"""Who says the words of captions: turns of speakers are joined, compared, and applied to words."""

from collections.abc import Iterable, MutableSequence, Sequence
from typing import TypeVar

from msgspec.structs import replace

from streamd.events import Final, Gap, Sound, SpeakerTurn, SpeakerTurns, TimedWord
from streamd.speakers import REMEMBERED, SpokenTurn, speaker_at
from streamd.types import frames_from_ms, ms_from_frames


def with_speaker(word: TimedWord, turns: Iterable[SpokenTurn]) -> TimedWord:
    """Return a word with who talks most while it is said; the same word if nobody does."""
    speaker = speaker_at(turns, frames_from_ms(word.start_ms), frames_from_ms(word.end_ms))
    return replace(word, speaker=speaker) if speaker else word


def numbered(word: TimedWord, numbers: dict[int, int]) -> TimedWord:
    """Return a word with the number of its speaker; who has none in `numbers` gets the next one."""
    if not word.speaker:
        return word
    number = numbers.setdefault(word.speaker, max(numbers.values(), default=0) + 1)
    return replace(word, speaker=number)


def with_speakers(final: Final, turns: Iterable[SpokenTurn], since: int = -1) -> Final:
    """Return a final whose words after frame `since` have the speakers of `turns`.

    It is the same object if none of them changes.
    """
    start, end = frames_from_ms(final.start_ms), frames_from_ms(final.end_ms)
    near = [
        turn for turn in turns if turn.start < end + REMEMBERED and turn.end > start - REMEMBERED
    ]
    words = tuple(
        word if frames_from_ms(word.end_ms) <= since else with_speaker(word, near)
        for word in final.words
    )
    return final if words == final.words else replace(final, words=words)


def revised(turns: Sequence[SpokenTurn], event: SpeakerTurns) -> list[SpokenTurn]:
    """Return who talks when, of the last minute, after an event that replaces a part of it."""
    start, end = frames_from_ms(event.start_ms), frames_from_ms(event.end_ms)
    before = (turn for turn in turns if turn.start < start and turn.end > end - REMEMBERED)
    return [
        *(SpokenTurn(turn.start, min(turn.end, start), turn.speaker) for turn in before),
        *(
            SpokenTurn(frames_from_ms(turn.start_ms), frames_from_ms(turn.end_ms), turn.speaker)
            for turn in event.turns
        ),
    ]


ItemT = TypeVar("ItemT", Final, Final | Gap | Sound)


def revise(
    items: MutableSequence[ItemT], turns: Sequence[SpokenTurn], event: SpeakerTurns
) -> list[int]:
    """Replace the newest finals whose speakers `event` changes; return which, the newest first.

    `turns` is what `revised` returns for the event.
    """
    changed, since = [], frames_from_ms(event.start_ms)
    for i in reversed(range(len(items))):
        if not isinstance(final := items[i], Final):
            continue
        if frames_from_ms(final.end_ms) <= since - REMEMBERED:
            break
        if (again := with_speakers(final, turns, since)) is not final:
            items[i] = again
            changed.append(i)
    return changed


def joined(earlier: SpeakerTurns | None, event: SpeakerTurns, *, most: int) -> SpeakerTurns:
    """Return what both events say together: of `most` turns, the newest ones."""
    if earlier is None:
        return event
    kept = (turn for turn in earlier.turns if turn.start_ms < event.start_ms)
    cut = (replace(turn, end_ms=min(turn.end_ms, event.start_ms)) for turn in kept)
    turns, start_ms = (*cut, *event.turns), min(earlier.start_ms, event.start_ms)
    if len(turns) > most:
        turns = turns[-most:]
        start_ms = turns[0].start_ms
    return replace(event, start_ms=start_ms, turns=turns)


def shown(turns: Iterable[SpokenTurn]) -> tuple[SpeakerTurn, ...]:
    """Return turns in wire form."""
    return tuple(
        SpeakerTurn(
            start_ms=ms_from_frames(turn.start),
            end_ms=ms_from_frames(turn.end),
            speaker=turn.speaker,
        )
        for turn in turns
    )


def changed(
    before: Sequence[SpokenTurn], now: Sequence[SpokenTurn], since: int, end: int
) -> SpeakerTurns:
    """Return who talks from frame `since` to `end`, and before, wherever that has changed."""
    oldest = max(end - REMEMBERED, 0)
    first = min((max(turn.start, oldest) for turn in {*before} ^ {*now}), default=since)
    start = max(min(since, first), oldest)
    turns = shown(
        SpokenTurn(max(turn.start, start), turn.end, turn.speaker)
        for turn in now
        if turn.end > start
    )
    return SpeakerTurns(start_ms=ms_from_frames(start), end_ms=ms_from_frames(end), turns=turns)
