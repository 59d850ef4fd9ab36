"""Who says the words of captions, the one place that tells: numbers, turns and names of speakers.

Turns are joined, compared, and applied to words; a caption is cut where another speaker begins; a
number becomes a name. Whatever shows or stores captions asks here. Only the page has code of its
own (clients/web/speakers.js), as every client that is told by docs/protocol.md.
"""

import re
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from itertools import pairwise
from typing import TypeVar
from unicodedata import category

from msgspec import UNSET
from msgspec.structs import replace

from streamd.events import (
    CaptionT,
    Final,
    Item,
    Partial,
    SpeakerName,
    SpeakerTurn,
    SpeakerTurns,
    TimedWord,
    aligned,
)
from streamd.language import belongs
from streamd.speakers import REMEMBERED, SpokenTurn, talking
from streamd.types import frames_from_ms, ms_from_frames

_ENDS = re.compile("[.?!…。？！][\"'”’)\\]»」』]*$")
"""The end of a sentence, as the page takes it: an abbreviation harms little here."""


def _talking(word: TimedWord, turns: Sequence[SpokenTurn], since: int) -> dict[int, int]:
    start, end = frames_from_ms(word.start_ms), frames_from_ms(word.end_ms)
    if end <= since:
        return {word.speaker: end - start} if word.speaker else {}
    return talking(turns, start, end)


def numbered(word: TimedWord, numbers: dict[int, int]) -> TimedWord:
    """Return a word with the number of its speaker; who has none in `numbers` gets the next one."""
    if not word.speaker:
        return word
    number = numbers.setdefault(word.speaker, max(numbers.values(), default=0) + 1)
    return replace(word, speaker=number)


def with_speakers(event: CaptionT, turns: Iterable[SpokenTurn], since: int = -1) -> CaptionT:
    """Return a caption with the speakers of `turns` after frame `since`, or itself if it has them.

    A word is said by who talks most meanwhile, but a sentence by one person, if that one talks
    during all of it: where two talk at once, either may have said a word.
    """
    start, end = frames_from_ms(event.start_ms), frames_from_ms(event.end_ms)
    near = [
        turn for turn in turns if turn.start < end + REMEMBERED and turn.end > start - REMEMBERED
    ]
    words: list[TimedWord] = []
    ends: list[int] = [n for n, word in enumerate(event.words, 1) if _ENDS.search(word.text)]
    for first, after in pairwise(sorted({0, len(event.words), *ends})):
        each = [(word, _talking(word, near, since)) for word in event.words[first:after]]
        through = [who for who in each[0][1] if all(who in shares for _, shares in each)]
        one = max(through, key=lambda who: sum(shares[who] for _, shares in each), default=0)
        for word, shares in each:
            speaker = one or max(shares, key=lambda who: shares[who], default=0)
            words.append(replace(word, speaker=speaker) if speaker else word)
    return event if (*words,) == event.words else replace(event, words=tuple(words))


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


ItemT = TypeVar("ItemT", Final, Item)


def revise(
    items: MutableSequence[ItemT], turns: Sequence[SpokenTurn], event: SpeakerTurns
) -> list[int]:
    """Replace the newest finals whose speakers `event` changes; return which, the newest first.

    `turns` is what `revised` returns for the event.
    """
    changed, since = [], frames_from_ms(event.start_ms)
    for i in reversed(range(len(items))):
        final = items[i]
        if not isinstance(final, Final) or final.channel != event.channel:
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


def of_channel(event: CaptionT, channel: int) -> CaptionT:
    """Return the caption of a channel, whose number is that of the speaker."""
    words = tuple(replace(word, speaker=channel) for word in event.words)
    return replace(event, channel=channel, words=words)


_INSIDE = re.compile("[!-~\xa1-\u024f]{2}")
"""Two characters that belong together, in Latin script."""


def _is_inside(text: str, at: int) -> bool:
    """Whether a speaker cannot have begun there."""
    before, after = text[at - 1 : at], text[at : at + 1]
    return bool(_INSIDE.match(text, at - 1)) or (not before.isspace() and belongs(before, after))


