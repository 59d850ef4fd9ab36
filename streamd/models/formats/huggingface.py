"""Hugging Face's folder for a Whisper model, as transformers writes it and the hub stores it.

The tokenizer's merges are not read: in Whisper's vocabularies their order is that of the ids.
Names of parameters and fields: transformers ``modeling_whisper.py``, ``configuration_whisper.py``.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.formats import safetensors
from streamd.models.formats.reading import bad_file, present, read_json, shown
from streamd.models.model import (
    N_OPENAI,
    OUTPUT,
    Contents,
    Outline,
    Stored,
    check_dimensions,
    only_language,
    spelled,
)
from streamd.models.text_tokens import TextTokens

CONFIG, GENERATION = "config.json", "generation_config.json"
_TOKENIZER = "tokenizer.json"
VOCABULARIES = (_TOKENIZER, "vocab.json")
"""One is needed; the first is preferred."""

_RENAMED = (
    ("encoder.layer_norm.", "encoder.ln_post."),
    ("decoder.layer_norm.", "decoder.ln."),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens.", "token_embedding."),
    ("layers.", "blocks."),
    ("encoder_attn_layer_norm.", "cross_attn_ln."),
    ("self_attn_layer_norm.", "attn_ln."),
    ("final_layer_norm.", "mlp_ln."),
    ("encoder_attn.", "cross_attn."),
    ("self_attn.", "attn."),
    ("q_proj.", "query."),
    ("k_proj.", "key."),
    ("v_proj.", "value."),
    ("out_proj.", "out."),
    ("fc1.", "mlp.0."),
    ("fc2.", "mlp.2."),
)
"""Part of a name in transformers -> OpenAI's, to be replaced in this order."""


_FORMS = {"gptq": "GPTQ", "awq": "AWQ"}
"""Names in ``config.json`` -> usual names of what quantises models."""
_READ_FORMS = ("compressed-tensors",)
_MANY_MELS = 128
"""Bands of large-v3, which knows one language, and so one token, more than others."""


class _HfQuantization(msgspec.Struct):
    quant_method: str = "another program"


class ModelType(msgspec.Struct):
    """What every ``config.json`` of transformers has."""

    model_type: str = ""
    quantization_config: _HfQuantization | None = None


class _HfConfig(msgspec.Struct):
    vocab_size: int
    num_mel_bins: int
    d_model: int
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_layers: int
    decoder_attention_heads: int
    decoder_ffn_dim: int
    max_source_positions: int
    max_target_positions: int
    activation_function: str = "gelu"
    scale_embedding: bool = False
    tie_word_embeddings: bool = True


_N_AFTER_NO_TIMESTAMPS = 1501
"""Timestamps, which are the last tokens that OpenAI's vocabularies have."""


class _Generation(msgspec.Struct):
    """``generation_config.json``; old models have none, or one without alignment heads."""

    alignment_heads: list[tuple[int, int]] | None = None
    is_multilingual: bool | None = None
    no_timestamps_token_id: int | None = None
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None


class _AddedToken(msgspec.Struct):
    id: int


class _BytePairs(msgspec.Struct):
    vocab: dict[str, int]


class _TokenizerFile(msgspec.Struct):
    model: _BytePairs
    added_tokens: list[_AddedToken] = []


def outline(folder: Path) -> Outline:
    """Read the configuration, and whether the model is multilingual.

    Fine-tunes may have tokens behind OpenAI's, added ones or padding; they are left out.
    """
    dims, generation = read_dimensions(folder / CONFIG), _generation(folder)
    last = generation.no_timestamps_token_id
    known = last + 1 + _N_AFTER_NO_TIMESTAMPS if last else 0
    if known not in N_OPENAI:
        known = N_OPENAI[-1] if dims.n_mels == _MANY_MELS else N_OPENAI[-2]
    dims = replace(dims, n_vocab=min(dims.n_vocab, known))
    is_multilingual = generation.is_multilingual
    if is_multilingual is None:
        return Outline(dims, only_language(dims))
    return Outline(dims, None if is_multilingual else "en")


def is_one(folder: Path) -> bool:
    """Return whether there are weights that `contents` could open."""
    return bool(present(folder, (safetensors.SINGLE, safetensors.INDEX)))


