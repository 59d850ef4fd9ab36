"""From the tokens of a window to segments and their words, and to where the next window starts.

Source: openai/whisper ``transcribe.py`` and ``timing.py`` (`add_word_timestamps`), rule for rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from streamd.mel import HOP
from streamd.options import LongformOptions
from streamd.search.decode import Decoded
from streamd.search.tokenizer import Tokenizer
from streamd.search.words import with_punctuation
from streamd.types import FRAME, SAMPLE_RATE, Word

COLUMNS_PER_S = SAMPLE_RATE // HOP
COLUMNS_PER_FRAME = FRAME // HOP
FRAMES_PER_S = SAMPLE_RATE // FRAME
FRAME_S = FRAME / SAMPLE_RATE
"""Resolution of timestamps."""
_SENTENCE_ENDS = ".。!！?？"
_LONGEST_MEDIAN_S = 0.7
_FAR_S = 0.5
"""Words that reach further out of their segment than this are too long."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The audio of one window: `n_columns` from column `seek` on."""

    seek: int
    n_columns: int

    @property
    def end(self) -> int:
        """The first column after it."""
        return self.seek + self.n_columns

    @property
    def start_s(self) -> float:
        """Its start in the recording."""
        return self.seek * HOP / SAMPLE_RATE

    @property
    def length_s(self) -> float:
        """Its duration."""
        return self.n_columns * HOP / SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """One word; `text` keeps its leading blank and its punctuation, `prob` is 0..1."""

    text: str
    start_s: float
    end_s: float
    prob: float


@dataclass(frozen=True, slots=True)
class TimedSegment:
    """A stretch of text between two timestamps, or all of a window.

    `seek` is the first column of its window, and `decoded` all of the window's text. `tokens`,
    whose probabilities are `probs`, may contain timestamps.
    """

    seek: int
    start_s: float
    end_s: float
    text: str
    tokens: tuple[int, ...]
    probs: tuple[float, ...]
    decoded: Decoded
    words: tuple[SpokenWord, ...] = ()

    def until(self, limit_s: float) -> Self:
        """Return the segment, ending at this time at the latest."""
        words = tuple(replace(word, end_s=min(word.end_s, limit_s)) for word in self.words)
        return replace(self, end_s=min(self.end_s, limit_s), words=words)


class Split(NamedTuple):
    """A window's segments, the next column to decode, and whether no text follows the segments."""

    segments: list[TimedSegment]
    seek: int
    complete: bool


def split(decoded: Decoded, tokenizer: Tokenizer, stretch: Stretch) -> Split:
    """Cut a window's text where one timestamp follows another.

    Text after the last pair belongs to the next window, unless a timestamp ends it. Without a pair,
    all text is one segment.
    """
    tokens, begin = decoded.tokens, tokenizer.timestamp_begin
    complete = [token >= begin for token in tokens[-2:]] == [False, True]
    cuts = [i for i, pair in enumerate(pairwise(tokens), 1) if min(pair) >= begin]
    if cuts:
        cuts += [len(tokens)] * complete
        spans = list(zip([0, *cuts[:-1]], cuts, strict=True))
        times = [
            (FRAME_S * (tokens[i] - begin), FRAME_S * (tokens[j - 1] - begin)) for i, j in spans
        ]
        last = COLUMNS_PER_FRAME * (tokens[cuts[-1] - 1] - begin)
        seek = stretch.end if complete else stretch.seek + last
    else:
        last = max((i for i, token in enumerate(tokens) if token >= begin), default=0)
        end_s = max(0, tokens[last] - begin) * FRAME_S if tokens else 0.0
        spans, seek, times = [(0, len(tokens))], stretch.end, [(0.0, end_s or stretch.length_s)]
    segments = [
        TimedSegment(
            seek=stretch.seek,
            start_s=stretch.start_s + start_s,
            end_s=stretch.start_s + end_s,
            text=tokenizer.decode(tokens[slice(*span)]),
            tokens=tokens[slice(*span)],
            probs=decoded.token_probs[slice(*span)],
            decoded=decoded,
        )
        for span, (start_s, end_s) in zip(spans, times, strict=True)
    ]
    return Split(segments, seek, complete)


def end_of_words_s(segments: Sequence[TimedSegment]) -> float | None:
    """The end of the last word or, without words, of the last segment."""
    for segment in reversed(segments):
        if segment.words:
            return segment.words[-1].end_s
    return segments[-1].end_s if segments else None


def column_at(seconds: float) -> int:
    """The column nearest to a time."""
    return round(seconds * COLUMNS_PER_S)


def ms_of(column: int) -> int:
    """Start of a column."""
    return column * 1000 // COLUMNS_PER_S


def in_ms(seconds: float) -> int:
    """A time of a word or a segment, as events have it."""
    return round(1000 * seconds)


def with_words(
    segments: Sequence[TimedSegment],
    aligned: Sequence[Word],
    options: LongformOptions,
    *,
    eot: int,
    origin_s: float,
    last_speech_s: float,
) -> list[TimedSegment]:
    """Give the segments of one window their words and better times.

    Word times come from attention and are worst around pauses, where a word seems to last for
    seconds; timestamps know better where a segment starts and ends. `aligned` are the words of all
    segments with times in frames of the window, punctuation apart. The window begins at `origin_s`,
    the last word before it ended at `last_speech_s`. Tokens below `eot` are text.
    """
    times = [(word.start / FRAMES_PER_S, word.end / FRAMES_PER_S) for word in aligned]
    median_s = _median(times)
    times = _cut_at_sentence_ends(aligned, times, 2 * median_s)
    groups = with_punctuation(
        [word.text for word in aligned],
        prepended=options.prepend_punctuations,
        appended=options.append_punctuations,
    )
    timed = []
    for segment in segments:
        # Words are never cut, so a segment may take one whose last tokens belong to the next.
        spoken, n_left = [], sum(token < eot for token in segment.tokens)
        while groups and n_left > 0:
            group, *groups = groups
            parts = aligned[group.first : group.last]
            # A word with its punctuation has the times of the word alone.
            start_s, end_s = (round(origin_s + at_s, 2) for at_s in times[group.main])
            text = "".join(word.text for word in parts)
            spoken.append(SpokenWord(text, start_s, end_s, aligned[group.main].prob))
            n_left -= sum(len(word.tokens) for word in parts)
        if spoken:
            _shorten_first(spoken, median_s, last_speech_s)
            segment = _agreed(segment, spoken, median_s)
            last_speech_s = segment.end_s
        timed.append(segment)
    return timed


def _median(times: Sequence[tuple[float, float]]) -> float:
    durations = [end_s - start_s for start_s, end_s in times if end_s != start_s]
    return min(_LONGEST_MEDIAN_S, float(np.median(durations))) if durations else 0.0


def _cut_at_sentence_ends(
    words: Sequence[Word], times: list[tuple[float, float]], longest_s: float
) -> list[tuple[float, float]]:
    """Take the pause between two sentences from the full stop, or from the word after it."""
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


def _agreed(segment: TimedSegment, words: list[SpokenWord], median_s: float) -> TimedSegment:
    """The segment with its words; where their times differ much, those of the segment count."""
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
