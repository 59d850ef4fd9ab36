"""What a built model writes of recorded speech, on the stand-in for Core ML and on the CPU."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import soundfile

from streamd.cli.bench import n_edits, spoken
from streamd.config import load
from streamd.daemon import build
from streamd.engines.coreml.package import BuiltModel, Form
from streamd.engines.golden_clips import clips
from streamd.engines.onnx import OnnxEngine
from streamd.engines.onnx import build as on_onnx
from streamd.events import Final
from streamd.models.model import Model
from streamd.types import FRAME, Window, text_of
from streamd.whisper.engine import Engine
from streamd.whisper.recognizer import Recognizer
from tests.support.coreml_runs import arithmetic, core_ml

ROOT = Path(__file__).resolve().parents[2]
_EVAL = ROOT / "../shared/data/eval"
_MARGIN_MS = 200
_LONGEST_S = 16.0
"""A longer one would be several windows of a stream."""

Said = tuple[Window, str]
"""A sound and what is said in it."""


def said() -> list[Said]:
    """The clips of the demo recording, and the golden clips."""
    samples, _ = soundfile.read(ROOT / "tests/speech/recording.flac", dtype="float32")
    marks = json.loads((ROOT / "tests/speech/recording.json").read_text())["clips"]
    places = [(mark["start_ms"] - _MARGIN_MS, mark["end_ms"] + _MARGIN_MS) for mark in marks]
    sounds = [samples[start * 16 : end * 16] for start, end in places]
    found = [_whole(sound, mark["text"]) for sound, mark in zip(sounds, marks, strict=True)]
    return [*found, *(_whole(clip.samples, clip.text) for clip in clips())]


def evaluated() -> list[Said]:
    """The English clips beside the repository of at most 16 s, by length, if there are any."""
    manifest = _EVAL / "manifest.jsonl"
    if not manifest.exists():
        return []
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    english = [row for row in rows if row["lang"] == "en" and row["duration_s"] <= _LONGEST_S]
    english.sort(key=lambda row: row["duration_s"])
    sounds = (soundfile.read(_EVAL / row["path"], dtype="float32")[0] for row in english)
    return [_whole(sound, row["text"]) for sound, row in zip(sounds, english, strict=True)]


def _whole(sound: np.ndarray, text: str) -> Said:
    n = -(-len(sound) // FRAME)
    return Window(0, n, np.pad(sound, (0, n * FRAME - len(sound))), last=True), text


def _read(model: Model, engine: Engine, name: str, sounds: list[Said]) -> list[str]:
    """Greedy and without fallbacks, since chance is no property of an engine."""
    config = load({"model": name, "language": "en"}, {})
    options = build.decoding_options(config, model)
    options = replace(options, beam_size=1, temperatures=(0.0,))
    reads = Recognizer(engine, build.tokenizer(config, model), options)
    return [text_of(reads.recognize(window).words) for window, _ in sounds]


def read_on_cpu(model: Model, name: str, sounds: list[Said]) -> list[str]:
    """In float32."""
    return _read(model, cpu_engine(model), name, sounds)


def cpu_engine(model: Model) -> OnnxEngine:
    """The engine of every machine, in float32."""
    heads = model.alignment_heads
    return on_onnx(model.dims, model.weights, alignment_heads=heads, silence=model.silence)


def read_on_core_ml(
    built: BuiltModel, model: Model, name: str, sounds: list[Said], *, form: Form, modes: str
) -> list[str]:
    """By the code that ships, on the stand-in; `modes` as in `coreml_stand_in.ARITHMETIC`."""
    with (
        TemporaryDirectory() as folder,
        arithmetic(modes),
        core_ml(built, Path(folder), form) as engine,
    ):
        return _read(model, engine, name, sounds)


def live(
    model: Model, engine: Engine, name: str, samples: np.ndarray
) -> tuple[list[str], list[str]]:
    """The finals of a stream, and what is read in each of its windows, greedily as above."""
    config = load({"model": name, "language": "en"}, {})
    options = build.decoding_options(config, model)
    options = replace(options, beam_size=1, temperatures=(0.0,))
    reads = Recognizer(engine, build.tokenizer(config, model), options)
    session, step, events = build.new_session(config), config.session.step, []
    texts = []
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    for first in range(0, len(frames) + step, step):
        # After the last frames comes the end of the stream.
        found = (
            session.feed(frames[first : first + step]) if first < len(frames) else session.flush()
        )
        events += found
        while (window := session.next_window()) is not None:
            texts.append(text_of((found := reads.recognize(window)).words))
            events += session.accept(window, found)
    return [event.text for event in events if isinstance(event, Final)], texts


def error_rate(sounds: list[Said], texts: list[str]) -> float:
    """Wrong words in percent of those that were said."""
    return words_that_differ([said for _, said in sounds], texts)


def words_that_differ(expected: list[str], found: list[str]) -> float:
    """Words inserted, left out or replaced, in percent of those that are expected."""
    pairs = [(spoken(one), spoken(other)) for one, other in zip(expected, found, strict=True)]
    return 100 * sum(n_edits(*pair) for pair in pairs) / sum(len(words) for words, _ in pairs)