@contextmanager
def contents(folder: Path) -> Iterator[Contents]:
    """Read all small files, and open those with parameters."""
    yield contents_of(folder, safetensors.open_folder(folder))


def contents_of(folder: Path, stored: Mapping[str, Stored]) -> Contents:
    """Read all small files beside these parameters, whose names may also be OpenAI's."""
    tied = read_json(folder / CONFIG, _HfConfig).tie_word_embeddings
    generation, renamed = _generation(folder), {}
    for name, tensor in stored.items():
        # without "model.": saved from transformers' WhisperModel, which has no output layer
        name = name.removeprefix("model.")
        for theirs, ours in _RENAMED:
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    n_vocab = outline(folder).dims.n_vocab
    for name in ("decoder.token_embedding.weight", OUTPUT):
        if name in renamed and renamed[name].shape[:1] > (n_vocab,):
            renamed[name] = _first_rows(renamed[name], n_vocab)
    if tied:
        renamed.pop(OUTPUT, None)  # repeats the embedding
    return Contents(
        renamed,
        read_vocabulary(folder),
        generation.alignment_heads,
        generation.suppress_tokens,
        generation.begin_suppress_tokens,
    )


def _first_rows(tensor: Stored, n: int) -> Stored:
    return replace(tensor, shape=(n, *tensor.shape[1:]), read=lambda: tensor.read()[:n])


def files(folder: Path) -> list[Path]:
    """Return all files with any of that. Raises `ModelError` if an index of them is damaged."""
    return [*small_files(folder), *safetensors.files(folder)]


def small_files(folder: Path) -> list[Path]:
    """Return all files that `contents` reads beside the parameters."""
    return [*present(folder, (CONFIG, GENERATION)), *vocabularies(folder)]


def vocabularies(folder: Path) -> list[Path]:
    """Return the file that `read_vocabulary` reads, if there is one."""
    return present(folder, VOCABULARIES)[:1]


def _generation(folder: Path) -> _Generation:
    path = folder / GENERATION
    return read_json(path, _Generation) if path.exists() else _Generation()


def read_dimensions(path: Path) -> ModelDimensions:
    """Read a ``config.json``. Raises `ModelError` if it is damaged, or of another architecture."""
    about = read_json(path, ModelType)
    if about.model_type != "whisper":
        kind = about.model_type
        raise ModelError(f"{path}: describes a model of type {kind!r}; streamd reads only whisper")
    if (form := about.quantization_config) and form.quant_method not in _READ_FORMS:
        raise ModelError(
            f"{path}: quantised by {_FORMS.get(form.quant_method, shown(form.quant_method))}, "
            "which streamd does not read; get the same model in float16"
        )
    config = read_json(path, _HfConfig)
    c, width = config, config.d_model
    audio = c.max_source_positions, width, c.encoder_attention_heads, c.encoder_layers
    text = c.max_target_positions, width, c.decoder_attention_heads, c.decoder_layers
    dims = ModelDimensions(c.num_mel_bins, *audio, c.vocab_size, *text)
    usual = (
        config.encoder_ffn_dim == config.decoder_ffn_dim == 4 * config.d_model
        and config.activation_function == "gelu"
        and not config.scale_embedding
    )
    check_dimensions(path, dims, usual=usual)
    return dims


def read_vocabulary(folder: Path) -> TextTokens | None:
    """Read ``tokenizer.json``, or else ``vocab.json``, which old models have; None: neither exists.

    Raises `ModelError` if the file is damaged.
    """
    path = next((folder / name for name in VOCABULARIES if (folder / name).exists()), None)
    if path is None:
        return None
    if path.name == _TOKENIZER:
        tokenizer = read_json(path, _TokenizerFile)
        added = {token.id for token in tokenizer.added_tokens}
        ids = {text: i for text, i in tokenizer.model.vocab.items() if i not in added}
    else:
        ids = read_json(path, dict[str, int])
    in_order = sorted(ids, key=ids.__getitem__)
    eot = ids.get("<|endoftext|>", len(in_order))
    if [ids[text] for text in in_order[:eot]] != list(range(min(eot, len(ids)))):
        raise bad_file(path, "tokens are missing or duplicated")
    return spelled(path, in_order)
