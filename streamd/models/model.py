"""A model as its files describe it: dimensions, parameters, text tokens, and what files leave out.

The modules of `formats` know how files store them. Sources: openai/whisper ``__init__.py`` and
``model.py``. openai-whisper's ``.pt`` files have no vocabulary: its size tells which of the two
they use. The shipped files are openai-whisper's, unchanged (MIT, vocabularies/LICENSE).
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions, Weights
from streamd.models.formats.reading import bad_file, read, shown
from streamd.models.silence import SilenceStates
from streamd.models.text_tokens import TextTokens

Heads = tuple[tuple[int, int], ...]
"""(decoder layer, head) pairs, sorted."""

N_SPECIALS = (1608, 1609)
"""Number of special tokens: 8, 99 or (large-v3) 100 languages, 1501 timestamps."""

_FIRST_MULTILINGUAL = 51_865
"""Size of the smallest multilingual vocabulary; OpenAI's English-only one has a token less."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model as loaded from its files.

    `vocabulary` are the tokens (an id is tiktoken's rank), without the special ones.
    `language` is the only language of a model without language tokens, else None. `silence` are the
    encoder's states of silence, if they are known. The decoder must never write `suppress_tokens`
    and not begin with `begin_suppress_tokens`; None stands for openai-whisper's choice:
    annotations, and a blank or the end.
    """

    name: str
    dims: ModelDimensions
    weights: Weights
    vocabulary: TextTokens
    alignment_heads: Heads
    language: str | None
    silence: SilenceStates | None = None
    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """What a model's files tell without its weights; `language` as in `Model`."""

    dims: ModelDimensions
    language: str | None


def check_dimensions(path: Path, dims: ModelDimensions, *, usual: bool = True) -> None:
    """Raise `ModelError` unless a Whisper of these dimensions can exist and fit into memory.

    `path` is the file that has them; `usual` whether all else that it says suits Whisper.
    """
    possible = (
        all(0 < n <= 1_000_000 for n in astuple(dims))
        and max(dims.n_audio_layer, dims.n_text_layer) <= 1000
        and dims.n_audio_state == dims.n_text_state
        and dims.n_audio_state % dims.n_audio_head == 0
        and dims.n_text_state % dims.n_text_head == 0
    )
    if not (possible and usual):
        raise ModelError(f"{path}: describes no Whisper model; get the model's files again")


def only_language(dims: ModelDimensions) -> str | None:
    """Return "en" if the vocabulary is too small for language tokens, else None."""
    return "en" if dims.n_vocab < _FIRST_MULTILINGUAL else None


def below(end: int, tokens: Iterable[int] | None) -> tuple[int, ...] | None:
    """Return the tokens below `end`, sorted, or None if there is no list of tokens."""
    return None if tokens is None else tuple(sorted(token for token in tokens if 0 <= token < end))


Shapes = dict[str, tuple[int, ...]]

OUTPUT = "proj_out.weight"
"""Only models whose output layer is not the token embedding have it; OpenAI's have none."""
INT8_ROWS = "I8 with a scale per row"
_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
_READABLE = ("F16", "BF16", "F32", *_BLOCKS, INT8_ROWS)


@dataclass(frozen=True, slots=True)
class Stored:
    """A parameter on disk: its file, shape and type, and a function that reads its values."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a model's files hold, their parameters still on disk; None is what they do not tell.

    `vocabulary` are the text tokens. `heads` are the alignment heads that the files
    list, which need not exist. The other two are as in `Model`.
    """

    stored: Mapping[str, Stored]
    vocabulary: TextTokens | None = None
    heads: Iterable[tuple[int, int]] | None = None
    suppress_tokens: Iterable[int] | None = None
    begin_suppress_tokens: Iterable[int] | None = None


def parameter_shapes(dims: ModelDimensions, *, tied: bool = True) -> Shapes:
    """Return name and shape of every parameter that a model of these dimensions has.

    `tied` says that the token embedding is the output layer too.
    """
    audio, text = dims.n_audio_state, dims.n_text_state
    shapes: Shapes = {
        "encoder.conv1.weight": (audio, dims.n_mels, 3),
        "encoder.conv1.bias": (audio,),
        "encoder.conv2.weight": (audio, audio, 3),
        "encoder.conv2.bias": (audio,),
        "encoder.positional_embedding": (dims.n_audio_ctx, audio),
        **_norm("encoder.ln_post", audio),
        "decoder.token_embedding.weight": (dims.n_vocab, text),
        "decoder.positional_embedding": (dims.n_text_ctx, text),
        **_norm("decoder.ln", text),
    }
    for layer in range(dims.n_audio_layer):
        shapes |= _block(f"encoder.blocks.{layer}", audio)
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        shapes |= _block(block, text) | _attention(f"{block}.cross_attn", text)
    return shapes if tied else shapes | {OUTPUT: (dims.n_vocab, text)}


class StoredWeights(Mapping[str, NDArray[np.float32]]):
    """A model's parameters, each of which is read from its file whenever it is asked for.

    Asking for one raises `ModelError` if it is damaged, or holds NaN or infinity.
    """

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self._stored = stored

    def stored(self, name: str) -> Stored:
        """Return where and how a parameter is stored."""
        return self._stored[name]

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        stored = self._stored[name]
        # Engines need contiguous rows. What is on disk can only be read, so it is copied.
        values = np.require(stored.read(), np.float32, ["C", "A", "W", "E"])
        if not np.isfinite(values).all():
            raise bad_file(stored.path, f"{name} holds NaN or infinity")
        return values

    def __contains__(self, name: object) -> bool:
        return name in self._stored  # the inherited method would read it

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def gather(path: Path, dims: ModelDimensions, stored: Mapping[str, Stored]) -> StoredWeights:
    """Return a model's parameters as float32, which are read when they are asked for.

    Names, shapes and types are compared with `dims` before any data is read, so that a damaged or
    foreign file costs neither time nor memory. Raises `ModelError` if the model is of another
    architecture; `path` is the file or folder to name where a parameter is missing.
    """
    expected = parameter_shapes(dims, tied=OUTPUT not in stored)
    if wrong := sorted(stored.keys() ^ expected.keys()):
        name = wrong[0]
        what = "is missing" if name in expected else "is not a part of a model of its dimensions"
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ModelError(f"{path}: {shown(name)}{more} {what}; dimensions and weights do not match")
    for name, shape in expected.items():
        each = stored[name]
        if each.shape != shape:
            raise ModelError(
                f"{each.path}: {name} has shape {list(each.shape)}, not {list(shape)}; "
                "dimensions and weights do not match"
            )
        if each.dtype not in _READABLE:
            raise ModelError(
                f"{each.path}: {name} is of type {shown(each.dtype)}; "
                f"convert the model to {', '.join(_READABLE)}"
            )
    return StoredWeights({name: stored[name] for name in expected})


def _norm(name: str, n_state: int) -> Shapes:
    return {f"{name}.weight": (n_state,), f"{name}.bias": (n_state,)}


def _linear(name: str, n_out: int, n_in: int) -> Shapes:
    return {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}


def _attention(name: str, n_state: int) -> Shapes:
    shapes: Shapes = {f"{name}.key.weight": (n_state, n_state)} | _norm(f"{name}_ln", n_state)
    for projection in ("query", "value", "out"):
        shapes |= _linear(f"{name}.{projection}", n_state, n_state)
    return shapes


def _block(name: str, n_state: int) -> Shapes:
    return {
        **_attention(f"{name}.attn", n_state),
        **_norm(f"{name}.mlp_ln", n_state),
        **_linear(f"{name}.mlp.0", 4 * n_state, n_state),
        **_linear(f"{name}.mlp.2", n_state, 4 * n_state),
    }


# -- text tokens ----------------------------------------------------------------------------------

_SHIPPED = Path(__file__).parent / "vocabularies"
_OPENAI = {
    51_864: "gpt2.tiktoken",
    51_865: "multilingual.tiktoken",
    51_866: "multilingual.tiktoken",
}
"""Number of tokens, with the special ones -> file."""
N_OPENAI = tuple(_OPENAI)
"""Sizes of vocabularies: English-only, multilingual, large-v3."""
_EOT = b"<|endoftext|>"


def openai_vocabulary(path: Path, n_vocab: int) -> TextTokens:
    """Return OpenAI's text tokens for a model of `n_vocab` tokens in the file `path`.

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


def numbered(path: Path, tokens: Sequence[bytes]) -> TextTokens:
    """Return the text tokens that `path` lists in the order of their ids.

    The list ends at end-of-text, with which some files begin the special tokens. Raises
    `ModelError` if a token is duplicated, or a byte is missing.
    """
    if _EOT in tokens:
        tokens = tokens[: tokens.index(_EOT)]
    different = set(tokens)
    complete = all(bytes([byte]) in different for byte in range(256))
    if not complete or len(different) != len(tokens):
        raise bad_file(path, "tokens are missing or duplicated")
    return TextTokens(tokens)


def spelled(path: Path, texts: Sequence[str]) -> TextTokens:
    """Return the tokens that `path` lists as `numbered`, but in GPT-2's letters.

    Raises `ModelError` if a token is duplicated, a byte is missing, or a letter stands for no byte.
    """
    letters = {letter: byte for byte, letter in _letters().items()}
    eot = texts.index(_EOT.decode()) if _EOT.decode() in texts else len(texts)
    try:
        tokens = [bytes(letters[letter] for letter in text) for text in texts[:eot]]
    except KeyError as error:
        raise ModelError(f"{path}: {error} stands for no byte; not Whisper's tokens") from error
    return numbered(path, tokens)


def letters_of(token: bytes) -> str:
    """Return a token in GPT-2's letters."""
    letters = _letters()
    return "".join(letters[byte] for byte in token)


@cache
def _letters() -> Mapping[int, str]:
    """GPT-2 shows bytes that are no visible Latin-1 letter as letters from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {
        byte: chr(0x100 + i) for i, byte in enumerate(hidden)
    }
