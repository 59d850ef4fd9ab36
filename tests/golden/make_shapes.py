"""Makes shapes.json with the openai-whisper package: python make_shapes.py

As make_golden.py, whose environment it needs, for the random models of true shapes. Chance is
fixed: openai-whisper's samples are drawn with numbers that anybody can draw (`fix_chance`).
"""

import copy
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import make_golden  # noqa: E402 - after the path to it; it slices the encoder's positions
import soundfile  # noqa: E402
import torch  # noqa: E402
import whisper  # noqa: E402
from chance import fix_chance  # noqa: E402
from whisper.model import ModelDimensions, Whisper  # noqa: E402
from whisper.timing import find_alignment  # noqa: E402
from whisper.tokenizer import Tokenizer, get_tokenizer  # noqa: E402

from tests.golden.shapes import SHAPES, shaped_weights  # noqa: E402

PLAIN = {"without_timestamps": True}
BEAM = PLAIN | {"beam_size": 5}
N_SAMPLED = 16
TEXT = " would you please turn on the living room lamp, Grüße!"


def main() -> None:
    torch.set_num_threads(1)
    document = {
        "made_with": make_golden.versions(),
        **{name: cases(name) for name in sys.argv[1:] or SHAPES},
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (HERE / "shapes.json").write_text(text.replace("},{", "},\n{") + "\n")


def cases(name: str) -> dict[str, Any]:
    model, tokenizer = load(name)
    found = {
        "decode": [
            # openai-whisper detects languages at full context only
            decode(model, "lamp", 384 if chosen.get("language", "") is not None else 1500, chosen)
            for chosen in options(name, tokenizer)
        ],
        "sample": [
            decode(model, "cards", 384, {"temperature": t, "best_of": n, **more}, seed=seed)
            for seed, t, n, more in [(0, 0.2, 3, PLAIN), (1, 0.6, 5, {}), (3, 1.0, 2, PLAIN)]
        ],
        # tiny's heads hear half of the longer clip as well with one token as with any other:
        # normalised, that is the noise of rounding, and so are the times
        "words": [
            word_times(model, tokenizer, clip)
            for clip in ("cards", "digits")[: 2 - (name == "tiny")]
        ],
    }
    greedy, beam = found["decode"][0]["tokens"], found["decode"][2]["tokens"]
    suppressed = PLAIN | {"suppress_tokens": [-1, greedy[0], greedy[2]]}
    found["decode"] += [
        decode(model, "cards", 384, suppressed),
        decode(model, "cards", 384, {"suppress_tokens": [*beam[:3]], "beam_size": 5}),
        decode(model, "digits", 1500, PLAIN),
        decode(model, "digits", 1500, {"beam_size": 5}),
    ]
    found["fallback"] = [
        fallback(model, "digits", {"best_of": 3}),
        fallback(model, "digits", {"best_of": 2, "beam_size": 5}),
    ]
    if model.is_multilingual:
        found["language"] = [languages(model, tokenizer, clip) for clip in make_golden.CLIPS]
    return found


def options(name: str, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """openai-whisper's own, tokens instead of text as context; the first three are always there."""
    prompt = {"prompt": tokenizer.encode(" nine of clubs please")}
    prefix = {"prefix": tokenizer.encode(" would you")}
    chosen = [PLAIN, {}, BEAM, {"beam_size": 5}, prompt, PLAIN | prefix | prompt]
    if name in ("tiny.en", "tiny"):
        chosen += [
            {"suppress_tokens": [0, 831], "suppress_blank": False},
            PLAIN | {"prompt": tokenizer.encode(" seven of hearts" * 80)},
            prefix | {"beam_size": 5},
        ]
    if name in ("tiny", "v3"):
        chosen += [PLAIN | {"task": "translate"}, {"task": "translate", "beam_size": 5}]
        chosen += [PLAIN | {"language": None}, {"language": None, "task": "translate"}]
    if name == "v3":
        chosen += [{"language": "yue"}, PLAIN | {"language": "yue", "task": "translate"}]
    return chosen


def load(name: str) -> tuple[Whisper, Tokenizer]:
    model = Whisper(ModelDimensions(*SHAPES[name].dims))
    shapes = {key: tuple(values.shape) for key, values in model.state_dict().items()}
    weights = shaped_weights(SHAPES[name], shapes)
    model.load_state_dict({key: torch.from_numpy(values) for key, values in weights.items()})
    if name in whisper._ALIGNMENT_HEADS:
        model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
    language = "de" if model.is_multilingual else None
    tokenizer = get_tokenizer(
        model.is_multilingual, num_languages=model.num_languages, language=language
    )
    return model.eval(), tokenizer


def decode(
    model: Whisper, clip: str, n_ctx: int, chosen: dict[str, Any], seed: int | None = None
) -> dict[str, Any]:
    """One call of openai-whisper's ``decode``."""
    if seed is not None:
        fix_chance(seed)
    language = {"language": "de" if model.is_multilingual else "en"}
    settings = language | {"fp16": False, "sample_len": N_SAMPLED} | copy.deepcopy(chosen)
    mel = make_golden.log_mel(clip, model.dims.n_mels, n_ctx)
    result = dataclasses.asdict(whisper.decode(model, mel, whisper.DecodingOptions(**settings)))
    fields = ("tokens", "language", "avg_logprob", "no_speech_prob", "compression_ratio")
    found = {field: result[field] for field in fields}
    return {"clip": clip, "n_ctx": n_ctx, "options": chosen, "seed": seed} | found


def fallback(model: Whisper, clip: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """The attempt that openai-whisper's ``transcribe`` takes, of a window whose first one fails.

    The limit lies just below what the first attempt reaches.
    """
    chosen = PLAIN | chosen
    first = decode(model, clip, 1500, {k: v for k, v in chosen.items() if k != "best_of"})
    limit = round(first["compression_ratio"] - 0.02, 2)
    fix_chance(seed := 5)
    sound, _ = soundfile.read(HERE / f"{clip}.flac", dtype="float32")
    attempts = []

    def decode_and_note(mel: torch.Tensor, settings: whisper.DecodingOptions) -> Any:
        attempts.append(whisper.decode(model, mel, settings))
        return attempts[-1]

    model.decode = decode_and_note
    whisper.transcribe(
        model,
        whisper.pad_or_trim(sound),  # zeros behind the sound, not behind its spectrogram
        temperature=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        compression_ratio_threshold=limit,
        logprob_threshold=None,
        language=first["language"],
        sample_len=N_SAMPLED,
        fp16=False,
        **chosen,
    )
    del model.decode
    others = [i for i, attempt in enumerate(attempts) if i and attempt.temperature == 0]
    taken = attempts[others[0] - 1 if others else -1]  # the last one of the first window
    fields = ("tokens", "temperature", "avg_logprob", "compression_ratio")
    found = {field: getattr(taken, field) for field in fields}
    return {"clip": clip, "options": chosen, "seed": seed, "limit": limit} | found


def word_times(model: Whisper, tokenizer: Tokenizer, clip: str) -> dict[str, Any]:
    """As in make_golden.py, with the alignment heads that belong to the model's name."""
    tokens = tokenizer.encode(TEXT)
    n_ctx = make_golden.CLIPS[clip]
    mel = make_golden.log_mel(clip, model.dims.n_mels, n_ctx)
    n_frames = make_golden.n_samples(clip) // 320
    words = find_alignment(model, tokenizer, tokens, mel, num_frames=2 * n_frames)
    times = [[w.word, round(w.start * 50), round(w.end * 50), float(w.probability)] for w in words]
    return {"clip": clip, "n_ctx": n_ctx, "n_frames": n_frames, "tokens": tokens, "words": times}


def languages(model: Whisper, tokenizer: Tokenizer, clip: str) -> dict[str, Any]:
    """The probability of each language."""
    n_ctx = make_golden.CLIPS[clip]
    mel = make_golden.log_mel(clip, model.dims.n_mels, n_ctx)
    _, probs = whisper.decoding.detect_language(model, mel, tokenizer)
    rounded = {code: float(f"{probs[code]:.6g}") for code in sorted(probs)}
    return {"clip": clip, "n_ctx": n_ctx, "language": max(probs, key=probs.get), "probs": rounded}


if __name__ == "__main__":
    with torch.no_grad():
        main()
