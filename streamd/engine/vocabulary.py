"""Text tokens: OpenAI's two vocabularies, which ship with streamd, and those of other files.

openai-whisper's ``.pt`` files have no vocabulary of their own: which of the two theirs is follows
from its size. They are the package's files, unchanged (MIT, vocabularies/LICENSE).
"""

import base64
from collections.abc import Sequence
from pathlib import Path

from streamd.engine.formats.untrusted import read
from streamd.engine.model import N_SPECIALS
from streamd.errors import ModelError

_SHIPPED = Path(__file__).parent / "vocabularies"
_OPENAI = {
    51_864: "gpt2.tiktoken",
    51_865: "multilingual.tiktoken",
    51_866: "multilingual.tiktoken",
}
"""By the size of the vocabulary with the special tokens."""
_EOT = b"<|endoftext|>"


def openai_vocabulary(path: Path, n_vocab: int) -> dict[bytes, int]:
    """OpenAI's text tokens for a model of `n_vocab` tokens, whose file is `path`.

    Raises `ModelError` if OpenAI has no vocabulary of that size.
    """
    if n_vocab in _OPENAI:
        return read_tiktoken(_SHIPPED / _OPENAI[n_vocab])
    raise ModelError(f"{path}: {n_vocab} tokens are none of OpenAI's vocabularies")


def read_tiktoken(path: Path) -> dict[bytes, int]:
    """Read tiktoken's format. A token a line: its bytes in base64, a blank, its id, from 0 on.

    Raises `ModelError` if the file is missing, damaged or incomplete.
    """
    tokens: list[bytes] = []
    for number, line in enumerate(read(path).splitlines()):
        try:
            token, rank = line.split()
            # a lone "=" is OpenAI's way to write the empty token
            tokens.append(b"" if token == b"=" else base64.b64decode(token, validate=True))
            in_order = int(rank) == number
        except ValueError as error:
            raise ModelError(f"{path}:{number + 1}: not a token and its id") from error
        if not in_order:
            raise ModelError(f"{path}:{number + 1}: tokens are missing or duplicated")
    return numbered(path, tokens)


def numbered(path: Path, tokens: Sequence[bytes]) -> dict[bytes, int]:
    """Token -> id of the text tokens that `path` lists in the order of their ids.

    End-of-text, where some files begin to list the special tokens, is the end. Raises `ModelError`
    if a token is duplicated, or a byte is missing.
    """
    if _EOT in tokens:
        tokens = tokens[: tokens.index(_EOT)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    complete = all(bytes([byte]) in vocabulary for byte in range(256))
    if not complete or len(vocabulary) != len(tokens):
        raise ModelError(f"{path}: tokens are missing or duplicated; get the model's files again")
    return vocabulary


def spelled(path: Path, texts: Sequence[str]) -> dict[bytes, int]:
    """Token -> id of the tokens that `path` lists in the order of their ids, in GPT-2's letters.

    Raises `ModelError` if a token is duplicated, a byte is missing, or a letter stands for no byte.
    """
    letters = _letters()
    eot = texts.index(_EOT.decode()) if _EOT.decode() in texts else len(texts)
    try:
        tokens = [bytes(letters[letter] for letter in text) for text in texts[:eot]]
    except KeyError as error:
        raise ModelError(f"{path}: {error} stands for no byte; not Whisper's tokens") from error
    return numbered(path, tokens)


def _letters() -> dict[str, int]:
    """GPT-2's way to show bytes: those that are no visible Latin-1 letter come from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    shown = {chr(byte): byte for byte in visible}
    return shown | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


def check_size(path: Path, vocabulary: dict[bytes, int], n_vocab: int) -> dict[bytes, int]:
    """`vocabulary`, if it leaves the place for Whisper's special tokens; else `ModelError`."""
    if n_vocab - len(vocabulary) not in N_SPECIALS:
        raise ModelError(
            f"{path}: {len(vocabulary)} text tokens do not make a vocabulary of {n_vocab}; "
            "config.json and vocabulary do not match"
        )
    return vocabulary
