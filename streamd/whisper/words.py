"""Words with their times and confidences, from the result of a decode.

The scores of the alignment heads are normalised and smoothed, and dynamic time warping finds the
monotonic path of tokens through the frames. `find_words` needs no second pass over the decoder;
`align` is openai-whisper's way, which also normalises over the row of end-of-text. Source:
openai/whisper ``timing.py``.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamd.language import is_mark
from streamd.types import FRAME, Samples, Word
from streamd.whisper.decode import Decoded
from streamd.whisper.engine import Alignment, Decoder, Search
from streamd.whisper.paths import Cache, log_sum, token_prob
from streamd.whisper.tokenizer import Tokenizer

PREPENDED, APPENDED = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word after them, and to the word before them (openai-whisper)."""
PADDING_SLACK = 10
"""Frames (200 ms) after the audio to which the last word may attend: attention is inexact."""
_BEFORE, _LEAST_REPEATED = 25, 3
"""Frames (0.5 s) before new sound to which its words may attend; fewest tokens to judge by."""
QUIET = 0.05
"""Frames 26 dB below a word's loudest one are not speech."""
_PREFIX_FRAMES, _PREFIX_TOKENS = 150, 8
"""The part of the prefix that is aligned with the new words, in frames and in tokens, whichever is
more. Aligning all of a prefix of 10 s takes longer than a decoder pass."""
_MEDIAN_REACH = 3
"""Half the width of the median filter, without its centre: it spans seven frames."""


def find_words(
    decoded: Decoded,
    tokenizer: Tokenizer,
    *,
    n_frames: int,
    prefix: Sequence[int] = (),
    prefix_end: int = 0,
) -> list[Word]:
    """The words after the forced `prefix`, with times in frames of the window.

    `n_frames` of the window hold audio; the prefix ends before `prefix_end`. Times do not
    overlap and never decrease. An incomplete character at the end is left out.
    """
    sequence = (*prefix, *decoded.tokens)
    text_at = [i for i, token in enumerate(sequence) if token < tokenizer.eot]
    n_before = sum(1 for token in prefix if token < tokenizer.eot)
    text = tokenizer.whole([sequence[i] for i in text_at[n_before:]])
    if not text:
        return []
    # The row that chose a token is the one before its own; the end of the prefix is aligned, too.
    first_row = decoded.n_given - len(prefix) - 1
    rows = [first_row + i for i in (*text_at, text_at[-1] + 1)]
    begin = max(0, min(prefix_end, n_frames) - _PREFIX_FRAMES) if n_before else 0
    n_left_out = _n_before([decoded.frames[row] for row in rows[:n_before]], begin)
    at = rows[n_left_out] if n_left_out else 0
    used = np.stack([row[:, begin:n_frames] for row in decoded.alignment[at:]])
    starts = begin + token_starts(used, [row - at for row in rows[n_left_out:]], n_frames - begin)
    probs = [decoded.token_probs[i - len(prefix)] for i in text_at[n_before:]]
    parts = tokenizer.split_words(text, decoded.language)
    return merge_punctuation(_timed(parts, starts[n_before - n_left_out :], probs))


def _n_before(frames: Sequence[int], begin: int) -> int:
    """Count the prefix's tokens said before frame `begin`, except the last `_PREFIX_TOKENS`."""
    n = max((n for n, frame in enumerate(frames, 1) if frame < begin), default=0)
    return max(0, min(n, len(frames) - _PREFIX_TOKENS))


def spread_words(decoded: Decoded, tokenizer: Tokenizer, *, start: int, end: int) -> list[Word]:
    """Divide the frames `start` to `end` among the words of a translation, by their lengths.

    A translation does not follow the order of the speech, so attention does not give word times.
    """
    text = tokenizer.whole([token for token in decoded.tokens if token < tokenizer.eot])
    parts = tokenizer.split_words(text, decoded.language)
    places = np.cumsum([0, *(len(part) for part, _ in parts)])
    frames = start + places * max(0, end - start) // max(1, places[-1])
    starts = [frame for frame, (_, ids) in zip(frames, parts, strict=False) for _ in ids]
    both = zip(decoded.token_probs, decoded.tokens, strict=False)  # a loop is cut off the tokens
    probs = [prob for prob, token in both if token < tokenizer.eot]
    return merge_punctuation(_timed(parts, np.array([*starts, end]), probs))


def words_as_decoded(
    decoded: Decoded, tokenizer: Tokenizer, n_tokens: int, *, n_frames: int
) -> list[Word]:
    """The words of the first `n_tokens` text tokens, with times in frames of the window.

    Like `align`, but from the passes that chose the tokens, without a pass of its own.
    """
    text_at = [i for i, token in enumerate(decoded.tokens) if token < tokenizer.eot][:n_tokens]
    if not text_at:
        return []
    # The row that chose a token is the one before its own.
    rows = [decoded.n_given - 1 + i for i in (*text_at, text_at[-1] + 1)]
    starts = token_starts(np.stack(decoded.alignment), rows, n_frames)
    parts = tokenizer.split_words([decoded.tokens[i] for i in text_at], decoded.language)
    return _timed(parts, starts, [decoded.token_probs[i] for i in text_at])


