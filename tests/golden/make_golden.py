"""Make ``golden.*`` and ``read.json`` with the openai-whisper package: ``python make_golden.py``

Needs an environment with openai-whisper 20250625, soundfile and streamd itself, which reads the
weights; the tests read only the files. Run it again when the weights in the box change (a test says
so). Two things are done to openai-whisper: the random model gets a part of GPT-2's vocabulary, and
the encoder slices its positions where it would refuse a shorter input.
"""

import base64
import dataclasses
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import tiktoken
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
import whisper
from random_model import ALIGNMENT_HEADS, DIMS, N_TEXT_TOKENS, random_weights, thinned
from whisper.model import ModelDimensions, Whisper, disable_sdpa
from whisper.timing import find_alignment
from whisper.tokenizer import LANGUAGES, Tokenizer, get_tokenizer

from streamd.models.store import load_model

HERE = Path(__file__).parent
WEIGHTS = HERE.parent.parent / "models/tiny.en/model.safetensors"
CLIPS = {"lamp": 384, "cards": 384, "digits": 576}
"""Clip -> a short encoder context that has room for it."""
MERGES = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
TEXTS = [
    "",
    " turn on the living room lamp",
    "seven of hearts...",
    "  two  spaces\tand\nlines ",
    "what's that? it's 12:30, isn't it - (no) [yes] \"x\"",
    "größer, naïve, Ελληνικά",
    "日本語と한국어🎉",
    "♪ la la ♪♪",
]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    document = {
        "made_with": versions(),
        "weights_sha256": hashlib.sha256(WEIGHTS.read_bytes()).hexdigest(),
    }
    arrays = mel_arrays()
    for name, (model, tokenizer) in {"tiny.en": load_real(), "random": load_random()}.items():
        arrays |= engine_arrays(name, model, tokenizer)
        document[name] = {
            "tokenizer": tokenizer_cases(tokenizer),
            "decode": decode_cases(name, model, tokenizer),
            "words": word_cases(name, model, tokenizer),
        }
    model, tokenizer = load_random()
    document["random"]["language"] = language_cases(model, tokenizer)
    np.savez_compressed(HERE / "golden.npz", **arrays)
    (HERE / "read.json").write_text(json.dumps(read(document), indent=1) + "\n")
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (HERE / "golden.json").write_text(text.replace("},{", "},\n{") + "\n")


def read(document: dict[str, Any]) -> dict[str, Any]:
    """The text of each clip, which `streamd models check` compares: greedy, at the full context."""
    texts = {
        case["clip"]: case["text"]
        for case in document["tiny.en"]["decode"]
        if case["n_ctx"] == 1500 and case["options"] == {"without_timestamps": True}
    }
    return {name: document[name] for name in ("made_with", "weights_sha256")} | {"texts": texts}


def versions() -> dict[str, str]:
    return {
        "openai-whisper": whisper.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "tiktoken": tiktoken.__version__,
        "python": platform.python_version(),
    }


def load_real() -> tuple[Whisper, Tokenizer]:
    """tiny.en with the weights in the box."""
    return load(WEIGHTS.parent, "tiny.en"), get_tokenizer(multilingual=False)


def load(folder: Path, name: str) -> Whisper:
    """OpenAI's model of this name, with the weights in a folder."""
    source = load_model(str(folder))
    model = Whisper(ModelDimensions(**dataclasses.asdict(source.dims)))
    model.load_state_dict(
        {name: torch.from_numpy(values) for name, values in source.weights.items()}
    )
    model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
    return model.eval()


def load_random() -> tuple[Whisper, Tokenizer]:
    model = Whisper(ModelDimensions(**DIMS))
    shapes = {name: tuple(values.shape) for name, values in model.state_dict().items()}
    weights = random_weights(shapes)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    set_alignment_heads(model, ALIGNMENT_HEADS)
    tokenizer = Tokenizer(
        encoding=encoding(N_TEXT_TOKENS), num_languages=99, language="de", task="transcribe"
    )
    return model.eval(), tokenizer


