"""What a built model writes of recorded speech, on the stand-in for Core ML and on the CPU."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import soundfile

from streamd.cli.bench import n_edits, spoken
from streamd.config import Config, load
from streamd.daemon import build
from streamd.engines.coreml.package import BuiltModel
from streamd.engines.golden_clips import clips
from streamd.engines.onnx import OnnxEngine
from streamd.engines.onnx import build as on_onnx
from streamd.events import Final
from streamd.models.model import Model
from streamd.types import FRAME, Window, text_of
from streamd.whisper.engine import Engine
from streamd.whisper.recognizer import Recognizer
from tests.support.checkpoints import network
from tests.support.coreml_runs import arithmetic, core_ml

ROOT = Path(__file__).resolve().parents[2]
_MARGIN_MS = 200


@cache
def sounds() -> list[Window]:
    """The clips of the demo recording, and the golden clips."""
    samples, _ = soundfile.read(ROOT / "tests/speech/recording.flac", dtype="float32")
    marks = json.loads((ROOT / "tests/speech/recording.json").read_text())["clips"]
    places = [(mark["start_ms"] - _MARGIN_MS, mark["end_ms"] + _MARGIN_MS) for mark in marks]
    found = [samples[start * 16 : end * 16] for start, end in places]
    return [_whole(sound) for sound in (*found, *(clip.samples for clip in clips()))]


def _whole(sound: np.ndarray) -> Window:
    n = -(-len(sound) // FRAME)
    return Window(0, n, np.pad(sound, (0, n * FRAME - len(sound))), last=True)


def _recognizer(model: Model, engine: Engine) -> tuple[Config, Recognizer]:
    """Greedy and without fallbacks, since chance is no property of an engine."""
    config = load({"model": model.name, "language": "en"}, {})
    options = build.decoding_options(config, model)
    options = replace(options, beam_size=1, temperatures=(0.0,))
    return config, Recognizer(engine, build.tokenizer(config, model), options)


def cpu_engine(model: Model) -> OnnxEngine:
    """The engine of every machine, in float32."""
    heads = model.alignment_heads
    return on_onnx(network(model.dims, model.weights, alignment_heads=heads, silence=model.silence))


def read(model: Model, engine: Engine) -> list[str]:
    """What is heard in the clips."""
    _, reads = _recognizer(model, engine)
    return [text_of(reads.recognize(window).words) for window in sounds()]


def read_on_core_ml(built: BuiltModel, model: Model, *, modes: str) -> list[str]:
    """The encoder on the stand-in; `modes` as in `coreml_stand_in.ARITHMETIC`."""
    with arithmetic(modes), core_ml(built, cpu_engine(model)) as engine:
        return read(model, engine)


def live(model: Model, engine: Engine, samples: np.ndarray) -> tuple[list[str], list[str]]:
    """The finals of a stream, and what is read in each of its windows."""
    config, reads = _recognizer(model, engine)
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


def words_that_differ(expected: list[str], found: list[str]) -> float:
    """Words inserted, left out or replaced, in percent of those that are expected."""
    pairs = [(spoken(one), spoken(other)) for one, other in zip(expected, found, strict=True)]
    return 100 * sum(n_edits(*pair) for pair in pairs) / sum(len(words) for words, _ in pairs)