def align(
    decoder: Decoder, tokenizer: Tokenizer, tokens: Sequence[int], *, language: str, n_frames: int
) -> Search[list[Word]]:
    """The words of the text `tokens`, with times in frames of the window.

    Runs a pass over the text and its end, as openai/whisper's ``find_alignment``. Punctuation marks
    are words of their own. The new `decoder` has at least ``len(tokens) + 5`` slots.
    """
    if not tokens:
        return []
    start = (*tokenizer.sot_sequence_for(language), tokenizer.notimestamps)
    rows = range(len(start) - 1, len(start) + len(tokens))
    run, logits = yield from Cache(decoder).prefill((*start, *tokens, tokenizer.eot), rows[:-1])
    texts = logits[:, : tokenizer.eot]
    probs = [
        token_prob(text, log_sum(text), token, 0.0)
        for text, token in zip(texts, tokens, strict=True)
    ]
    starts = token_starts(np.stack(run.rows), rows, n_frames)
    return _timed(tokenizer.split_words(tokens, language), starts, probs)


def token_starts(alignment: Alignment, rows: Sequence[int], n_frames: int) -> NDArray[np.int64]:
    """The frame at which each token starts, and the one at which the last one ends.

    `rows` of `alignment` are those that chose each token, and the one after the last token; if that
    one was never computed, the last token lasts to the end of the audio.
    """
    known = [row for row in rows if row < len(alignment)]
    at, frames = warp(-attention(alignment, known, n_frames))
    starts = frames[np.flatnonzero(np.diff(at, prepend=-1))]
    return np.concatenate([starts, np.full(len(rows) - len(known), n_frames, np.int64)])


def attention(alignment: Alignment, rows: Sequence[int], n_frames: int) -> NDArray[np.float32]:
    """How much the tokens of `rows` stand out in each of the real frames, (n, n_frames)."""
    # Cut before the softmax, so that attention to the padding does not count.
    scores = alignment[:, :, :n_frames]
    weights = scores - scores.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    weights -= weights.mean(axis=0, keepdims=True)
    spread = np.sqrt(np.square(weights).mean(axis=0, keepdims=True))
    spread[spread == 0] = 1.0  # all tokens attend to it equally: none stands out
    weights = weights[rows] / spread
    if weights.shape[-1] > _MEDIAN_REACH:
        for head in range(weights.shape[1]):  # one at a time stays in the processor's cache
            weights[:, head] = _median_of_seven(weights[:, head])
    smooth: NDArray[np.float32] = weights.mean(axis=1)
    return smooth


