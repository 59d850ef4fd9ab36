"""The recordings, the model and the cases of the long-form golden files; numpy only.

`random` is random_model.py's with its output tilted, so that it writes short texts with timestamps,
ends them, and doubts some of them: differently for each window.
"""

from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tests.golden.random_model import DIMS, N_TEXT_TOKENS, random_weights

HERE = Path(__file__).parent
RATE_HZ = 16_000


def sound(name: str) -> np.ndarray:
    """`long`: 79 s, the three clips with pauses of many lengths; `middle`: its first 39 s."""
    if name == "short":
        return _read("lamp")
    parts: list[np.ndarray] = []
    for pause_ms, clip in (
        (700, "cards"),
        (300, "lamp"),
        (4_100, "digits"),
        (1_230, "lamp"),
        (250, "cards"),
        (9_000, "lamp"),
        (90, "digits"),
        (2_500, "cards"),
        (12_000, "lamp"),
        (510, "cards"),
    ):
        parts += [_hiss(pause_ms * RATE_HZ // 1000, len(parts)), _read(clip)]
    samples = np.concatenate([*parts, _hiss(53_333, len(parts))]).astype(np.float32)
    return samples[: 39 * RATE_HZ] if name == "middle" else samples


def _read(clip: str) -> np.ndarray:
    samples, rate = soundfile.read(HERE / f"{clip}.flac", dtype="float32")
    assert rate == RATE_HZ
    return samples


def _hiss(n: int, seed: int) -> np.ndarray:
    """Quiet noise, from raw bits, which numpy promises for good."""
    raw = np.random.PCG64(seed).random_raw(n) >> np.uint64(40)
    return (raw.astype(np.float32) / np.float32(2**23) - np.float32(1)) * np.float32(1e-3)


def long_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The weights of `random`; see the module."""
    weights = random_weights(shapes)
    for key, values in weights.items():
        if key.endswith("cross_attn.out.weight"):
            values *= np.float32(1.5)  # hear more
    # The first feature of the last layer norm is constant, so that each token has a bias there.
    weights["decoder.ln.weight"] *= np.float32(4)
    weights["decoder.ln.weight"][0] = 0
    weights["decoder.ln.bias"][0] = 8
    weights["decoder.token_embedding.weight"][:, 0] = _biases() / np.float32(8)
    return weights


def _biases() -> np.ndarray:
    biases = np.zeros(DIMS["n_vocab"], np.float32)
    begin = N_TEXT_TOKENS + 107
    biases[:N_TEXT_TOKENS] = -1
    biases[N_TEXT_TOKENS] = 3.0  # end of text
    biases[begin - 2] = 0  # nospeech
    biases[begin:] = -3.0
    return biases


def unwritten(options: dict[str, Any]) -> dict[str, str]:
    """What streamd never writes: languages, and where they are not wanted timestamps.

    Then the token that forbids them is not written either. Only the random model would write them.
    """
    never = [*range(N_TEXT_TOKENS + 2, N_TEXT_TOKENS + 101)]
    if "without_timestamps" in options:
        never += range(DIMS["n_vocab"] - 1502, DIMS["n_vocab"])
    return {"suppress_tokens": ",".join(map(str, [-1, *never]))}


_WORDS = {"word_timestamps": True}
_PLAIN = {"without_timestamps": True}
_COLD = {"temperature": 0.0}
_REAL: list[tuple[str, dict[str, Any]]] = [
    ("middle", _WORDS),
    ("short", {}),
    ("short", _PLAIN | _WORDS | {"beam_size": 5} | _COLD),
]
_RANDOM: list[tuple[str, dict[str, Any]]] = [
    ("long", {}),
    ("long", {"language": "de", "condition_on_previous_text": False}),
    ("long", {"language": "de", "initial_prompt": " the quick brown fox jumps "}),
    ("long", {"language": "fr", "task": "translate"}),
    ("long", {"task": "translate"} | _WORDS),
    ("long", _WORDS | {"language": "de"}),
    ("long", _WORDS | {"language": "ja"}),
    ("long", {"language": "de", "beam_size": 5}),
    ("long", {"language": "de", "logprob_threshold": -0.45}),
    ("long", {"language": "de", "logprob_threshold": -0.45, "best_of": 3, "beam_size": 2} | _WORDS),
    ("long", {"language": "de", "compression_ratio_threshold": 0.65, "temperature": [0.0, 0.4]}),
    ("long", {"language": "de", "no_speech_threshold": 1e-6, "logprob_threshold": -0.5}),
    ("long", {"language": "de", "without_timestamps": True}),
    ("short", {"language": "de"} | _WORDS),
]
CASES = {"tiny.en": _REAL, "random": _RANDOM}
"""(sound, options of ``whisper.transcribe``) of each model."""
