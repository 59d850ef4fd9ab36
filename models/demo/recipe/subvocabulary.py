"""Write the text tokens of the model: ``subvocabulary.py OUT``.

The tokens are those of GPT-2's byte pairs that the model's texts need, with all their intermediate
merges and all 256 bytes, ranked in GPT-2's order. So any text splits into the same byte strings as
with GPT-2's vocabulary, and the weights can be exported to it (``gpt2_ids.json``).
"""

from __future__ import annotations

import argparse
import base64
import json
from itertools import pairwise
from pathlib import Path

import regex
import whisper
from tokens import SPLIT, read_ranks
from vocabulary import UNKNOWN, WORDS

_MARKS = [" ...", UNKNOWN, " .", ".", ",", " ,", "?", " ?", "!", " -", "-"]


def merges(piece: bytes, ranks: dict[bytes, int]) -> tuple[list[bytes], set[bytes]]:
    """Split a piece of text by byte-pair merges; and every token made on the way."""
    parts = [bytes([b]) for b in piece]
    made: set[bytes] = set()
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts))
                 if a + b in ranks]  # fmt: skip
        if not pairs:
            return parts, made
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        made.add(parts[i])


def choose(gpt2: dict[bytes, int]) -> list[bytes]:
    """Choose the tokens, in GPT-2's order."""
    texts = [f" {word}" for word in WORDS] + WORDS + _MARKS
    pieces = [piece.encode() for text in texts for piece in regex.findall(SPLIT, text)]
    used = {bytes([b]) for b in range(256)}
    for piece in pieces:
        used |= merges(piece, gpt2)[1]
    chosen = sorted(used, key=gpt2.__getitem__)
    own = {token: rank for rank, token in enumerate(chosen)}
    for piece in pieces:
        assert merges(piece, own)[0] == merges(piece, gpt2)[0], f"{piece!r} splits differently"
    return chosen


def main() -> None:
    """Write the three files of the vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    gpt2 = read_ranks(Path(whisper.__file__).parent / "assets" / "gpt2.tiktoken")
    chosen = choose(gpt2)
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(chosen))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "vocab.tiktoken").write_bytes(b"".join(lines))
    (args.out / "gpt2_ids.json").write_text(json.dumps([gpt2[token] for token in chosen]))
    (args.out / "words.txt").write_text("\n".join(WORDS) + "\n")
    print(f"{len(chosen)} text tokens")


if __name__ == "__main__":
    main()
