"""Signs that a decoder repeats itself or hallucinates.

Three signs of repetition, none of which digits that are read aloud show ("eight eight eight"), are
a run of repeated words (WhisperLiveKit) or of letters in a word, many tokens that attend to one
spot (SimulStreaming), and text that compresses too well (WhisperKit).
"""

import string
import zlib
from collections.abc import Sequence

from streamd.types import compression_ratio
from streamd.whisper.tokenizer import Tokenizer

REPEATS_OF_MANY = 3
"""Repeats from which a phrase is a loop (WhisperLiveKit)."""
STUCK_SPREAD = 4
"""Frames (80 ms) within which the tokens of a loop attend."""
IN_A_ROW, PHRASE_WORDS = 8, 12
"""Repetitions of one word, and words in all repetitions of a phrase, from which both are loops
(WhisperLiveKit); as many tokens in a row attend to the same spot in a loop (SimulStreaming has seen
it)."""
LAST_TOKENS, MOST_COMPRESSED = 60, 3.0
"""Compression ratio of the last 60 tokens, or of the letters of a word, above which they are a
loop. WhisperKit has 2.4, but 60 random digits reach 2.8 (200 trials); repeated phrases of that
length reach 5 and more."""

_IGNORED = string.punctuation + string.whitespace


def find_loop(
    tokens: Sequence[int],
    frames: Sequence[int],
    tokenizer: Tokenizer,
    *,
    language: str,
) -> int | None:
    """How many of `tokens` to keep because the others repeat (one instance is kept), or None.

    `frames` are those that the tokens attend to most.
    """
    if len(tokens) < IN_A_ROW:
        return None  # this runs after each token, and most windows of a stream add few
    if (stuck := find_stuck(frames)) is not None:
        return stuck + 1
    if (repeated := find_repeated(tokens, tokenizer, language=language)) is not None:
        return repeated
    text = tokenizer.decode(tokens[-LAST_TOKENS:])
    if len(tokens) >= LAST_TOKENS and compression_ratio(text) > MOST_COMPRESSED:
        return len(tokens) - LAST_TOKENS
    return None


def find_repeated(tokens: Sequence[int], tokenizer: Tokenizer, *, language: str) -> int | None:
    """How many of text `tokens` to keep because words repeat, marks, or letters in a word; or None.

    A word whose letters repeat ("Hmmmm") is kept up to where it begins to compress.
    """
    words = tokenizer.split_words(tokens, language)
    n_kept = find_repetition([text for text, _ in words])
    inside = _find_letters(words[:n_kept], tokenizer)
    if n_kept is None or inside is not None:
        return inside
    return sum(len(ids) for _, ids in words[:n_kept])


def _find_letters(words: Sequence[tuple[str, Sequence[int]]], tokenizer: Tokenizer) -> int | None:
    n_before = n_marks = 0
    for (before, _), (text, ids) in zip([("", ()), *words], words, strict=False):
        n_marks = n_marks + 1 if text == before and _is_lone_mark(text) else 0
        if n_marks == REPEATS_OF_MANY:
            return n_before - len(ids) * (REPEATS_OF_MANY - 1)
        if letter_ratio(text) > MOST_COMPRESSED:
            shorter = (n for n in range(len(ids), 1, -1) if _is_plain(tokenizer.decode(ids[:n])))
            return n_before + next(shorter, 1)
        n_before += len(ids)
    return None


def letter_ratio(word: str) -> float:
    """How many times zlib shrinks the word, with a byte for each letter of whatever script.

    Of one letter 30 times the ratio is 2.7, of "ha" 15 times 2.5, of a Greek word of 183 letters
    1.5, of all words in 60 recordings at most 0.8.
    """
    data = bytes(ord(letter) & 0xFF for letter in word)
    return len(data) / len(zlib.compress(data))


def _is_plain(word: str) -> bool:
    return letter_ratio(word) <= 1.0


def _is_lone_mark(text: str) -> bool:
    return text.startswith(" ") and not text.strip(_IGNORED)


def find_repetition(words: Sequence[str]) -> int | None:
    """How many words to keep so that their first loop appears once, or None.

    Case and punctuation do not count.
    """
    normal = (text.strip(_IGNORED).casefold() for text in words)
    spoken = [(i, word) for i, word in enumerate(normal) if word]
    keep = []
    for period in range(1, len(spoken) // REPEATS_OF_MANY + 1):
        repeats = max(REPEATS_OF_MANY, -(-PHRASE_WORDS // period))
        if period == 1:
            repeats = IN_A_ROW
        # Counts the words in a row that equal the word one period earlier.
        matched = 0
        for at in range(period, len(spoken)):
            matched = matched + 1 if spoken[at][1] == spoken[at - period][1] else 0
            if matched == period * (repeats - 1):
                keep.append(spoken[at - matched][0] + 1)
                break
    return min(keep, default=None)


def find_stuck(frames: Sequence[int]) -> int | None:
    """The first token of a run that attends to one spot, or None."""
    for first in range(len(frames) - IN_A_ROW + 1):
        run = frames[first : first + IN_A_ROW]
        if max(run) - min(run) <= STUCK_SPREAD:
            return first
    return None