def by_speaker(event: CaptionT) -> list[CaptionT]:
    """Return a caption in parts of one speaker each, or as it is if nothing is known of them.

    A word of nobody belongs to the speaker before it. So does one that follows without a blank in
    a script that has them, such as ",000" after "1".
    """
    placed = list(aligned(event.text, event.words))
    words = list(event.words)
    cuts: list[tuple[int, int]] = []  # where in the words and in the text another one begins
    speaker = next((word.speaker for word in event.words if word.speaker), UNSET)
    for i, (start, _, word) in enumerate(placed):
        if not word.speaker or word.speaker == speaker:
            continue
        if i > 0 and _is_inside(event.text, start):
            words[i] = replace(word, speaker=speaker)
        else:
            cuts.append((i, start))
            speaker = word.speaker
    if tuple(words) != event.words:
        event = replace(event, words=tuple(words))
    if not cuts:
        return [event]
    edges = [(0, 0), *cuts, (len(event.words), len(event.text))]
    return [_part(event, *first, *after) for first, after in pairwise(edges)]


def _part(event: CaptionT, first: int, start: int, after: int, end: int) -> CaptionT:
    words, text = event.words[first:after], event.text[start:end].strip()
    start_ms = words[0].start_ms if first else event.start_ms
    end_ms = words[-1].end_ms if after < len(event.words) else max(event.end_ms, start_ms)
    if isinstance(event, Partial):
        stable = min(max(0, event.stable - start), len(text))
        return replace(
            event, text=text, words=words, start_ms=start_ms, end_ms=end_ms, stable=stable
        )
    return replace(event, text=text, words=words, start_ms=start_ms, end_ms=end_ms, details=UNSET)


VoicesT = TypeVar("VoicesT", SpeakerTurns, SpeakerName, Partial | Final, SpeakerTurns | SpeakerName)


def behind(event: VoicesT, channel: int) -> VoicesT:
    """Return an event of a channel in which speakers are told apart.

    Their numbers follow those of the channels before it, each of which is one speaker.
    """
    n = channel - 1
    if isinstance(event, SpeakerName):
        return replace(event, speaker=event.speaker + n)
    if isinstance(event, SpeakerTurns):
        turns = tuple(replace(turn, speaker=turn.speaker + n) for turn in event.turns)
        return replace(event, turns=turns, channel=channel)
    words = tuple(
        replace(word, speaker=word.speaker + n) if word.speaker else word for word in event.words
    )
    return replace(event, words=words, channel=channel)


Names = Mapping[int, str]
"""What speakers are called, by number; the others are "Speaker 1" and so on."""
MOST_NAME = 100
"""Characters of a name: the longest of Wikidata's people have fewer, but a reader's screen is
filled by one that has thousands."""


def name_from(text: str) -> str:
    """Return a name as it is kept: without blanks around it, and with one between words.

    Raises `ValueError`, which says why, for what is no name: it is too long, or has characters that
    command a terminal or turn the direction of the text around it. An empty one takes a name back.
    """
    name = " ".join(text.split())
    if len(name) > MOST_NAME:
        raise ValueError(f"a name has at most {MOST_NAME} characters, not {len(name)}")
    if is_risky(name):
        raise ValueError("a name may not have control characters")
    return name


def is_risky(text: str) -> bool:
    """Whether a text of a client has characters that harm others where they are shown."""
    return any(category(char) in ("Cc", "Cs", "Cn") or char in _TURNING for char in text)


_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Overrides of the direction (UAX 9); joiners, which names of some languages need, may stay."""


def renamed(names: Names, event: SpeakerName) -> dict[int, str]:
    """Return what speakers are called after somebody has said so."""
    others = {number: name for number, name in names.items() if number != event.speaker}
    return {**others, event.speaker: event.name} if event.name else others


def name_of(speaker: int | None, names: Names) -> str:
    """Return what a speaker is called, or nothing where it is not known who speaks."""
    return (names.get(speaker, "") or f"Speaker {speaker}") if speaker else ""


def is_said_by(final: Final, speaker: int) -> bool:
    """Whether somebody says a word of a final."""
    return any(word.speaker == speaker for word in final.words)
