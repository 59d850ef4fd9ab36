"""Writes the transcript of a session at once, as it stands: who says what, and what was corrected.

A transcript that is written while people speak has each final as it was when it came.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from unicodedata import category

from msgspec.structs import replace

from streamd.events import Correction, Event, Final, Gap, SpeakerTurns
from streamd.labels import revised, with_speakers
from streamd.sinks import Format
from streamd.sinks.text import aligned
from streamd.speakers import SpokenTurn
from streamd.types import frames_from_ms


def transcript(events: Iterable[Event], form: Format) -> str:
    """Return a file of a session's finals and gaps, given in order with what revises them."""
    lasting: list[Final | Gap] = []
    corrections: dict[int, list[Correction]] = {}
    turns: list[SpokenTurn] = []
    for event in events:
        match event:
            case Final() | Gap():
                lasting.append(event)
            case Correction():
                corrections.setdefault(event.seq, []).append(event)
            case SpeakerTurns():
                turns, since = revised(turns, event), frames_from_ms(event.start_ms)
                lasting = [
                    with_speakers(each, turns, since) if isinstance(each, Final) else each
                    for each in lasting
                ]
    text = form.header
    for each in lasting:
        if isinstance(each, Final):
            text += form.append(corrected(each, corrections.get(each.seq, ())))
        else:
            text += form.append(each)
    return text + form.end(complete=True)


def corrected(final: Final, corrections: Sequence[Correction]) -> Final:
    """Return a final with the text of its corrections, of which newer ones replace older ones.

    The marks around the words that a correction replaces stay. What is about words that the final
    does not have is ignored.
    """
    kept: list[Correction] = []
    for each in corrections:
        if each.first <= each.last < len(final.words):
            others = (other for other in kept if other.last < each.first or other.first > each.last)
            kept = [*others, each]
    text, words = final.text, list(final.words)
    for each in sorted(kept, key=_first, reverse=True):
        places = list(aligned(text, words[: each.last + 1]))
        if len(places) <= each.last:
            continue
        start, end = places[each.first][0], places[each.last][1]
        meant = _with_marks(each.text, text[start:end])
        text = text[:start] + meant + text[end:]
        one = replace(words[each.first], text=meant, end_ms=words[each.last].end_ms)
        words[each.first : each.last + 1] = [one]
    return replace(final, text=text, words=tuple(words)) if kept else final


def _first(correction: Correction) -> int:
    return correction.first


def _with_marks(meant: str, was: str) -> str:
    """Return what was meant, between the marks around what it `was`."""
    before = "".join(takewhile(_opens, was))
    after = "".join(takewhile(_is_mark, reversed(was[len(before) :])))
    return before + meant + after[::-1]


def _opens(char: str) -> bool:
    return category(char) in ("Ps", "Pi") or char in "\"'¿¡"


def _is_mark(char: str) -> bool:
    return category(char).startswith("P")
