"""The multilingual base with OpenAI's weights: what openai-whisper makes of the same recordings.

Through the command line, from any file to openai-whisper's JSON.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from streamd.cli import main
from tests.real.cases import GOLDEN, LANGUAGES, ROOT, compact

MODELS = Path(os.environ.get("STREAMD_TEST_MODELS", ""))
BASE = MODELS / "base"
pytestmark = [
    pytest.mark.skipif(not BASE.is_dir() or Path() == MODELS, reason="needs base: make test-real"),
    pytest.mark.timeout(600),
]
EXPECTED = json.loads(GOLDEN.read_text())["cases"]


def transcribed(sound: Path, folder: Path, options: list[str]) -> dict:
    command = ["transcribe", str(sound), "--model", str(BASE), "--language", "auto", *options]
    command += ["--vad", "off", "--precision", "float32", "--threads", "1", "--quiet"]
    command += ["--output-dir", str(folder), "--output-format", "json"]
    assert main(command) == 0
    return compact(json.loads((folder / f"{sound.stem}.json").read_text()))


def told(options: dict) -> list[str]:
    """Options of ``whisper.transcribe`` as the command line has them."""
    # one temperature means for openai-whisper that there is nothing to fall back to
    one = {"temperature": "--set=search.temperatures="}
    return [
        f"{one.get(name) or f'--{name}='}".replace("_", "-") + str(value)
        for name, value in options.items()
    ]


def name_of(case: dict) -> str:
    return "-".join([Path(case["sound"]).stem, *case["options"]])


@pytest.mark.parametrize("case", [pytest.param(case, id=name_of(case)) for case in EXPECTED])
def test_as_openai_whisper(case, tmp_path):
    sound = ROOT / case["sound"]
    if not sound.exists():
        pytest.skip(f"needs {case['sound']}")
    found = transcribed(sound, tmp_path, told(case["options"]))
    assert found["language"] == case["language"]
    assert found["text"] == case["text"]
    probs = {}
    for name, result in (("found", found), ("expected", case)):
        words = [word for segment in result["segments"] for word in segment["words"]]
        probs[name] = np.array([word.pop() for word in words])
    assert found["segments"] == case["segments"]
    np.testing.assert_allclose(probs["found"], probs["expected"], atol=2e-3)


def test_the_languages_were_recognised_by_openai_whisper_too():
    heard = {case["sound"]: case["language"] for case in EXPECTED}
    assert [heard[sound] for sound in LANGUAGES.values()] == list(LANGUAGES)