def _median_of_seven(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """A running median of seven values in each row, mirrored at the ends.

    Each sorted triple of neighbours serves two windows, as the first three of one and the last
    three of another. The median is the centre, clamped to between the third and the fourth smallest
    of the window's two triples.
    """
    before, after = rows[:, _MEDIAN_REACH:0:-1], rows[:, -2 : -2 - _MEDIAN_REACH : -1]
    padded = np.concatenate([before, rows, after], axis=1)
    first, second, third = padded[:, :-2], padded[:, 1:-1], padded[:, 2:]
    low, high = np.minimum(first, second), np.maximum(first, second)
    middle = np.maximum(low, np.minimum(high, third))
    np.minimum(low, third, out=low)
    np.maximum(high, third, out=high)
    n = rows.shape[1]
    (a, b), (c, d), (e, f) = ((each[:, :n], each[:, 4:]) for each in (low, middle, high))
    at_least = np.minimum(np.maximum(a, d), np.maximum(c, b))
    np.minimum(at_least, np.minimum(e, f), out=at_least)
    at_most = np.maximum(np.minimum(e, d), np.minimum(c, f))
    np.maximum(at_most, np.maximum(a, b), out=at_most)
    np.minimum(at_most, rows, out=at_most)
    median: NDArray[np.float32] = np.maximum(at_least, at_most, out=at_most)
    return median


def merge_punctuation(words: Sequence[Word]) -> list[Word]:
    """Join opening punctuation to the word after it, and closing punctuation to the one before."""
    return [
        replace(
            words[group.main],
            text="".join(word.text for word in words[group.first : group.last]),
            tokens=tuple(t for word in words[group.first : group.last] for t in word.tokens),
            n_mark=_n_mark(words[group.main + 1 : group.last]),
        )
        for group in with_punctuation([word.text for word in words])
    ]


def _n_mark(appended: Sequence[Word]) -> int:
    """`Word.n_mark` of a word that is followed by `appended` punctuation."""
    return len(appended[0].tokens) if len(appended) == 1 and is_mark(appended[0].text) else 0


class Group(NamedTuple):
    """Words `first` to `last` (exclusive) become one, with the times of `main`."""

    first: int
    last: int
    main: int


def with_punctuation(texts: Sequence[str]) -> list[Group]:
    """The words to join: `PREPENDED` marks to the next word, `APPENDED` ones to the last."""
    groups: list[Group] = []
    for i, text in reversed(list(enumerate(texts))):
        if groups and text.startswith(" ") and text.strip() in PREPENDED:
            groups[-1] = groups[-1]._replace(first=i)
        else:
            groups.append(Group(i, i + 1, i))
    merged: list[Group] = []
    before = ""
    for group in reversed(groups):
        text = "".join(texts[group.first : group.last])
        if merged and not before.endswith(" ") and text in APPENDED:
            merged[-1] = merged[-1]._replace(last=group.last)
            before += text
        else:
            merged.append(group)
            before = text
    return merged


def n_attended(decoded: Decoded, tokenizer: Tokenizer, n_frames: int) -> int:
    """The number of tokens without those at the end that attend to the padding.

    Marks of punctuation make no sound, so where they attend to says nothing: they stay with the
    word before them.
    """

    def is_mark(at: int) -> bool:
        text = tokenizer.decode([decoded.tokens[at]]).strip()
        return bool(text) and not any(map(str.isalnum, text))

    n, frames = len(decoded.tokens), decoded.frames[decoded.n_given - 1 :]
    while n and (frames[n - 1] >= n_frames + PADDING_SLACK or is_mark(n - 1)):
        n -= 1
    while n < len(decoded.tokens) and is_mark(n):
        n += 1
    return n


def is_repeated(decoded: Decoded, tokenizer: Tokenizer, *, heard_until: int, n_frames: int) -> bool:
    """Whether a text repeats the prefix.

    This happens when no new word follows the prefix, which ends at frame `heard_until`: fewer than
    half of the tokens attend to the sound after it. Punctuation marks do not count.
    """
    rows = zip(decoded.tokens, decoded.frames[decoded.n_given - 1 :], strict=False)
    heard = [frame for token, frame in rows if any(map(str.isalnum, tokenizer.decode([token])))]
    n_new = sum(heard_until - _BEFORE <= frame < n_frames + PADDING_SLACK for frame in heard)
    return len(heard) >= _LEAST_REPEATED and n_new < 0.5 * len(heard)


def tighten(words: Sequence[Word], samples: Samples) -> list[Word]:
    """Move the words' times inwards over quiet frames, such as the pause before a word."""
    begin = words[0].start if words else 0
    loudness = np.sqrt(np.square(samples[begin * FRAME :].reshape(-1, FRAME)).mean(axis=1))
    tight = []
    for word in words:
        span = loudness[word.start - begin : word.end - begin]
        loud = np.flatnonzero(span > QUIET * span.max(initial=0.0))
        if len(loud):
            start, end = word.start + int(loud[0]), word.start + int(loud[-1]) + 1
            word = replace(word, start=start, end=end)
        tight.append(word)
    return tight


def _timed(
    parts: Sequence[tuple[str, tuple[int, ...]]], starts: NDArray[np.int64], probs: Sequence[float]
) -> list[Word]:
    words, at = [], 0
    for text, tokens in parts:
        begin, at = at, at + len(tokens)
        prob = float(np.mean(probs[begin:at]))
        words.append(Word(text, int(starts[begin]), int(starts[at]), prob, tokens))
    return words


def warp(cost: NDArray[np.floating]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Dynamic time warping: rows and columns of the cheapest path through a cost matrix (n, m).

    From one cell to the next the row, the column or both grow by one. Costs add up in float64 and
    the path prefers later columns, as in openai/whisper ``timing.py``, so that times are the same.
    """
    total = cumulative(cost)
    corner, above, left = total[:-1, :-1], total[:-1, 1:], total[1:, :-1]
    is_first = (left > corner) | (left > above)  # of the path's cells in the row
    climbs = above < corner
    i, j = cost.shape[0] - 1, cost.shape[1] - 1
    runs: list[NDArray[np.int64]] = []
    while i >= 0:
        end = j + 1
        j = int(np.flatnonzero(is_first[i, :end])[-1])
        runs.append(np.arange(j, end))
        j -= not climbs[i, j]
        i -= 1
    runs.reverse()
    return np.repeat(np.arange(len(runs)), list(map(len, runs))), np.concatenate(runs)


def cumulative(cost: NDArray[np.floating]) -> NDArray[np.float64]:
    """The cost of the cheapest path to each cell, (n + 1, m + 1) with a border of infinity.

    A row at a time: a path comes into the row at some column and goes on to the right, so its cost
    there is what it was before, plus the difference of the row's running sum.
    """
    n, m = cost.shape
    total = np.full((n + 1, m + 1), math.inf)
    total[0, 0] = 0.0
    added = cost.astype(np.float64)
    sums = added.cumsum(axis=1)
    for above, row, running, before in zip(total, total[1:], sums, sums - added, strict=False):
        entered = np.minimum(above[:-1], above[1:]) - before
        np.add(np.minimum.accumulate(entered), running, out=row[1:])
    return total
