"""From the tokens of a window to segments and their words, and to where the next window starts.

Source: openai/whisper ``transcribe.py`` and ``timing.py`` (`add_word_timestamps`), rule for rule.
Whisper may end the text after a few words, or leave a hole in it, though there is more speech; then
the times of the words are compared with what the voice detector found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from streamd.language import STOPS
from streamd.types import COLUMNS_PER_FRAME, FRAME, SAMPLE_RATE, Voiced, Word
from streamd.whisper.decode import Decoded
from streamd.whisper.mel import HOP
from streamd.whisper.tokenizer import Tokenizer
from streamd.whisper.words import with_punctuation

COLUMNS_PER_S = SAMPLE_RATE // HOP
FRAMES_PER_S = SAMPLE_RATE // FRAME
FRAME_S = FRAME / SAMPLE_RATE
"""Resolution of timestamps."""
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
    def n_frames(self) -> int:
        """Its length in frames."""
        return self.n_columns // COLUMNS_PER_FRAME

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
    prob: float | None


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

    def within(self, first_s: float, last_s: float) -> Self:
        """Return the segment with all of its times in this range."""

        def cut(at_s: float) -> float:
            return max(first_s, min(at_s, last_s))

        words = tuple(
            replace(word, start_s=cut(word.start_s), end_s=cut(word.end_s)) for word in self.words
        )
        return replace(self, start_s=cut(self.start_s), end_s=cut(self.end_s), words=words)


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


def as_prompt(segments: Sequence[TimedSegment], *, stop: int, eot: int) -> list[int]:
    """The tokens of segments; one that begins with a capital and has no mark gets a full stop.

    The model imitates its prompt. After a prompt without punctuation, it leaves out sentences and
    whole turns in noise, and its own text has no punctuation either, until the recording ends.
    """
    tokens: list[int] = []
    for segment in segments:
        text, each = segment.text.strip(), [*segment.tokens]
        if text[:1].isupper() and text[-1:].isalnum():
            each.insert(1 + max(at for at, token in enumerate(each) if token < eot), stop)
        tokens += each
    return tokens


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
    *,
    eot: int,
    origin_s: float,
    last_speech_s: float,
) -> list[TimedSegment]:
    """Add words to the segments of one window, and improve their times.

    Word times come from attention and are worst around pauses, where a word seems to last for
    seconds; timestamps are better for the start and end of a segment. `aligned` are the words of
    all segments with times in frames of the window, punctuation apart. The window begins at
    `origin_s`, the last word before it ended at `last_speech_s`. Tokens below `eot` are text.
    """
    times = [(word.start / FRAMES_PER_S, word.end / FRAMES_PER_S) for word in aligned]
    median_s = _median(times)
    times = _cut_at_sentence_ends(aligned, times, 2 * median_s)
    groups = with_punctuation([word.text for word in aligned])
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
            if words[i].text in STOPS:
                end_s = start_s + longest_s
            elif words[i - 1].text in STOPS:
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


_MOST_MISSED = 250
"""More voiced frames (5 s) without a word than this are missed speech."""
_LEAST_MISSED = 100
"""At least this many voiced frames (2 s) without a word are decoded by themselves."""
_BEFORE_VOICE = 25
"""Frames (0.5 s) that are decoded before detected speech: a quiet voice begins earlier."""
_MOST_AFTER = 75
"""Text counts as reaching the window's end if fewer voiced frames (1.5 s) follow it."""
_LONGEST_WORD_S = 2.0
"""A word that seems to last longer is stretched over missed speech: in a room recording, a "great"
of 11 s covered two turns. Of 7,624 words, one other lasted longer than 1.5 s."""
_LEAST_CHANGE = 50
"""Frames (1 s) by which a window must differ from the one before to be decoded."""


