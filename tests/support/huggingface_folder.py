"""Writes Hugging Face's folder: safetensors under transformers' names, configuration, tokenizer."""

import json
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from streamd.language import LANGUAGES
from streamd.models.model import Model
from tests.support.folders import letters

_RENAMED = [
    ("positional_embedding", "embed_positions.weight"),
    ("token_embedding", "embed_tokens"),
    ("blocks.", "layers."),
    ("cross_attn_ln", "encoder_attn_layer_norm"),
    ("attn_ln", "self_attn_layer_norm"),
    ("cross_attn.", "encoder_attn."),
    (".attn.", ".self_attn."),
    (".query", ".q_proj"),
    (".key", ".k_proj"),
    (".value", ".v_proj"),
    (".out", ".out_proj"),
    ("mlp_ln", "final_layer_norm"),
    ("mlp.0", "fc1"),
    ("mlp.2", "fc2"),
    ("ln_post", "layer_norm"),
    ("decoder.ln.", "decoder.layer_norm."),
]


def write(model: Model, out: Path) -> Path:
    """Write the folder ``out``/hf, weights rounded to float16."""
    folder = out / "hf"
    folder.mkdir(exist_ok=True)
    weights = {renamed(name): a.astype(np.float16) for name, a in model.weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in described(model).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1))
    return folder


def described(model: Model) -> dict[str, dict[str, object]]:
    """The folder's files without weights, by their names."""
    eot, sot = len(model.vocabulary), len(model.vocabulary) + 1
    return {
        "config.json": _config(model, eot, sot),
        "generation_config.json": _generation(model, eot, sot),
        "preprocessor_config.json": _features(model.dims.n_mels),
        "tokenizer.json": _tokenizer(model),
        "tokenizer_config.json": {
            "tokenizer_class": "WhisperTokenizer",
            **{f"{each}_token": "<|endoftext|>" for each in ("bos", "eos", "unk", "pad")},
        },
    }


def renamed(name: str) -> str:
    """What transformers calls a parameter of openai-whisper's."""
    for ours, theirs in _RENAMED:
        name = name.replace(ours, theirs)
    return f"model.{name}"


def _config(model: Model, eot: int, sot: int) -> dict[str, object]:
    d = model.dims
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": d.n_vocab,
        "num_mel_bins": d.n_mels,
        "d_model": d.n_audio_state,
        **_part("encoder", d.n_audio_layer, d.n_audio_head, d.n_audio_state),
        **_part("decoder", d.n_text_layer, d.n_text_head, d.n_text_state),
        "max_source_positions": d.n_audio_ctx,
        "max_target_positions": d.n_text_ctx,
        "activation_function": "gelu",
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "scale_embedding": False,
        **_special(eot, sot),
        "begin_suppress_tokens": _first_suppressed(model, eot),
        "torch_dtype": "float16",
    }


def _part(name: str, n_layers: int, n_heads: int, width: int) -> dict[str, int]:
    sizes = {"layers": n_layers, "attention_heads": n_heads, "ffn_dim": 4 * width}
    return {f"{name}_{size}": value for size, value in sizes.items()}


def _special(eot: int, sot: int) -> dict[str, int]:
    ends = {f"{name}_token_id": eot for name in ("bos", "eos", "pad")}
    return {**ends, "decoder_start_token_id": sot}


def _generation(model: Model, eot: int, sot: int) -> dict[str, object]:
    no_times = model.dims.n_vocab - 1502
    return {
        **_special(eot, sot),
        "no_timestamps_token_id": no_times,
        "is_multilingual": model.language is None,
        "max_length": model.dims.n_text_ctx,
        "max_initial_timestamp_index": 50,
        "suppress_tokens": [*(model.suppress_tokens or ())],
        "begin_suppress_tokens": _first_suppressed(model, eot),
        "alignment_heads": [list(head) for head in model.alignment_heads],
    }


def _first_suppressed(model: Model, eot: int) -> list[int]:
    own = model.begin_suppress_tokens
    return [220, eot] if own is None else [*own]


def _features(n_mels: int) -> dict[str, object]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": n_mels,
        "sampling_rate": 16_000,
        "n_fft": 400,
        "hop_length": 160,
        "chunk_length": 30,
        "n_samples": 480_000,
        "nb_max_frames": 3_000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def _tokenizer(model: Model) -> dict[str, object]:
    """A byte-level BPE; its merges follow from the ranks."""
    vocabulary, merges = _vocabulary_and_merges(tuple(model.vocabulary))
    specials = _specials(model)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": len(vocabulary) + i, "content": name, "special": True, "normalized": False,
             "single_word": False, "lstrip": False, "rstrip": False}
            for i, name in enumerate(specials)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }  # fmt: skip


@cache
def _vocabulary_and_merges(
    tokens: tuple[bytes, ...],
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    ranks = {token: i for i, token in enumerate(tokens)}
    vocabulary = {letters(token): i for token, i in ranks.items()}
    halves = (_halves(token, ranks) for token in tokens if len(token) > 1)
    return vocabulary, [(letters(left), letters(right)) for left, right in halves]


def _specials(model: Model) -> list[str]:
    n_languages = model.dims.n_vocab - len(model.vocabulary) - 1509
    languages = [f"<|{code}|>" for code in LANGUAGES[:n_languages]]
    times = [f"<|{i * 0.02:.2f}|>" for i in range(1501)]
    tasks = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    named = [f"<|{task}|>" for task in tasks]
    return ["<|endoftext|>", "<|startoftranscript|>", *languages, *named, *times]


def _halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Merge a token's bytes in the order of ranks until two parts are left: its own merge."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        pairs = [ranks.get(parts[i] + parts[i + 1], len(ranks)) for i in range(len(parts) - 1)]
        best = pairs.index(min(pairs))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    left, right = parts
    return left, right
