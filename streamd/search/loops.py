"""Finds out that a decoder repeats itself.

Whisper that has lost the audio says the same thing again and again. Three signs, none of which
digits read aloud show ("eight eight eight seven"): a run of repeated words, many tokens while
listening to one spot, and text that compresses too well. Rules: WhisperLiveKit's, with the run
itself counted; SimulStreaming's observation; WhisperKit's window of 60 tokens.
"""

import string
import zlib
from collections.abc import Sequence

from streamd.search.tokenizer import Tokenizer

REPEATS_OF_ONE = 8
"""The same word that often in a row."""
REPEATS_OF_MANY = 3
MANY = 12
"""A phrase of 2 to 8 words three times, and at least this many words in all."""
LONGEST_PHRASE = 8
STUCK_TOKENS = 8
STUCK_SPREAD = 4
"""Frames between the first and the last spot that so many tokens in a row attend to: 80 ms."""
TAIL_TOKENS = 60
TAIL_RATIO = 3.0
"""60 random digits reach 2.8 (200 trials), repeated phrases of that length 5 and more."""

_IGNORED = string.punctuation + string.whitespace


def compression_ratio(text: str) -> float:
    """How many times zlib shrinks the text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def find_loop(
    tokens: Sequence[int], frames: Sequence[int], tokenizer: Tokenizer, *, language: str
) -> int | None:
    """How many of `tokens` to keep because those behind them repeat, or None.

    `frames` are the most attended ones, per token. One instance of what is repeated is kept.
    """
    stuck = find_stuck(frames)
    if stuck is not None:
        return stuck + 1
    words = tokenizer.split_words(tokens, language)
    repetition = find_repetition([text for text, _ in words])
    if repetition is not None:
        return sum(len(ids) for _, ids in words[:repetition])
    tail = tokenizer.decode(tokens[-TAIL_TOKENS:])
    if len(tokens) >= TAIL_TOKENS and compression_ratio(tail) > TAIL_RATIO:
        return len(tokens) - TAIL_TOKENS
    return None


def find_repetition(words: Sequence[str]) -> int | None:
    """How many words to keep so that the first loop among them is said once, or None.

    Case and punctuation do not count.
    """
    spoken = [(i, word) for i, text in enumerate(words) if (word := _normal(text))]
    keep = []
    for period in range(1, LONGEST_PHRASE + 1):
        repeats = max(REPEATS_OF_MANY, -(-MANY // period)) if period > 1 else REPEATS_OF_ONE
        matched = 0
        for at in range(period, len(spoken)):
            matched = matched + 1 if spoken[at][1] == spoken[at - period][1] else 0
            if matched == period * (repeats - 1):
                keep.append(spoken[at - matched][0] + 1)
                break
    return min(keep, default=None)


def find_stuck(frames: Sequence[int]) -> int | None:
    """The first token of a run that attends to one spot, or None."""
    for first in range(len(frames) - STUCK_TOKENS + 1):
        run = frames[first : first + STUCK_TOKENS]
        if max(run) - min(run) <= STUCK_SPREAD:
            return first
    return None


def _normal(word: str) -> str:
    return word.strip(_IGNORED).casefold()
