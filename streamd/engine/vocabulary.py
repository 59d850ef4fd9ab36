"""Text tokens: OpenAI's two vocabularies, which ship with streamd, and those of other files.

openai-whisper's ``.pt`` files have no vocabulary: its size tells which of the two they use. The
shipped files are openai-whisper's, unchanged (MIT, vocabularies/LICENSE).
"""

import base64
from collections.abc import Sequence
from pathlib import Path

from streamd.engine.formats import bad_file, read
from streamd.errors import ModelError

_SHIPPED = Path(__file__).parent / "vocabularies"
_OPENAI = {
    51_864: "gpt2.tiktoken",
    51_865: "multilingual.tiktoken",
    51_866: "multilingual.tiktoken",
}
"""Number of tokens, with the special ones -> file."""
_EOT = b"<|endoftext|>"


def openai_vocabulary(path: Path, n_vocab: int) -> dict[bytes, int]:
    """Return OpenAI's text tokens, token -> id, for a model of `n_vocab` tokens in the file `path`.

    Raises `ModelError` if OpenAI has no vocabulary of that size.
    """
    if n_vocab not in _OPENAI:
        raise ModelError(f"{path}: {n_vocab} tokens are none of OpenAI's vocabularies")
    shipped = _SHIPPED / _OPENAI[n_vocab]
    # tiktoken's format, a token a line in the order of the ids: base64, a blank, the id
    encoded = (line.split()[0] for line in read(shipped).splitlines())
    # a lone "=" is OpenAI's way to write the empty token
    tokens = [b"" if token == b"=" else base64.b64decode(token) for token in encoded]
    return numbered(shipped, tokens)


def numbered(path: Path, tokens: Sequence[bytes]) -> dict[bytes, int]:
    """Return token -> id of the text tokens that `path` lists in the order of their ids.

    The list ends at end-of-text, with which some files begin the special tokens. Raises
    `ModelError` if a token is duplicated, or a byte is missing.
    """
    if _EOT in tokens:
        tokens = tokens[: tokens.index(_EOT)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    complete = all(bytes([byte]) in vocabulary for byte in range(256))
    if not complete or len(vocabulary) != len(tokens):
        raise bad_file(path, "tokens are missing or duplicated")
    return vocabulary


def spelled(path: Path, texts: Sequence[str]) -> dict[bytes, int]:
    """Return token -> id of the tokens that `path` lists as `numbered`, but in GPT-2's letters.

    Raises `ModelError` if a token is duplicated, a byte is missing, or a letter stands for no byte.
    """
    # GPT-2 shows bytes that are no visible Latin-1 letter as letters from U+0100 on
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {chr(byte): byte for byte in visible}
    letters |= {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
    eot = texts.index(_EOT.decode()) if _EOT.decode() in texts else len(texts)
    try:
        tokens = [bytes(letters[letter] for letter in text) for text in texts[:eot]]
    except KeyError as error:
        raise ModelError(f"{path}: {error} stands for no byte; not Whisper's tokens") from error
    return numbered(path, tokens)
