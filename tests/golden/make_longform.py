"""Makes longform.json with the openai-whisper package: python make_longform.py

As make_golden.py, whose environment it needs, for whole recordings: what ``whisper.transcribe``
makes of them. Chance is fixed: openai-whisper's samples are drawn with numbers that anybody can
draw (`fix_chance`).
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import make_golden  # noqa: E402 - after the path to it
import torch  # noqa: E402
import whisper  # noqa: E402
from chance import fix_chance  # noqa: E402
from whisper.model import ModelDimensions, Whisper  # noqa: E402
from whisper.tokenizer import Tokenizer  # noqa: E402

from tests.golden import longform  # noqa: E402
from tests.golden.random_model import ALIGNMENT_HEADS, DIMS, N_TEXT_TOKENS  # noqa: E402


def main() -> None:
    torch.set_num_threads(1)
    weights = make_golden.WEIGHTS.read_bytes()
    document = {
        "made_with": make_golden.versions(),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "cases": [],
    }
    model, _ = make_golden.load_real()
    for sound, options in longform.CASES["tiny.en"]:
        result = transcribe(model, sound, options)
        document["cases"].append({"model": "tiny.en", "sound": sound, "options": options, **result})
    model, tokenizer = load_random()
    speak(tokenizer)
    for sound, options in longform.CASES["random"]:
        result = transcribe(model, sound, options | longform.unwritten(options))
        document["cases"].append({"model": "random", "sound": sound, "options": options, **result})
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (HERE / "longform.json").write_text(text.replace("},{", "},\n{") + "\n")


def load_random() -> tuple[Whisper, Tokenizer]:
    model = Whisper(ModelDimensions(**DIMS))
    shapes = {name: tuple(values.shape) for name, values in model.state_dict().items()}
    weights = longform.long_weights(shapes)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    make_golden.set_alignment_heads(model, ALIGNMENT_HEADS)
    return model.eval(), Tokenizer(encoding=make_golden.encoding(N_TEXT_TOKENS), num_languages=99)


def speak(tokenizer: Tokenizer) -> None:
    """Make openai-whisper use the random model's vocabulary, and believe in its languages."""

    def get_tokenizer(multilingual: bool, language: str | None = None, **options: Any) -> Tokenizer:
        task = options.get("task") or "transcribe"
        return Tokenizer(tokenizer.encoding, 99, language=language or "en", task=task)

    for module in ("whisper.transcribe", "whisper.decoding"):
        sys.modules[module].get_tokenizer = get_tokenizer
    Whisper.is_multilingual = property(lambda self: True)
    Whisper.num_languages = property(lambda self: 99)


def transcribe(model: Whisper, sound: str, options: dict[str, Any]) -> dict[str, Any]:
    fix_chance(0)
    samples = longform.sound(sound)
    result = whisper.transcribe(model, samples, fp16=False, **options)
    numbers = ("temperature", "avg_logprob", "no_speech_prob", "compression_ratio")
    segments = [
        {
            "seek": segment["seek"],
            "start_ms": round(segment["start"] * 1000),
            "end_ms": round(segment["end"] * 1000),
            "tokens": segment["tokens"],
            **{name: float(f"{segment[name]:.6g}") for name in numbers},
            "words": [
                (w["word"], *_ms(w["start"], w["end"]), float(f"{w['probability']:.4g}"))
                for w in segment.get("words", [])
            ],
        }
        for segment in result["segments"]
        if segment["text"]  # openai-whisper keeps those that it cleared
    ]
    return {"language": result["language"], "segments": segments}


def _ms(*seconds: float) -> list[int]:
    return [round(1000 * at) for at in seconds]


if __name__ == "__main__":
    with torch.no_grad():
        main()