def set_alignment_heads(model: Whisper, heads: list[tuple[int, int]]) -> None:
    mask = torch.zeros(model.dims.n_text_layer, model.dims.n_text_head, dtype=torch.bool)
    for layer, head in heads:
        mask[layer, head] = True
    model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)


def encoding(n_text_tokens: int) -> tiktoken.Encoding:
    """The first of GPT-2's tokens, with the special tokens of a multilingual model."""
    gpt2 = Path(whisper.__file__).parent / "assets" / "gpt2.tiktoken"
    lines = gpt2.read_bytes().splitlines()[:n_text_tokens]
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    specials = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        *[f"<|{language}|>" for language in list(LANGUAGES)[:99]],
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
        *[f"<|{i * 0.02:.2f}|>" for i in range(1501)],
    ]
    return tiktoken.Encoding(
        name="golden",
        pat_str=MERGES,
        mergeable_ranks=ranks,
        special_tokens={token: len(ranks) + i for i, token in enumerate(specials)},
    )


def sliced_forward(encoder: whisper.model.AudioEncoder, mel: torch.Tensor) -> torch.Tensor:
    """openai-whisper's encoder, for any even number of mel columns."""
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel)))).permute(0, 2, 1)
    x = x + encoder.positional_embedding[: x.shape[1]]
    for block in encoder.blocks:
        x = block(x)
    return encoder.ln_post(x)


whisper.model.AudioEncoder.forward = sliced_forward


def log_mel(clip: str, n_mels: int, n_ctx: int = 1500) -> torch.Tensor:
    samples, _ = soundfile.read(HERE / f"{clip}.flac", dtype="float32")
    padded = whisper.pad_or_trim(torch.from_numpy(samples), n_ctx * 320)
    return whisper.log_mel_spectrogram(padded, n_mels)


def mel_arrays() -> dict[str, np.ndarray]:
    """Clip padded with zeros to 384 positions; every fifth and ninth column of its beginning."""
    return {
        "mel_80": log_mel("lamp", 80, 384).numpy()[:, :400:5],
        "mel_128": log_mel("lamp", 128, 384).numpy()[:, :400:9],
    }


