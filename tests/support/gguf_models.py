"""GGUF files of transcribe.cpp's streaming families, with random weights, for tests and benchmarks.

Names of metadata and tensors, and their shapes, are those that the library asks for
(github.com/handy-computer/transcribe.cpp, ``src/arch/*/weights.cpp``). What such a model says has
no meaning; what it costs, and what the library does with it, is real.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]
Encoder = Callable[[str, NDArray[np.float32]], tuple[NDArray[Any], GGMLQuantizationType]]
"""Returns a tensor as it stands in the file, and its type."""


@dataclass
class GgufModel:
    """What a file says; everything may be changed before it is written.

    `replaced` are weights that stand for the random ones, by their tensors' names.
    """

    family: str
    metadata: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    rng: np.random.Generator
    replaced: Tensors = field(default_factory=dict)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return the weights of a tensor: small random ones, and gains of one for layer norms."""
        if (found := self.replaced.get(name)) is not None:
            return found
        shape = self.shapes[name]
        if "norm" in name or ".bn." in name:
            return np.full(shape, 0.0 if name.endswith(("bias", "mean")) else 1.0, np.float32)
        fan_in = int(np.prod(shape[1:])) or 1
        return self.rng.standard_normal(shape, dtype=np.float32) / np.float32(fan_in**0.5)

    def write(self, path: Path, encode: Encoder | None = None) -> Path:
        """Write the file."""
        writer = GGUFWriter(path, self.family)
        for key, value in self.metadata.items():
            match value:
                case bool():
                    writer.add_bool(key, value)
                case int():
                    writer.add_uint32(key, value)
                case float():
                    writer.add_float32(key, value)
                case str():
                    writer.add_string(key, value)
                case np.int32():
                    writer.add_int32(key, int(value))
                case _:
                    writer.add_array(key, value)
        for name in self.shapes:
            weights = self.tensor(name)
            if encode is None or weights.ndim < 2:
                writer.add_tensor(name, weights)
            else:
                stored, kind = encode(name, weights)
                writer.add_tensor(name, stored, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _tokens(n_vocab: int) -> list[str]:
    letters = [
        f"▁{chr(97 + i % 26)}{i}" if i % 2 else f"{chr(97 + i % 26)}" for i in range(n_vocab)
    ]
    return ["<unk>", "<s>", "</s>", *letters][:n_vocab]


def _under(prefix: str, **values: Any) -> dict[str, Any]:
    return {prefix + name: value for name, value in values.items()}


def _biased(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of weights, and of the bias of each."""
    return {
        f"{name}.{part}": shape[:n]
        for name, shape in shapes.items()
        for part, n in (("weight", None), ("bias", 1))
    }


def _general(name: str, n_vocab: int) -> dict[str, Any]:
    kinds = [2, 3, 3, *[1] * (n_vocab - 3)]
    return {
        **_under("general.", name=name, basename=name, languages=["en"], license="mit"),
        **_under("tokenizer.ggml.", model="bpe", tokens=_tokens(n_vocab), token_type=kinds),
        **_under("tokenizer.ggml.", unknown_token_id=0, bos_token_id=1, eos_token_id=2),
        "stt.capability.streaming": True,
        "stt.frontend.sample_rate": 16000,
    }


@dataclass(frozen=True)
class Moonshine:
    """Dimensions of a Moonshine Streaming model; small by default."""

    encoder: int = 32
    decoder: int = 32
    layers: int = 2
    heads: int = 2
    head_dim: int = 16
    n_vocab: int = 64
    positions: int = 512
    name: str = "moonshine-streaming-tiny"


TINY = Moonshine(320, 320, 6, 8, 40, 32768, 4096, "moonshine-streaming-tiny")
SMALL = Moonshine(620, 512, 10, 8, 64, 32768, 4096, "moonshine-streaming-small")
MEDIUM = Moonshine(768, 640, 14, 10, 64, 32768, 4096, "moonshine-streaming-medium")
"""Those of the published Moonshine Streaming models."""


def moonshine(d: Moonshine | None = None, seed: int = 0) -> GgufModel:
    """Return a Moonshine Streaming model."""
    d = d or Moonshine()
    key = "stt.moonshine_streaming."
    attention = d.heads * d.head_dim
    windows = [[16, 4 if i < 2 or i >= d.layers - 2 else 0] for i in range(d.layers)]
    metadata = {
        **_general(d.name, d.n_vocab),
        "stt.variant": d.name,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.byte_fallback": True,
        "stt.frontend.type": "raw",
        "stt.frontend.num_mels": 1,
        **_under(f"{key}encoder.", n_layers=d.layers, d_model=d.encoder, n_heads=d.heads),
        **_under(f"{key}encoder.", n_kv_heads=d.heads, head_dim=d.head_dim, ffn_dim=4 * d.encoder),
        **_under(f"{key}encoder.", activation="gelu", frame_ms=5.0, frame_len=80),
        f"{key}encoder.sliding_windows": [each for pair in windows for each in pair],
        **_under(key, encoder_hidden_size=d.encoder, adapter_has_proj=d.encoder != d.decoder),
        **_under(f"{key}decoder.", n_layers=d.layers, d_model=d.decoder, n_heads=d.heads),
        **_under(f"{key}decoder.", n_kv_heads=d.heads, head_dim=d.decoder // d.heads),
        **_under(f"{key}decoder.", ffn_dim=4 * d.decoder, activation="silu", vocab_size=d.n_vocab),
        **_under(f"{key}decoder.", max_position_embeddings=d.positions, tie_word_embeddings=False),
        **_under(key, partial_rotary_factor=0.8, rope_theta=10000.0, cmvn_eps=1e-6),
        **_under(key, decoder_start_token_id=1, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    }
    e, h, f = d.encoder, d.decoder, 4 * d.decoder
    shapes: dict[str, tuple[int, ...]] = {
        "enc.embedder.comp.log_k": (1,),
        "enc.embedder.linear.weight": (e, 80),
        **_biased({"enc.embedder.conv1": (2 * e, e, 5), "enc.embedder.conv2": (e, 2 * e, 5)}),
        "enc.final_norm.weight": (e,),
        "adapter.pos_emb.weight": (d.positions, e),
        "dec.token_embd.weight": (d.n_vocab, h),
        "dec.final_norm.weight": (h,),
        "dec.lm_head.weight": (d.n_vocab, h),
    }
    if e != h:
        shapes["adapter.proj.weight"] = (h, e)
    for i in range(d.layers):
        of = f"enc.blocks.{i}."
        shapes |= {f"{of}norm_{each}.weight": (e,) for each in ("attn", "ffn")}
        shapes |= {f"{of}attn.{each}.weight": (attention, e) for each in "qkv"}
        shapes[f"{of}attn.out.weight"] = (e, attention)
        shapes |= _biased({f"{of}ffn.fc1": (4 * e, e), f"{of}ffn.fc2": (e, 4 * e)})
        of = f"dec.blocks.{i}."
        shapes |= {f"{of}norm_{each}.weight": (h,) for each in ("self", "cross", "ffn")}
        for each in ("self", "cross"):
            shapes |= {f"{of}{each}_attn.{part}.weight": (h, h) for part in ("q", "k", "v", "out")}
        shapes |= _biased({f"{of}ffn.fc1": (2 * f, h), f"{of}ffn.fc2": (h, f)})
    return GgufModel("moonshine_streaming", metadata, shapes, np.random.default_rng(seed))


@dataclass(frozen=True)
class Nemotron:
    """Dimensions of a Nemotron Speech Streaming model; small by default."""

    width: int = 32
    layers: int = 2
    heads: int = 2
    channels: int = 8
    n_mels: int = 32
    predictor: int = 16
    n_vocab: int = 64


NEMOTRON = Nemotron(1024, 24, 8, 256, 128, 640, 1024)
"""Those of Nemotron Speech Streaming 0.6B."""


def nemotron(d: Nemotron | None = None, seed: int = 0) -> GgufModel:
    """Return a Nemotron Speech Streaming model: a cache-aware FastConformer with an RNN-T head."""
    d = d or Nemotron()
    key, i32 = "stt.parakeet.", np.int32
    looks = [(70, 13), (70, 6), (70, 1), (70, 0)]
    name = "nemotron-speech-streaming-en-0.6b"
    metadata = {
        **_general(name, d.n_vocab),
        "stt.variant": name,
        "tokenizer.ggml.blank_token_id": d.n_vocab,
        "tokenizer.ggml.scores": [0.0 - i for i in range(d.n_vocab)],
        f"{key}head_kind": "rnnt",
        **_under(f"{key}encoder.", n_layers=d.layers, d_model=d.width, n_heads=d.heads),
        **_under(f"{key}encoder.", d_ff=4 * d.width, conv_kernel=9, subsampling_factor=8),
        **_under(f"{key}encoder.", subsampling_channels=d.channels, pos_emb_max_len=5000),
        **_under(f"{key}encoder.", use_bias=False, xscaling=False),
        **_under(f"{key}encoder.att_context_", left=i32(70), right=i32(13)),
        f"{key}encoder.att_context_size_choices": [each for pair in looks for each in pair],
        f"{key}encoder.att_context_style": "chunked_limited",
        **_under(f"{key}encoder.conv_", context_left=i32(8), context_right=i32(0)),
        f"{key}encoder.conv_norm_type": "layer_norm",
        f"{key}encoder.streaming.pre_encode_cache_size": i32(9),
        f"{key}encoder.streaming.drop_extra_pre_encoded": i32(2),
        f"{key}encoder.streaming.sampling_frames_first": i32(1),
        **_under(f"{key}predictor.", hidden=d.predictor, n_layers=2, vocab=d.n_vocab + 1),
        **_under(f"{key}joint.", hidden=d.predictor, num_extra_outputs=0, activation="relu"),
        **_under("stt.frontend.", type="mel", num_mels=d.n_mels, n_fft=512, win_length=400),
        **_under("stt.frontend.", hop_length=160, window="hann", normalize="none", dither=0.0),
        **_under("stt.frontend.", pre_emphasis=0.0, f_min=0.0, f_max=8000.0),
    }
    c, w, p = d.channels, d.width, d.predictor
    freqs = d.n_mels
    for _ in range(3):
        freqs = freqs // 2 + 1
    shapes: dict[str, tuple[int, ...]] = {}
    for i, rows, kernel in ((0, 1, 3), (2, 1, 3), (3, c, 1), (5, 1, 3), (6, c, 1)):
        shapes |= _biased({f"enc.pre_encode.conv.{i}": (c, rows, kernel, kernel)})
    shapes |= _biased({"enc.pre_encode.out": (w, c * freqs)})
    for i in range(d.layers):
        of = f"enc.blocks.{i}."
        for each in ("ff1", "attn", "conv", "ff2", "out"):
            shapes |= _biased({f"{of}norm_{each}": (w,)})
        for each in ("ff1", "ff2"):
            shapes[f"{of}{each}.linear1.weight"] = (4 * w, w)
            shapes[f"{of}{each}.linear2.weight"] = (w, 4 * w)
        for each in ("q", "k", "v", "out", "pos"):
            shapes[f"{of}attn.linear_{each}.weight"] = (w, w)
        for each in "uv":
            shapes[f"{of}attn.pos_bias_{each}"] = (d.heads, w // d.heads)
        shapes |= {
            f"{of}conv.pointwise1.weight": (2 * w, w, 1),
            f"{of}conv.depthwise.weight": (w, 1, 9),
            f"{of}conv.pointwise2.weight": (w, w, 1),
            **_biased({f"{of}conv.bn": (w,)}),
        }
    shapes["pred.embed.weight"] = (d.n_vocab + 1, p)
    for i in range(2):
        shapes |= {f"pred.lstm.{i}.W{each}": (4 * p, p) for each in "xh"}
        shapes[f"pred.lstm.{i}.bias"] = (4 * p,)
    shapes |= _biased({"joint.enc": (p, w), "joint.pred": (p, p), "joint.out": (d.n_vocab + 1, p)})
    return GgufModel("parakeet", metadata, shapes, np.random.default_rng(seed))


def parakeet(*, streams: bool) -> GgufModel:
    """Return a small Parakeet Unified, which streams by chunks of sound, or a Parakeet TDT."""
    model, key = nemotron(), "stt.parakeet."
    of_nemotron = ("streaming", "conv_context", "att_context")
    model.metadata = {
        name: value
        for name, value in model.metadata.items()
        if not name.startswith(tuple(f"{key}encoder.{each}" for each in of_nemotron))
    }
    d = Nemotron()
    model.shapes["enc.pre_encode.out.weight"] = (d.width, d.channels * d.n_mels // 8)
    if streams:
        model.metadata["stt.variant"] = "parakeet-unified-en-0.6b"
        model.metadata[f"{key}encoder.att_context_style"] = "chunked_limited_with_rc"
        for name, choices in {"left": [70], "chunk": [1, 2, 7, 13], "right": [0, 1, 3, 7]}.items():
            model.metadata[f"{key}encoder.att_chunk_{name}_choices"] = choices
        return model
    durations = [0, 1, 2, 3, 4]
    model.metadata |= {
        "stt.variant": "parakeet-tdt-0.6b-v3",
        "stt.capability.streaming": False,
        f"{key}head_kind": "tdt",
        f"{key}joint.num_extra_outputs": len(durations),
        f"{key}tdt.durations": durations,
    }
    n_outputs = d.n_vocab + 1 + len(durations)
    model.shapes |= {"joint.out.weight": (n_outputs, d.predictor), "joint.out.bias": (n_outputs,)}
    return model


@dataclass(frozen=True)
class Canary:
    """Dimensions of a Canary, which decodes utterances token by token; small by default."""

    width: int = 32
    layers: int = 2
    heads: int = 2
    channels: int = 8
    decoder: int = 32
    decoder_layers: int = 2
    n_vocab: int = 64
    name: str = "canary-180m-flash"


CANARY_180M = Canary(512, 17, 8, 256, 1024, 4, 5248)
CANARY_1B = Canary(1024, 32, 8, 256, 1024, 8, 16384, "canary-1b-v2")
"""Those of Canary 180M Flash and Canary 1B v2."""


def canary(d: Canary | None = None) -> GgufModel:
    """Return a Canary: the encoder of `nemotron` with biases, and a Transformer that decodes."""
    d, key, h = d or Canary(), "stt.canary.", (d or Canary()).decoder
    encoder = nemotron(Nemotron(d.width, d.layers, d.heads, d.channels, 128, 16, d.n_vocab))
    specials = ("startoftranscript", "endoftext", "pad", "startofcontext", "pnc", "nopnc", "itn")
    specials += ("noitn", "timestamp", "notimestamp", "diarize", "nodiarize", "lang.en")
    shared = ("n_layers", "d_model", "n_heads", "d_ff", "conv_kernel", "subsampling_factor")
    shared += ("subsampling_channels", "pos_emb_max_len")
    metadata = {
        name: value
        for name, value in encoder.metadata.items()
        if not name.startswith("stt.parakeet.") and not name.endswith("blank_token_id")
    }
    metadata |= {
        **{f"{key}encoder.{n}": encoder.metadata[f"stt.parakeet.encoder.{n}"] for n in shared},
        **{f"{key}special.{name}_id": 3 + i for i, name in enumerate(specials)},
        "general.name": d.name,
        "stt.variant": d.name,
        "stt.capability.streaming": False,
        "stt.frontend.normalize": "per_feature",
        "tokenizer.ggml.model": "unigram",
        "tokenizer.ggml.tokens": [*_tokens(d.n_vocab)[:-1], "<|emo:undefined|>"],
        "tokenizer.ggml.eos_token_id": 4,
        f"{key}encoder.use_bias": True,
        **_under(f"{key}decoder.", n_layers=d.decoder_layers, d_model=h, n_heads=d.heads),
        **_under(f"{key}decoder.", d_ff=4 * h, max_position=1024, vocab_size=d.n_vocab),
        **_under(f"{key}decoder.", activation="relu", pre_ln=True),
        f"{key}decoder.encoder_decoder_proj": d.width != h,
        **_under(f"{key}tokenizer.", prompt_format="canary2", lang_codes=["en"]),
    }
    shapes = {name: it for name, it in encoder.shapes.items() if name.startswith("enc.")}
    shapes["enc.pre_encode.out.weight"] = (d.width, d.channels * 128 // 8)
    for i in range(d.layers):
        of = f"enc.blocks.{i}."
        for each in ("ff1.linear1", "ff1.linear2", "ff2.linear1", "ff2.linear2"):
            shapes[f"{of}{each}.bias"] = (shapes[f"{of}{each}.weight"][0],)
        shapes |= {f"{of}attn.linear_{each}.bias": (d.width,) for each in ("q", "k", "v", "out")}
        shapes[f"{of}conv.pointwise1.bias"] = (2 * d.width,)
        names = ("depthwise.bias", "pointwise2.bias", "bn.running_mean", "bn.running_var")
        shapes |= {f"{of}conv.{name}": (d.width,) for name in names}
    if d.width != h:
        shapes |= _biased({"enc.proj": (h, d.width)})
    shapes |= {"dec.embed.token.weight": (d.n_vocab, h), "dec.embed.pos_enc": (1024, h)}
    shapes |= _biased({"dec.embed.norm": (h,), "dec.norm": (h,), "dec.head": (d.n_vocab, h)})
    for i in range(d.decoder_layers):
        of = f"dec.layer.{i}."
        matrices = {f"{each}_attn.{part}": (h, h) for each in ("self", "cross") for part in "qkvo"}
        matrices |= {"ffn.up": (4 * h, h), "ffn.down": (h, 4 * h)}
        matrices |= {f"norm{n}": (h,) for n in (1, 2, 3)}
        shapes |= _biased({of + name: shape for name, shape in matrices.items()})
    return GgufModel("canary", metadata, shapes, np.random.default_rng(0))
