"""Hugging Face's folder for a Whisper model, as transformers writes it and the hub has it.

The tokenizer's merges are not read: in Whisper's vocabularies their order is that of the ids.
Names of parameters and fields: transformers ``modeling_whisper.py``, ``configuration_whisper.py``.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from streamd.engine import ModelDimensions
from streamd.engine.catalog import heads
from streamd.engine.formats import safetensors
from streamd.engine.formats.torch_zip import open_torch
from streamd.engine.formats.untrusted import bad_file, existing, present, read_json
from streamd.engine.model import (
    MIN_AUDIO_CTX,
    Model,
    Outline,
    below,
    check_dimensions,
    only_language,
)
from streamd.engine.vocabulary import check_size, openai_vocabulary, spelled
from streamd.engine.weights import OUTPUT, Stored, gather
from streamd.errors import ModelError

CONFIG, GENERATION = "config.json", "generation_config.json"
_TORCH, _TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"

_RENAMED = (
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


class ModelType(msgspec.Struct):
    """What every ``config.json`` of transformers has."""

    model_type: str = ""


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


class _Generation(msgspec.Struct):
    """``generation_config.json``; old models have none, or one without alignment heads."""

    alignment_heads: list[tuple[int, int]] | None = None
    is_multilingual: bool | None = None
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None


class _AddedToken(msgspec.Struct):
    id: int


class _BytePairs(msgspec.Struct):
    vocab: dict[str, int]


class _TokenizerFile(msgspec.Struct):
    model: _BytePairs
    added_tokens: list[_AddedToken] = []


def load(folder: Path, name: str) -> Model:
    """Load the folder.

    Raises `ModelError` if its files are missing, damaged or of another architecture.
    """
    config, dims = _described(folder / CONFIG)
    generation = _generation(folder)
    vocabulary = check_size(folder, read_vocabulary(folder, dims.n_vocab), dims.n_vocab)
    with _opened(folder) as stored:
        renamed = {_openai_name(name): tensor for name, tensor in stored.items()}
        if config.tie_word_embeddings:
            renamed.pop(OUTPUT, None)  # repeats the embedding
        weights = gather(folder, dims, renamed)
    return Model(
        name=name,
        dims=dims,
        weights=weights,
        vocabulary=vocabulary,
        alignment_heads=heads(generation.alignment_heads, Path(name), dims),
        language=_language(dims, generation),
        min_audio_ctx=min(MIN_AUDIO_CTX, dims.n_audio_ctx),
        # of special tokens only the end can come first; our own rules refuse the others
        suppress_tokens=below(len(vocabulary), generation.suppress_tokens),
        begin_suppress_tokens=below(len(vocabulary) + 1, generation.begin_suppress_tokens),
    )


def outline(folder: Path) -> Outline:
    """Describe the folder's model. Raises `ModelError`, as `load` does."""
    dims = read_dimensions(folder / CONFIG)
    return Outline(dims, _language(dims, _generation(folder)))


def files(folder: Path) -> list[Path]:
    """Return the files that `load` reads. Raises `ModelError` if an index of them is damaged."""
    small = present(folder, (CONFIG, GENERATION))
    return [*small, *vocabularies(folder), *(_torch_files(folder) or safetensors.files(folder))]


def has_weights(folder: Path) -> bool:
    """Return whether there are weights that `load` could read."""
    names = (safetensors.SINGLE, safetensors.INDEX, _TORCH, _TORCH_INDEX)
    return bool(present(folder, names))


def vocabularies(folder: Path) -> list[Path]:
    """Return the file that `read_vocabulary` reads, if there is one."""
    return present(folder, ("tokenizer.json", "vocab.json"))[:1]


def read_dimensions(path: Path) -> ModelDimensions:
    """Read a ``config.json``. Raises `ModelError` if it is damaged, or of another architecture."""
    return _described(path)[1]


def _generation(folder: Path) -> _Generation:
    path = folder / GENERATION
    return read_json(path, _Generation) if path.exists() else _Generation()


def _language(dims: ModelDimensions, generation: _Generation) -> str | None:
    if generation.is_multilingual is None:
        return only_language(dims)
    return None if generation.is_multilingual else "en"


def _described(path: Path) -> tuple[_HfConfig, ModelDimensions]:
    kind = read_json(path, ModelType).model_type
    if kind != "whisper":
        raise ModelError(f"{path}: describes a model of type {kind!r}; streamd reads only whisper")
    config = read_json(path, _HfConfig)
    dims = ModelDimensions(
        n_mels=config.num_mel_bins,
        n_audio_ctx=config.max_source_positions,
        n_audio_state=config.d_model,
        n_audio_head=config.encoder_attention_heads,
        n_audio_layer=config.encoder_layers,
        n_vocab=config.vocab_size,
        n_text_ctx=config.max_target_positions,
        n_text_state=config.d_model,
        n_text_head=config.decoder_attention_heads,
        n_text_layer=config.decoder_layers,
    )
    usual = (
        config.encoder_ffn_dim == config.decoder_ffn_dim == 4 * config.d_model
        and config.activation_function == "gelu"
        and not config.scale_embedding
    )
    check_dimensions(path, dims, usual=usual)
    return config, dims


def _torch_files(folder: Path) -> list[Path]:
    """Return torch's files, their index first, if the weights are in no others."""
    if present(folder, (safetensors.SINGLE, safetensors.INDEX)):
        return []
    index = folder / _TORCH_INDEX
    if (folder / _TORCH).is_file() or not index.is_file():
        return present(folder, (_TORCH,))
    return [index, *(folder / name for name in safetensors.shards(index, ending=".bin"))]


@contextmanager
def _opened(folder: Path) -> Iterator[dict[str, Stored]]:
    parts = [path for path in _torch_files(folder) if path.name != _TORCH_INDEX]
    if not parts:
        yield safetensors.open_folder(folder)
        return
    with ExitStack() as stack:
        stored: dict[str, Stored] = {}
        for path in parts:
            file = stack.enter_context(open_torch(existing(path)))
            found = file.stored(file.content)
            if found is None:
                raise bad_file(path, "holds more than weights")
            stored |= found
        yield stored


def _openai_name(name: str) -> str:
    # without "model.": saved from transformers' WhisperModel, which has no output layer
    name = name.removeprefix("model.")
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return re.sub(
        r"^(encoder|decoder)\.layer_norm\.",
        lambda found: "encoder.ln_post." if found[1] == "encoder" else "decoder.ln.",
        name,
    )


def read_vocabulary(folder: Path, n_vocab: int) -> dict[bytes, int]:
    """Read ``tokenizer.json``, or else ``vocab.json``, which old models have.

    If there is neither, the result is OpenAI's vocabulary of that size, which ships with streamd.
    Raises `ModelError` if the file is damaged, or OpenAI has no vocabulary of that size.
    """
    path, old = folder / "tokenizer.json", folder / "vocab.json"
    if not path.exists() and not old.exists():
        return openai_vocabulary(folder, n_vocab)
    if path.exists():
        tokenizer = read_json(path, _TokenizerFile)
        added = {token.id for token in tokenizer.added_tokens}
        ids = {text: i for text, i in tokenizer.model.vocab.items() if i not in added}
    else:
        path = old
        ids = read_json(path, dict[str, int])
    in_order = sorted(ids, key=ids.__getitem__)
    eot = ids.get("<|endoftext|>", len(in_order))
    if [ids[text] for text in in_order[:eot]] != list(range(min(eot, len(ids)))):
        raise bad_file(path, "tokens are missing or duplicated")
    return spelled(path, in_order)
