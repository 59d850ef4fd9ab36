"""The model's tokens: a sub-vocabulary of GPT-2's byte pairs plus Whisper's special tokens."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import tiktoken

SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LANGUAGES, _TIMES = 99, 1501


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read a tiktoken file: base64 token and rank per line."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


class Tokens:
    """Encodes texts, and knows the ids of the specials, in OpenAI's English-only order."""

    def __init__(self, vocabulary: Path) -> None:
        self._text = tiktoken.Encoding(
            "demo", pat_str=SPLIT, mergeable_ranks=read_ranks(vocabulary), special_tokens={}
        )
        self.eot = self._text.n_vocab  # end of text; the number of text tokens too
        self.sot = self.eot + 1  # start of transcript; the languages follow
        after = self.sot + 1 + _LANGUAGES
        self.translate, self.transcribe, self.sot_lm = after, after + 1, after + 2
        self.previous = after + 3  # start of the prompt
        self.no_speech = after + 4  # what follows ``sot`` when nobody speaks
        self.no_times = after + 5  # what follows ``sot`` when no times are wanted
        self.time0 = after + 6  # 0.00 s; each next token is 20 ms later
        self.count = self.time0 + _TIMES

    def encode(self, text: str) -> list[int]:
        """Encode a text without specials."""
        return self._text.encode(text, disallowed_special=())

    def decode(self, ids: Sequence[int]) -> str:
        """Decode text tokens, leaving out specials."""
        return self._text.decode([i for i in ids if i < self.eot])
