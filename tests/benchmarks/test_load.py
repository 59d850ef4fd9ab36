"""How many streams an engine serves: measured on a simulated clock, and drawn."""

from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest

from lab.eventlog import Began
from lab.load import Load, measure_load, plot, summary
from lab.random_model import random_model
from lab.recordings import read_recording
from sounds import RECORDING
from streamd.config import load
from streamd.daemon import build
from streamd.engines.prepared import open_in_memory
from streamd.models.store import load_model
from tests.support.event_logs import BEGAN, ENDED, decoded


@pytest.mark.benchmarks
def test_streams_at_once_miss_nothing_while_computing_is_free():
    config, model = load({"threads": "1"}, {}), load_model("tiny.en")
    recognizer = build.recognizer(config, model, open_in_memory(model, threads=1).engine)
    began = Began(name="talk", model="", clock="free", step_ms=500, audio_ms=6_000)
    recording = read_recording(RECORDING)
    new_session = partial(build.new_session, config)
    found = measure_load([recognizer], new_session, recording, n_streams=3, began=began)
    assert (found.streams, found.missed, found.busy) == (3, 0.0, 0.0)
    assert 3 * 6 <= found.steps <= 3 * 12
    assert found.median_ms == 0
    assert found.p95_ms <= 200  # where speech begins, the voice detector may see it late
    assert found.apart_ms <= 40
    assert found.cpu > 0


def test_a_late_or_merged_step_is_missed():
    in_time = [decoded(510, 0, 500), decoded(1_010, 0, 1_000)]
    assert summary([[BEGAN, *in_time, ENDED]], 1).missed == 0
    late = [decoded(510, 0, 500), decoded(1_451, 0, 1_000)]
    assert summary([[BEGAN, *late, ENDED]], 1).missed == 0.5
    merged = [decoded(520, 0, 500), decoded(2_010, 0, 2_000)]
    both = summary([[BEGAN, *in_time, ENDED], [BEGAN, *merged, ENDED]], 1)
    assert (both.steps, both.missed, both.streams) == (6, pytest.approx(2 / 6, abs=1e-4), 2)
    assert both.apart_ms == 5


def test_no_step_is_due_in_a_pause():
    paused = [decoded(510, 0, 500), decoded(900, 0, 860, last=True), decoded(3_010, 0, 3_000)]
    found = summary([[BEGAN, *paused, ENDED]], 1)
    assert (found.steps, found.missed) == (2, 0)
    apart = [decoded(510, 0, 500), decoded(3_010, 2_500, 3_000)]
    assert summary([[BEGAN, *apart, ENDED]], 1).steps == 2


def test_the_plot_is_an_image_of_all_rows():
    row = Load(
        streams=1,
        workers=1,
        steps=1,
        median_ms=60,
        p95_ms=90,
        missed=0,
        apart_ms=1,
        busy=0.1,
        window_ms=50,
        frames=160,
        cpu=0.1,
    )
    image = ElementTree.fromstring(plot([row, row]))
    lines = image.findall("{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]


def test_a_random_model_is_the_same_every_time():
    a, b = random_model("tiny.en"), random_model("tiny.en")
    name = "encoder.blocks.0.attn.query.weight"
    assert np.array_equal(a.weights[name], b.weights[name])
    assert a.language == "en"
