"""Parts of the recorded speech in tests/speech, and what the model in the box writes of them."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import soundfile

from streamd.types import FRAME, SAMPLE_RATE

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT / "tests/speech/recording.flac"
SENTENCE = "He was not an ill-disposed young man."
"""Of the clip `sense_0880`."""
SENTENCES = (
    "And Mr. John Dashwood had then leisure to consider how much there might be prudently in his"
    " power to do for them.",
    SENTENCE,
    "Out of his 1800, he laid aside 1600 each year.",
)
"""Of the first three clips."""
_MARGIN_MS = 300


@cache
def samples(first: str = "sense_0880", last: str = "") -> np.ndarray:
    """The recording from the clip `first` to the clip `last`, or only `first`: whole frames."""
    places = {clip["clip"].split("_1592")[0]: clip for clip in _clips()}
    begin_ms = places[first]["start_ms"] - _MARGIN_MS
    end_ms = places[last or first]["end_ms"] + _MARGIN_MS
    sound, _ = soundfile.read(RECORDING, dtype="float32")
    n = (end_ms - begin_ms) * SAMPLE_RATE // 1000 // FRAME * FRAME
    return sound[begin_ms * SAMPLE_RATE // 1000 :][:n]


def three_sentences() -> np.ndarray:
    """The first three clips, 17 s."""
    return samples("sense_0870", "arctic_a0245")


def frames(sound: np.ndarray) -> np.ndarray:
    """In frames, (n, 320)."""
    return sound.reshape(-1, FRAME)


def wav(path: Path, sound: np.ndarray) -> Path:
    """Write a sound to a file."""
    soundfile.write(path, sound, SAMPLE_RATE)
    return path


def _clips() -> list[dict]:
    return json.loads(RECORDING.with_suffix(".json").read_text())["clips"]
