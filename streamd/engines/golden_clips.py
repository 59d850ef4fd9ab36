"""Clips of real speech that ship with streamd, and the text that a model should give for them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import soundfile

from streamd.system.disk import asset
from streamd.types import FRAME, Samples, TextOptions, Window, WindowRecognizer, text_of

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True, slots=True)
class GoldenClip:
    """A recording of real speech, and its correct text."""

    name: str
    samples: Samples
    text: str


def clips() -> list[GoldenClip]:
    """Return the clips that ship with streamd. Raises `StreamdError` if they are missing."""
    folder = asset("golden")
    texts = msgspec.json.decode((folder / "clips.json").read_bytes(), type=dict[str, str])
    sounds = (soundfile.read(folder / f"{name}.flac", dtype="float32")[0] for name in texts)
    return [GoldenClip(*row) for row in zip(texts, sounds, texts.values(), strict=True)]


def read_by_whisper(model: Path) -> dict[str, str]:
    """Return openai-whisper's texts of the clips if this folder has the bundled weights.

    Raises `StreamdError` if the installation lacks the golden files.
    """
    golden = msgspec.json.decode((asset("golden") / "read.json").read_bytes())
    weights = model / _WEIGHTS
    if not weights.is_file():
        return {}
    same = hashlib.sha256(weights.read_bytes()).hexdigest() == golden["weights_sha256"]
    return dict(golden["texts"]) if same else {}


def transcribed(recognizer: WindowRecognizer, clip: GoldenClip) -> str:
    """Return the text of a clip as that of a stream's last window, in English."""
    n = len(clip.samples) // FRAME
    samples = clip.samples[: n * FRAME]
    window = Window(0, n, samples, last=True, options=TextOptions(language="en"), asks=())
    return text_of(recognizer.recognize(window).words)