def engine_arrays(name: str, model: Whisper, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """One forward pass, as `thinned` leaves it."""
    arrays = {}
    words = tokenizer.encode(" would you please turn on the lamp")
    tokens = [*tokenizer.sot_sequence, tokenizer.no_timestamps, *words, tokenizer.eot]
    arrays[f"{name}_tokens"] = np.array(tokens)
    for n_ctx in (384, 1500):
        mel = log_mel("lamp", model.dims.n_mels, n_ctx)
        for key, values in thinned(*forward(model, mel, tokens)).items():
            arrays[f"{name}_{n_ctx}_{key}"] = values
    return arrays


def forward(model: Whisper, mel: torch.Tensor, tokens: list[int]) -> tuple[np.ndarray, ...]:
    """Encoder output (n_ctx, d), logits (k, n_vocab), alignment (k, n_heads, n_ctx)."""
    scores: list[torch.Tensor] = []
    hooks = [
        block.cross_attn.register_forward_hook(lambda _, __, out: scores.append(out[-1][0]))
        for block in model.decoder.blocks
    ]
    with disable_sdpa():
        encoded = model.encoder(mel[None])
        logits = model.decoder(torch.tensor([tokens]), encoded)[0]
    for hook in hooks:
        hook.remove()
    heads = model.alignment_heads.indices().T
    alignment = torch.stack([scores[layer][head] for layer, head in heads], dim=1)
    return encoded[0].numpy(), logits.numpy(), alignment.numpy()


def tokenizer_cases(tokenizer: Tokenizer) -> dict[str, object]:
    cases = []
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        words, word_tokens = tokenizer.split_to_word_tokens([*tokens, tokenizer.eot])
        unicode_words, _ = tokenizer.split_tokens_on_unicode([*tokens, tokenizer.eot])
        cases.append(
            {
                "text": text,
                "tokens": tokens,
                "words": words,
                "word_tokens": word_tokens,
                "unicode_words": unicode_words,
            }
        )
    names = "eot sot translate transcribe sot_lm sot_prev no_speech no_timestamps timestamp_begin"
    return {
        "special": {special: getattr(tokenizer, special) for special in names.split()},
        "sot_sequence": tokenizer.sot_sequence,
        "non_speech_tokens": tokenizer.non_speech_tokens,
        "cases": cases,
    }


def decode_cases(name: str, model: Whisper, tokenizer: Tokenizer) -> list[dict[str, object]]:
    """openai-whisper's ``decode``; `options` are its own, tokens instead of text as context."""
    plain = {"without_timestamps": True}
    beam = plain | {"beam_size": 5}
    prompt = {"prompt": tokenizer.encode(" nine of clubs please")}
    prefix = {"prefix": tokenizer.encode(" Eight of")}
    options = [
        plain,
        {},
        beam,
        {"beam_size": 5},
        plain | prompt,
        plain | prefix,
        beam | prompt | prefix,
        beam | {"beam_size": 2},
        plain | {"suppress_tokens": "", "suppress_blank": False},
    ]
    runs = [(clip, 1500, plain) for clip in CLIPS]
    runs += [("lamp", 1500, {}), ("digits", 1500, beam), ("digits", 576, {})]
    runs += [("cards", 384, chosen) for chosen in options]
    if name == "random":  # it never ends a text by itself
        runs = [("lamp", 384, chosen | {"sample_len": 20}) for chosen in options]
    whisper.decoding.get_tokenizer = lambda *_, **__: tokenizer
    language = tokenizer.language or "en"
    cases = []
    for clip, n_ctx, chosen in runs:
        mel = log_mel(clip, model.dims.n_mels, n_ctx)
        settings = whisper.DecodingOptions(language=language, fp16=False, **chosen)
        result = dataclasses.asdict(whisper.decode(model, mel, settings))
        fields = ("tokens", "text", "avg_logprob", "no_speech_prob", "compression_ratio")
        found = {field: result[field] for field in fields}
        cases.append({"clip": clip, "n_ctx": n_ctx, "options": chosen, **found})
    return cases


def n_samples(clip: str) -> int:
    return soundfile.info(HERE / f"{clip}.flac").frames


def word_cases(name: str, model: Whisper, tokenizer: Tokenizer) -> list[dict[str, object]]:
    """openai-whisper's ``find_alignment``: times of given words, in frames of 20 ms."""
    texts = {
        "lamp": " would you please turn on the living room lamp",
        "cards": " eight of spades four of clubs seven of hearts",
        "digits": " one zero zero zero one nine oh two one oh zero one eight zero three",
    }
    cases = []
    for clip, n_ctx in [*CLIPS.items(), ("lamp", 1500)]:
        tokens = tokenizer.encode(texts[clip])
        mel = log_mel(clip, model.dims.n_mels, n_ctx)
        words = find_alignment(model, tokenizer, tokens, mel, num_frames=n_samples(clip) // 160)
        cases.append(
            {
                "clip": clip,
                "n_ctx": n_ctx,
                "n_frames": n_samples(clip) // 320,
                "tokens": tokens,
                "words": [
                    [w.word, round(w.start * 50), round(w.end * 50), float(w.probability)]
                    for w in words
                ],
            }
        )
    return cases[:1] if name == "random" else cases


def language_cases(model: Whisper, tokenizer: Tokenizer) -> list[dict[str, object]]:
    cases = []
    for clip, n_ctx in CLIPS.items():
        mel = log_mel(clip, model.dims.n_mels, n_ctx)
        _, probabilities = whisper.decoding.detect_language(model, mel, tokenizer)
        best = max(probabilities, key=probabilities.__getitem__)
        cases.append({"clip": clip, "n_ctx": n_ctx, "language": best, "prob": probabilities[best]})
    return cases


if __name__ == "__main__":
    with torch.no_grad():
        main()
