"""Parts of the recorded speech in tests/speech, and what the model in the box writes of them."""

import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

import numpy as np
import soundfile

from streamd.types import FRAME, SAMPLE_RATE

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "tests/speech/recording.flac"
SENTENCE = "Out of his 1800, he laid aside 1600 each year."
"""Of the clip `arctic_a0245`."""
SENTENCES = (
    SENTENCE,
    "And so my fellow Americans ask not what your country can do for you.",
    "Ask what you can do for your country.",
)
"""Of that clip and the next one, which is joined to it by a pause. Whether the last two are one
sentence is chance."""
_MARGIN_MS, _PER_MS = 300, SAMPLE_RATE // 1000
WORDS_MS = {
    "leisure": (2_950, 3_410),
    "consider": (3_590, 4_140),
    "prudently": (5_640, 6_160),
    "power": (6_450, 6_740),
    "disposed": (9_980, 10_610),
    "fellow": (20_010, 20_400),
    "americans": (20_400, 20_930),
    "country": (24_630, 25_190),
}
"""Where single words are in the recording, by forced alignment."""


@cache
def samples(first: str = "arctic_a0245", last: str = "") -> np.ndarray:
    """The recording from the clip `first` to the clip `last`, or only `first`: whole frames."""
    places = {clip["clip"].split("_1592")[0]: clip for clip in _clips()}
    begin_ms = places[first]["start_ms"] - _MARGIN_MS
    end_ms = places[last or first]["end_ms"] + _MARGIN_MS
    sound, _ = soundfile.read(RECORDING, dtype="float32")
    n = (end_ms - begin_ms) * SAMPLE_RATE // 1000 // FRAME * FRAME
    return sound[begin_ms * SAMPLE_RATE // 1000 :][:n]


def three_sentences() -> np.ndarray:
    """The `SENTENCES`, 17 s."""
    return samples("arctic_a0245", "jfk")


def single_words(pause_ms: int, *said: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Words of `WORDS_MS` with silence around each: the sound, and the place of each word in ms.

    Each has 30 ms on either side, of which 10 fade.
    """
    sound, _ = soundfile.read(RECORDING, dtype="float32")
    margin, fade = 30 * _PER_MS, np.linspace(0, 1, 10 * _PER_MS, dtype=np.float32)
    pause = np.zeros(pause_ms * _PER_MS, np.float32)
    parts, places, at = [pause], [], len(pause)
    for word in said:
        start, end = (ms * _PER_MS for ms in WORDS_MS[word])
        part = sound[start - margin : end + margin].copy()
        part[: len(fade)] *= fade
        part[-len(fade) :] *= fade[::-1]
        places.append(((at + margin) // _PER_MS, (at + len(part) - margin) // _PER_MS))
        parts += [part, pause]
        at += len(part) + len(pause)
    joined = np.concatenate(parts)
    return joined[: len(joined) // FRAME * FRAME], places


def whole() -> np.ndarray:
    """All of the recording, 64 s."""
    sound, _ = soundfile.read(RECORDING, dtype="float32")
    return np.asarray(sound[: len(sound) // FRAME * FRAME])


def words(text: str) -> list[str]:
    """What was said, without marks and capitals."""
    return re.findall(r"\w+", text.lower())


def n_misread(said: Sequence[str], heard: Sequence[str]) -> int:
    """How many words were heard as others; that none is missing, and none was said twice.

    Which words the model in the box misreads depends on where a window begins, and on how the
    processor rounds: without VNNI, "Out of" is "How to", and "my" may be "am I".
    """
    n, same = 0, SequenceMatcher(None, said, heard, autojunk=False)
    for kind, i, i_end, j, j_end in same.get_opcodes():
        if kind != "equal":
            assert kind == "replace", (said[i:i_end], heard[j:j_end])
            assert abs((i_end - i) - (j_end - j)) <= 1, (said[i:i_end], heard[j:j_end])
            n += i_end - i
    return n


def frames(sound: np.ndarray) -> np.ndarray:
    """In frames, (n, 320)."""
    return sound.reshape(-1, FRAME)


def wav(path: Path, sound: np.ndarray) -> Path:
    """Write a sound to a file."""
    soundfile.write(path, sound, SAMPLE_RATE)
    return path


def _clips() -> list[dict]:
    return json.loads(RECORDING.with_suffix(".json").read_text())["clips"]
