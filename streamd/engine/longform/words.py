"""Gives a window's segments their words, and makes the times of both fit each other.

Word times come from attention and are worst around pauses, where a word seems to last for seconds;
timestamps know better where a segment starts and ends. Source: openai/whisper ``timing.py``
(`add_word_timestamps`), rule for rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from streamd.engine.longform.options import LongformOptions
from streamd.engine.longform.segments import COLUMN_MS, Segment, SpokenWord
from streamd.search.words import merge_punctuation
from streamd.types import FRAME_MS, Word, ms_from_frames

_SENTENCE_ENDS = ".。!！?？"
_LONGEST_MEDIAN_MS = 700
_FAR_MS = 500
"""A word that sticks out of its segment by more is too long."""

Align = Callable[[Sequence[int]], list[Word]]
"""Aligns text tokens with the window: words with times in its frames, punctuation apart."""


def with_words(
    segments: Sequence[Segment],
    align: Align,
    options: LongformOptions,
    *,
    eot: int,
    last_speech_ms: int,
) -> list[Segment]:
    """Give the segments of one window their words and better times.

    Parameters
    ----------
    eot : end-of-text; smaller tokens are text
    last_speech_ms : when the last word before the window ended
    """
    texts = [[token for token in segment.tokens if token < eot] for segment in segments]
    aligned = align([token for text in texts for token in text])
    median_ms = _median_ms(aligned)
    words = merge_punctuation(
        _cut_at_sentence_ends(aligned, 2 * median_ms // FRAME_MS),
        prepended=options.prepend_punctuations,
        appended=options.append_punctuations,
    )
    n_taken = 0
    timed = []
    for segment, text in zip(segments, texts, strict=True):
        spoken, n_tokens = [], 0
        while n_taken < len(words) and n_tokens < len(text):
            spoken.append(_spoken(words[n_taken], segment.seek * COLUMN_MS))
            n_tokens += len(words[n_taken].tokens)
            n_taken += 1
        if spoken:
            _shorten_first(spoken, median_ms, last_speech_ms)
            segment = _agreed(segment, spoken, median_ms)
            last_speech_ms = segment.end_ms
        timed.append(segment)
    return timed


def _median_ms(words: Sequence[Word]) -> int:
    """Of the durations of words that have one; whole, since it is half of a number of frames."""
    durations = [word.end - word.start for word in words if word.end > word.start]
    return min(_LONGEST_MEDIAN_MS, int(np.median(durations) * FRAME_MS)) if durations else 0


def _cut_at_sentence_ends(words: Sequence[Word], longest: int) -> list[Word]:
    """Take the pause between two sentences from the full stop, or from the word behind it."""
    if not longest:
        return list(words)
    cut = list(words[:1])
    for before, word in pairwise(words):
        if word.end - word.start > longest:
            if word.text in _SENTENCE_ENDS:
                word = replace(word, end=word.start + longest)
            elif before.text in _SENTENCE_ENDS:
                word = replace(word, start=word.end - longest)
        cut.append(word)
    return cut


def _spoken(word: Word, origin_ms: int) -> SpokenWord:
    start_ms, end_ms = (origin_ms + ms_from_frames(at) for at in (word.start, word.end))
    return SpokenWord(word.text, start_ms, end_ms, word.prob)


def _shorten_first(words: list[SpokenWord], median_ms: int, last_speech_ms: int) -> None:
    """Take a pause before the segment from its first two words."""
    first, second, longest_ms = words[0], (words[1] if len(words) > 1 else None), 2 * median_ms
    too_long = first.duration_ms > longest_ms or (
        second is not None and second.end_ms - first.start_ms > 2 * longest_ms
    )
    if first.end_ms - last_speech_ms <= 4 * median_ms or not too_long:
        return
    if second is not None and second.duration_ms > longest_ms:
        boundary_ms = max(second.end_ms // 2, second.end_ms - longest_ms)
        first = replace(first, end_ms=boundary_ms)
        words[1] = replace(second, start_ms=boundary_ms)
    words[0] = replace(first, start_ms=max(0, first.end_ms - longest_ms))


def _agreed(segment: Segment, words: list[SpokenWord], median_ms: int) -> Segment:
    """The segment with its words; where they are far apart, its own times are believed."""
    start_ms, end_ms = segment.start_ms, segment.end_ms
    first = words[0]
    if first.start_ms + _FAR_MS < start_ms < first.end_ms:
        words[0] = replace(first, start_ms=max(0, min(first.end_ms - median_ms, start_ms)))
    else:
        start_ms = first.start_ms
    last = words[-1]
    if last.start_ms < end_ms < last.end_ms - _FAR_MS:
        words[-1] = replace(last, end_ms=max(last.start_ms + median_ms, end_ms))
    else:
        end_ms = last.end_ms
    return replace(segment, start_ms=start_ms, end_ms=end_ms, words=tuple(words))
