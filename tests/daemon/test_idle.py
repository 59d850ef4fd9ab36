"""Where nobody speaks nothing is computed and nobody is woken."""

from functools import partial

import numpy as np
import pytest

from lab.eventlog import Began, Decoded
from lab.replay import replay
from streamd.config import load
from streamd.daemon import build
from streamd.daemon.opening import open_model
from streamd.streams.hub import Hub
from streamd.streams.metrics import Metrics
from streamd.streams.stream import Stream, StreamContext
from streamd.types import FRAME, Frames
from tests.support import recorded

CONFIG = load({"model": "tiny.en", "threads": "1"}, {})


def silence(seconds: int, level: float) -> Frames:
    noise = np.random.default_rng(7).standard_normal((seconds * 50, FRAME))
    return (noise * level).astype(np.float32)


@pytest.mark.parametrize("level", [0.0, 10 ** (-70 / 20), 10 ** (-50 / 20), 10 ** (-20 / 20)])
def test_no_encoder_runs_in_silence_and_noise(level):
    recognizer = build.recognizer(CONFIG, *open_model(CONFIG))
    sound = silence(60, level)
    began = Began(name="", model="tiny.en", clock="free", step_ms=500, audio_ms=60_000)
    (log,) = replay([recognizer], partial(build.new_session, CONFIG), [sound], began=began)
    assert recognizer.counters.windows == 0
    assert not [entry for entry in log if isinstance(entry, Decoded)]


async def test_nobody_is_woken_before_a_window_is_due():
    woken = []
    context = StreamContext(
        lambda _: build.new_session(CONFIG),
        Metrics(version="", model=""),
        max_backlog=500,
        wake=lambda: woken.append(1),
        failed=pytest.fail,
        choose=pytest.fail,
        learn=pytest.fail,
    )
    stream = Stream(context, Hub("s"))
    stream.begin()
    for frame in silence(10, 1e-3):
        stream.feed(frame[None])
    assert (woken, stream.due_since) == ([], None)
    for frame in recorded.frames(recorded.samples())[:150]:
        stream.feed(frame[None])
    assert woken
    assert stream.next_window() is not None
