"""Makes scripted.json with the openai-whisper package: python make_scripted.py

As make_longform.py, whose environment it needs: what ``whisper.transcribe`` makes of windows whose
texts and word times come from scripts.py instead of from a model.
"""

import json
import sys
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import make_golden  # noqa: E402 - after the path to it
import make_longform  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import whisper  # noqa: E402
from whisper.decoding import DecodingOptions, DecodingResult  # noqa: E402
from whisper.model import ModelDimensions  # noqa: E402
from whisper.timing import WordTiming  # noqa: E402
from whisper.tokenizer import Tokenizer  # noqa: E402

from tests.golden.random_model import DIMS, N_TEXT_TOKENS  # noqa: E402
from tests.golden.scripts import CASES, PUNCTUATION, Script  # noqa: E402


class Scripted:
    """What ``transcribe`` needs of a model."""

    device = torch.device("cpu")
    dims = ModelDimensions(**{**DIMS, "n_mels": 80})
    is_multilingual = True
    num_languages = 99

    def __init__(self, script: Script) -> None:
        self.script = script
        self.told: list[int] = []

    def decode(self, mel: torch.Tensor, options: DecodingOptions) -> DecodingResult:
        self.told.append(zlib.crc32(repr(list(options.prompt)[-47:]).encode()))
        n_columns = int((mel != 0).any(dim=0).sum())
        written = self.script.write(n_columns)
        return DecodingResult(
            audio_features=mel,
            language="en",
            tokens=list(written.tokens),
            text="",
            avg_logprob=written.avg_logprob,
            no_speech_prob=written.no_speech_prob,
            temperature=options.temperature,
            compression_ratio=written.compression_ratio,
        )


def find_alignment(
    model: Scripted,
    tokenizer: Tokenizer,
    text_tokens: list[int],
    mel: torch.Tensor,
    num_frames: int,
) -> list[WordTiming]:
    if not text_tokens or num_frames < 2:  # openai-whisper would fail on less than a frame
        return []
    return [
        WordTiming(
            PUNCTUATION.get(token) or tokenizer.decode([token]), [token], start / 50, end / 50, prob
        )
        for token, start, end, prob in model.script.align(text_tokens, num_frames // 2)
    ]


def main() -> None:
    encoding = make_golden.encoding(N_TEXT_TOKENS)
    make_longform.speak(Tokenizer(encoding=encoding, num_languages=99))
    sys.modules["whisper.timing"].find_alignment = find_alignment
    cases = []
    for seed, seconds, options in CASES:
        model = Scripted(Script(seed))
        samples = np.zeros(int(seconds * 16_000), np.float32)
        result = whisper.transcribe(model, samples, fp16=False, language="en", **options)
        cases.append({"seed": seed, "told": model.told, "segments": segments(result)})
    document = {"made_with": make_golden.versions(), "cases": cases}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (HERE / "scripted.json").write_text(text.replace("]},{", "]},\n{") + "\n")


def segments(result: dict[str, Any]) -> list[list[Any]]:
    """Those that were not cleared: column, ms, ms, number of tokens, words with times."""
    return [
        [
            segment["seek"],
            round(segment["start"] * 1000),
            round(segment["end"] * 1000),
            len(segment["tokens"]),
            segment["temperature"],
            [
                [word["word"], round(word["start"] * 1000), round(word["end"] * 1000)]
                for word in segment.get("words", [])
            ],
        ]
        for segment in result["segments"]
        if segment["text"]
    ]


if __name__ == "__main__":
    main()
