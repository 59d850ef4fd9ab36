"""Gives a window's segments their words, and makes the times of both fit each other.

Word times come from attention and are worst around pauses, where a word seems to last for seconds;
timestamps know better where a segment starts and ends. Source: openai/whisper ``timing.py``
(`add_word_timestamps`), rule for rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from streamd.engine.longform.segments import Segment, SpokenWord
from streamd.options import LongformOptions
from streamd.search.words import with_punctuation
from streamd.types import Word

_PER_SECOND = 50
"""Frames."""
_SENTENCE_ENDS = ".。!！?？"
_LONGEST_MEDIAN_S = 0.7
_FAR_S = 0.5
"""A word that sticks out of its segment by more is too long."""

Align = Callable[[Sequence[int]], list[Word]]
"""Aligns text tokens with the window: words with times in its frames, punctuation apart."""


def with_words(
    segments: Sequence[Segment],
    align: Align,
    options: LongformOptions,
    *,
    eot: int,
    origin_s: float,
    last_speech_s: float,
) -> list[Segment]:
    """Give the segments of one window their words and better times.

    Parameters
    ----------
    eot : end-of-text; smaller tokens are text
    origin_s : when the window begins
    last_speech_s : when the last word before the window ended
    """
    texts = [[token for token in segment.tokens if token < eot] for segment in segments]
    aligned = align([token for text in texts for token in text])
    times = [(word.start / _PER_SECOND, word.end / _PER_SECOND) for word in aligned]
    median_s = _median(times)
    times = _cut_at_sentence_ends(aligned, times, 2 * median_s)
    groups = with_punctuation(
        [word.text for word in aligned],
        prepended=options.prepend_punctuations,
        appended=options.append_punctuations,
    )
    timed = []
    for segment, text in zip(segments, texts, strict=True):
        spoken, n_tokens = [], 0
        while groups and n_tokens < len(text):
            group, *groups = groups
            parts = aligned[group.first : group.last]
            start_s, end_s = (round(origin_s + at_s, 2) for at_s in times[group.main])
            said = "".join(word.text for word in parts)
            spoken.append(SpokenWord(said, start_s, end_s, aligned[group.main].prob))
            n_tokens += sum(len(word.tokens) for word in parts)
        if spoken:
            _shorten_first(spoken, median_s, last_speech_s)
            segment = _agreed(segment, spoken, median_s)
            last_speech_s = segment.end_s
        timed.append(segment)
    return timed


def _median(times: Sequence[tuple[float, float]]) -> float:
    """Of the durations of words that have one, in seconds."""
    durations = [end_s - start_s for start_s, end_s in times if end_s != start_s]
    return min(_LONGEST_MEDIAN_S, float(np.median(durations))) if durations else 0.0


def _cut_at_sentence_ends(
    words: Sequence[Word], times: list[tuple[float, float]], longest_s: float
) -> list[tuple[float, float]]:
    """Take the pause between two sentences from the full stop, or from the word behind it."""
    cut = times[:1]
    for i in range(1, len(words)):
        start_s, end_s = times[i]
        if longest_s and end_s - start_s > longest_s:
            if words[i].text in _SENTENCE_ENDS:
                end_s = start_s + longest_s
            elif words[i - 1].text in _SENTENCE_ENDS:
                start_s = end_s - longest_s
        cut.append((start_s, end_s))
    return cut


def _shorten_first(words: list[SpokenWord], median_s: float, last_speech_s: float) -> None:
    """Take a pause before the segment from its first two words."""
    first, second, longest_s = words[0], (words[1] if len(words) > 1 else None), 2 * median_s
    too_long = first.end_s - first.start_s > longest_s or (
        second is not None and second.end_s - first.start_s > 2 * longest_s
    )
    if first.end_s - last_speech_s <= 4 * median_s or not too_long:
        return
    if second is not None and second.end_s - second.start_s > longest_s:
        boundary_s = max(second.end_s / 2, second.end_s - longest_s)
        first = replace(first, end_s=boundary_s)
        words[1] = replace(second, start_s=boundary_s)
    words[0] = replace(first, start_s=max(0.0, first.end_s - longest_s))


def _agreed(segment: Segment, words: list[SpokenWord], median_s: float) -> Segment:
    """The segment with its words; where they are far apart, its own times are believed."""
    start_s, end_s = segment.start_s, segment.end_s
    first = words[0]
    if start_s < first.end_s and start_s - _FAR_S > first.start_s:
        words[0] = replace(first, start_s=max(0.0, min(first.end_s - median_s, start_s)))
    else:
        start_s = first.start_s
    last = words[-1]
    if end_s > last.start_s and end_s + _FAR_S < last.end_s:
        words[-1] = replace(last, end_s=max(last.start_s + median_s, end_s))
    else:
        end_s = last.end_s
    return replace(segment, start_s=start_s, end_s=end_s, words=tuple(words))
