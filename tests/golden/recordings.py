"""What openai-whisper made of recordings, and how the program's output is compared.

Sounds are named from the root of the repository on; those under ``../shared`` may lie beside it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamd.cli import main
from streamd.config import SETTINGS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = HERE / "recordings.json"
IN_THE_BOX = "box"
"""tiny.en with the weights that ship, int8 rows with scales, computed with in float32."""
REAL = ("tiny.en", "base")
"""OpenAI's own weights, float16."""


def golden(model: str) -> list[dict[str, Any]]:
    """What openai-whisper made of a model's cases."""
    found = json.loads(GOLDEN.read_text())["cases"]
    return [case for case in found if case["model"] == model]


def batches(model: str) -> dict[str, list[dict[str, Any]]]:
    """The same, by a name: in each what one run of the program can do."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in golden(model):
        options = [f"{name}={value}" for name, value in case["options"].items()]
        sounds = [Path(case["sound"]).stem] if options else []
        found.setdefault(" ".join([model, *sounds, *options]), []).append(case)
    return found


def transcribed(folder: Path, cases: Sequence[dict[str, Any]], *, model: Path | str) -> list[Any]:
    """What ``streamd transcribe`` writes as openai-whisper's JSON, into `folder`.

    The cases have the same options; their languages are English, or else heard.
    """
    options = [_flag(name, value) for name, value in cases[0]["options"].items()]
    options += ["--language=en" if cases[0]["language"] == "en" else "--language=auto"]
    sounds = [ROOT / case["sound"] for case in cases]
    command = ["transcribe", *sounds, "--model", model, "--vad", "off", "--quiet"]
    command += ["--precision", "float32", "--threads", "1", *options]
    command += ["--output-dir", folder, "--output-format", "json"]
    assert main([*map(str, command)]) == 0
    return [json.loads((folder / f"{sound.stem}.json").read_text()) for sound in sounds]


def _flag(name: str, value: object) -> str:
    """An option of openai-whisper as streamd has it."""
    setting = f"search.{name}"
    flag = f"--set={setting}" if setting in SETTINGS else f"--{name.replace('_', '-')}"
    return f"{flag}={value}"


def compact(result: dict[str, Any]) -> dict[str, Any]:
    """What is compared of openai-whisper's result; words are text, start, end, probability."""
    segments = [
        {
            "seek": segment["seek"],
            "start": round(segment["start"], 3),
            "end": round(segment["end"], 3),
            "temperature": segment["temperature"],
            "tokens": segment["tokens"],
            "words": [
                [w["word"], *(round(float(w[at]), 3) for at in ("start", "end", "probability"))]
                for w in segment["words"]
            ],
        }
        for segment in result["segments"]
        if segment["text"]  # openai-whisper keeps those that it cleared
    ]
    return {"language": result["language"], "segments": segments}


def check(found: dict[str, Any], case: dict[str, Any]) -> None:
    """Compare a result with openai-whisper's: the same but for the last digit of probabilities."""
    found = compact(found)
    expected = {name: case[name] for name in ("language", "segments")}
    probs, expected_probs = _without_probs(found), _without_probs(expected)
    assert found == expected, case["sound"]
    assert len(probs) == len(expected_probs)
    assert np.abs(np.array(probs) - expected_probs).max(initial=0) < 0.002, case["sound"]


def _without_probs(result: dict[str, Any]) -> list[float]:
    """Take the probabilities of the words out."""
    words = [word for segment in result["segments"] for word in segment["words"]]
    return [word.pop() for word in words]
