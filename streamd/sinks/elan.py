"""Transcripts for linguists: eaf, ELAN's annotations, by pympi-ling.

Each speaker has a tier of sentences, and below it one of their words. Praat reads it after ELAN has
exported it as a TextGrid.
"""

from collections.abc import Sequence
from operator import itemgetter

from pympi import Eaf
from pympi.Elan import to_string

from streamd.events import Final, Gap, Item, Sound
from streamd.labels import by_speaker
from streamd.sinks import About
from streamd.sinks.text import clean, gap_notice, speaker_name

_WORDS = "words"
"""The type of tiers whose annotations are inside those of another tier, with gaps between."""


def annotations(said: Sequence[Item], about: About) -> bytes:
    """Return a transcript as an eaf file; where it is not known who speaks, in a tier Transcript.

    In a tier nothing may overlap, so an annotation begins where the one before ends.
    """
    eaf, ends = Eaf(author="streamd"), dict[str, int]()
    eaf.remove_tier("default")
    eaf.add_linguistic_type(_WORDS, constraints="Included_In")
    for each in said:
        if isinstance(each, Gap):
            _add(eaf, "Lost audio", gap_notice(each), (each.t_ms, each.t_ms + each.duration_ms))
            continue
        if isinstance(each, Sound):
            _add(eaf, f"Sound: {each.label}", each.label, (each.start_ms, each.end_ms))
            continue
        for part in by_speaker(each):
            if part.text:
                tier = speaker_name(part.speaker, about.names) or "Transcript"
                ends[tier] = _put(eaf, part, tier, ends.get(tier, 0))
    _number_in_order(eaf)
    return bytes(to_string(eaf, encoding="UTF-8"))


def _number_in_order(eaf: Eaf) -> None:
    """Number the times by their order, in which ELAN has them; pympi does by tier."""
    slots = sorted(eaf.timeslots.items(), key=itemgetter(1))
    new = {slot: f"ts{number}" for number, (slot, _) in enumerate(slots, 1)}
    eaf.timeslots = {new[slot]: t_ms for slot, t_ms in slots}
    for aligned, *_ in eaf.tiers.values():
        for key, (start, end, *rest) in aligned.items():
            aligned[key] = (new[start], new[end], *rest)


def _put(eaf: Eaf, part: Final, tier: str, begin_ms: int) -> int:
    """Add a sentence and its words, which begin at `begin_ms` or later; return its end."""
    n_words = len(part.words)
    start_ms = max(part.start_ms, begin_ms)
    end_ms = max(part.end_ms, start_ms + max(1, n_words))  # nothing is empty, not even a word
    _add(eaf, tier, part.text, (start_ms, end_ms))
    at_ms = start_ms
    for n_left, word in zip(reversed(range(n_words)), part.words, strict=True):
        first_ms = min(max(word.start_ms, at_ms), end_ms - n_left - 1)
        at_ms = min(max(word.end_ms, first_ms + 1), end_ms - n_left)
        _add(eaf, f"{tier} {_WORDS}", word.text, (first_ms, at_ms), parent=tier)
    return end_ms


def _add(eaf: Eaf, tier: str, text: str, span_ms: tuple[int, int], parent: str = "") -> None:
    if tier not in eaf.tiers:
        eaf.add_tier(tier, _WORDS if parent else "default-lt", parent or None)
    eaf.add_annotation(tier, *span_ms, clean(text))
