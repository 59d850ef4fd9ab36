"""Windows that were decoded by nobody: what a model might write, drawn at random; numpy only.

They drive the rules between the windows (where the next one begins, which words are hallucinations,
what becomes the prompt) into every corner, on both sides in the same order.
"""

from dataclasses import dataclass

import numpy as np

TIMESTAMP_BEGIN = 407
"""Of the random model's vocabulary."""
PUNCTUATION = {0: "!", 13: ".", 11: ",", 30: "?", 1: ' "', 7: " ("}
"""Tokens of single marks, and the words that alignment makes of them."""
Word = tuple[int, int, int, float]
"""Token, first and last frame of the window, probability."""


@dataclass(frozen=True)
class Written:
    """What a decode gives."""

    tokens: tuple[int, ...]
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float


class Script:
    """The n-th window's text and word times depend on the seed and on n."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._n_written = self._n_aligned = 0

    def write(self, n_columns: int) -> Written:
        """The next decode, of a window of so many columns."""
        draw = np.random.Generator(np.random.PCG64([self._seed, 0, self._n_written]))
        self._n_written += 1
        return Written(
            tokens=tuple(self._tokens(draw, n_columns // 2)),
            avg_logprob=_pick(draw, [-0.2, -0.2, -0.5, -1.3]),
            no_speech_prob=_pick(draw, [0.01, 0.01, 0.3, 0.9]),
            compression_ratio=_pick(draw, [1.1, 1.3, 1.7, 2.9]),
        )

    def align(self, tokens: list[int], n_frames: int) -> list[Word]:
        """The times of the next text, one word for each token."""
        draw = np.random.Generator(np.random.PCG64([self._seed, 1, self._n_aligned]))
        self._n_aligned += 1
        at = int(draw.random() * n_frames / 2) if draw.random() < 0.4 else 0
        words = []
        for token in tokens:
            length = int(draw.random() * _pick(draw, [1, 20, 20, 20, 30, 150]))
            end = min(n_frames, at + length)
            words.append((token, at, end, _pick(draw, [0.05, 0.3, 0.9, 0.9, 0.99])))
            at = end
        return words

    def _tokens(self, draw: np.random.Generator, n_frames: int) -> list[int]:
        """Segments between timestamps, as the rules of the decoder allow them."""
        shape = draw.random()
        if shape < 0.15:
            return self._text(draw)  # no timestamps at all
        at = int(draw.random() * 50)
        tokens = [TIMESTAMP_BEGIN + at, *self._text(draw)]
        if shape < 0.25:
            return tokens
        for _ in range(int(draw.random() * 4)):
            at = min(1500, at + 1 + int(draw.random() * 400))
            tokens += [TIMESTAMP_BEGIN + at]
            at = min(1500, at + (int(draw.random() * 200) if draw.random() < 0.4 else 0))
            tokens += [TIMESTAMP_BEGIN + at, *self._text(draw)]
        if shape < 0.75:
            at = min(1500, max(at + 1, int(draw.random() * n_frames)))
            tokens += [TIMESTAMP_BEGIN + at]
        if shape < 0.35:
            tokens += [TIMESTAMP_BEGIN + at]
        return tokens

    def _text(self, draw: np.random.Generator) -> list[int]:
        n = 1 + int(draw.random() * 9) if draw.random() < 0.9 else 0
        words = [256 + int(44 * draw.random()) for _ in range(n)]
        return [
            _pick(draw, list(PUNCTUATION)) if i and draw.random() < 0.25 else word
            for i, word in enumerate(words)
        ]


def _pick(draw: np.random.Generator, values):
    return values[int(draw.random() * len(values))]


def _cases():
    """(seed, seconds of audio, options of ``whisper.transcribe``) with what makes a difference."""
    kinds = {
        0: {},
        8: {"word_timestamps": True},
        48: {"condition_on_previous_text": False, "initial_prompt": "nine of clubs"},
        64: {"logprob_threshold": -0.4, "no_speech_threshold": 0.2},
    }
    return [
        (seed, 3 + 37 * (seed % 7) / 2, kind)
        for first, kind in kinds.items()
        for seed in range(first, first + 8)
    ]


CASES = _cases()
