"""What is transcribed with base, and how it is compared.

Sounds are named from the root of the repository on; those under ``../shared`` may lie beside it.
"""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("base.json")
_EVAL = "../shared/data/eval/audio"
LANGUAGES = {
    "es": f"{_EVAL}/es__leopard_test_es.flac",
    "de": f"{_EVAL}/de__leopard_test_de.flac",
    "fr": f"{_EVAL}/fr__leopard_test_fr.flac",
    "it": f"{_EVAL}/it__leopard_test_it.flac",
    "pt": f"{_EVAL}/pt__leopard_test_pt.flac",
    "ja": f"{_EVAL}/ja__leopard_test_ja.flac",
    "ko": f"{_EVAL}/ko__leopard_test_ko.flac",
    "zh": f"{_EVAL}/zh__zh-CN_training_audio1.flac",
}
"""Their two windows of Chinese make a prompt of the first one's text, too."""


def compact(result: dict[str, Any]) -> dict[str, Any]:
    """What is compared of openai-whisper's JSON; words: text, start and end in ms, probability."""
    segments = [
        {
            "start_ms": _ms(segment["start"]),
            "end_ms": _ms(segment["end"]),
            "temperature": segment["temperature"],
            "tokens": segment["tokens"],
            "words": [
                [
                    word["word"],
                    _ms(word["start"]),
                    _ms(word["end"]),
                    round(float(word["probability"]), 3),
                ]
                for word in segment["words"]
            ],
        }
        for segment in result["segments"]
        if segment["text"]  # openai-whisper keeps those that it cleared
    ]
    return {"language": result["language"], "text": result["text"], "segments": segments}


def _ms(seconds: float) -> int:
    return round(float(seconds) * 1000)