def before_missed(found: Split, stretch: Stretch, voiced: Voiced) -> Split:
    """Keep a window's segments up to the first missed speech, where the next window begins.

    That is at least a second after this one.
    """
    begin = done = stretch.seek // COLUMNS_PER_FRAME
    for n_before, segment in enumerate(found.segments):
        kept = done
        for start, end in _spans(segment):
            if kept - begin >= _LEAST_CHANGE and is_speech(voiced[done:start]):
                return Split(found.segments[:n_before], COLUMNS_PER_FRAME * kept, complete=False)
            done = max(done, end)
    if done - begin >= _LEAST_CHANGE and is_speech(voiced[done : found.seek // COLUMNS_PER_FRAME]):
        return found._replace(seek=COLUMNS_PER_FRAME * done, complete=False)
    return found


def before_cut(found: Split, stretch: Stretch, voiced: Voiced) -> Split:
    """Keep what was surely read of a window that ends amid speech; the next one begins behind it.

    The model finishes the sentence that such an end cuts off with words of its own, or leaves out
    what it has begun, and takes the text for complete. So a last segment that reaches the end is
    left to the next window, unless that would be more than half of this one.
    """
    if not found.segments or found.seek < stretch.end:
        return found
    least = stretch.seek + stretch.n_columns // 2
    end, end_before = (
        stretch.seek if end_s is None else min(column_at(end_s), stretch.end)
        for end_s in (end_of_words_s(found.segments), end_of_words_s(found.segments[:-1]))
    )
    after = voiced[end // COLUMNS_PER_FRAME : stretch.end // COLUMNS_PER_FRAME]
    if int(np.count_nonzero(after)) <= _MOST_AFTER and end_before >= least:
        return Split(found.segments[:-1], end_before, complete=False)
    if end - stretch.seek < COLUMNS_PER_FRAME * _LEAST_CHANGE:
        return found
    return found._replace(seek=end, complete=False)


def ends_at_once(found: Split, stretch: Stretch, voiced: Voiced) -> bool:
    """Whether all text of a window is in its first second, and speech without words follows."""
    begin = stretch.seek // COLUMNS_PER_FRAME
    end = max((end for segment in found.segments for _, end in _spans(segment)), default=begin)
    after = voiced[max(begin, end) : found.seek // COLUMNS_PER_FRAME]
    return end - begin < _LEAST_CHANGE and is_speech(after)


def missed_first(found: Split, stretch: Stretch, voiced: Voiced) -> Stretch | None:
    """The part of a window to decode alone, if speech in its first segment was missed.

    It is the part before the first word, or the one before the hole.
    """
    if not found.segments:
        return None
    begin = done = stretch.seek // COLUMNS_PER_FRAME
    for n_before, (start, end) in enumerate(_spans(found.segments[0])):
        if is_speech(voiced[done:start]):
            alone = (done if n_before else start) - begin
            part = Stretch(stretch.seek, COLUMNS_PER_FRAME * alone)
            too_long = stretch.n_columns - part.n_columns < COLUMNS_PER_FRAME * _LEAST_CHANGE
            return None if too_long or alone < _LEAST_CHANGE else part
        done = max(done, end)
    return None


def small_holes(found: Split, stretch: Stretch, voiced: Voiced) -> list[tuple[int, Stretch]]:
    """Speech between segments that has no words, but is too short for the next window to begin.

    Each as the number of segments before it, and its part of the window.
    """
    holes = []
    done = stretch.seek // COLUMNS_PER_FRAME
    end = min(found.seek, stretch.end) // COLUMNS_PER_FRAME
    bounds = [(spans[0][0], spans[-1][1]) for spans in map(_spans, found.segments)]
    for n_before, (start, after) in enumerate([*bounds, (end, end)]):
        speech = done + np.flatnonzero(voiced[done:start])
        if len(speech) >= _LEAST_MISSED:
            first = max(done, int(speech[0]) - _BEFORE_VOICE)
            part = Stretch(*(COLUMNS_PER_FRAME * n for n in (first, int(speech[-1]) + 1 - first)))
            holes.append((n_before, part))
        done = max(done, after)
    return holes


def _spans(segment: TimedSegment) -> list[tuple[int, int]]:
    """Start and end of each word in frames, or of a segment without words."""
    times = [
        (word.start_s, min(word.end_s, word.start_s + _LONGEST_WORD_S)) for word in segment.words
    ]
    times = times or [(segment.start_s, segment.end_s)]
    return [(round(start * FRAMES_PER_S), round(end * FRAMES_PER_S)) for start, end in times]


def is_speech(voiced: Voiced) -> bool:
    """Whether so many frames are voiced that they must have words."""
    return int(np.count_nonzero(voiced)) > _MOST_MISSED
