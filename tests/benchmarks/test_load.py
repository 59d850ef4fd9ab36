"""How many streams an engine serves: measured on a simulated clock, and drawn."""

from xml.etree import ElementTree

import numpy as np
import pytest

from lab.load import Load, measure_load, plot, summary
from lab.random_model import random_model
from streamd.bench.step import Costs, ScriptedRecognizer
from streamd.config import load
from streamd.daemon import build
from streamd.engine.store import load_model
from tests.support.event_logs import BEGAN, ENDED, decoded, partial


def test_streams_at_once_miss_nothing_while_computing_is_free():
    config, model = load({"threads": "1"}, {}), load_model("tiny.en")
    options, tokenizer = build.decoding_options(config, model), build.tokenizer(config, model)
    recognizer = ScriptedRecognizer(build.engine(config, model), tokenizer, options)
    load_ = measure_load([recognizer], n_streams=3, seconds=6, clock="free")
    assert (load_.streams, load_.missed, load_.busy) == (3, 0.0, 0.0)
    assert load_.steps >= 3 * 9
    assert load_.p95_ms <= 40
    assert load_.apart_ms <= 20
    assert load_.passes > 1
    assert load_.encode_ms > 0 < load_.decode_ms


def test_a_late_or_merged_step_is_missed():
    work = decoded(0, 0, 500, ms=1_000)
    in_time = [partial(520, "a", end_ms=500), partial(1_040, "a b", end_ms=1_000)]
    assert summary([[BEGAN, work, *in_time, ENDED]], 500, [Costs()]).missed == 0
    late = [partial(520, "a", end_ms=500), partial(1_501, "a b", end_ms=1_000)]
    assert summary([[BEGAN, work, *late, ENDED]], 500, [Costs()]).missed == 0.5
    merged = [partial(530, "a", end_ms=500), partial(2_050, "a b", end_ms=2_000)]
    both = summary([[BEGAN, work, *in_time, ENDED], [BEGAN, *merged, ENDED]], 500, [Costs()])
    assert (both.steps, both.missed, both.streams) == (6, pytest.approx(2 / 6, abs=1e-4), 2)
    assert both.apart_ms == 10


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
        frames=384,
        encode_ms=30,
        decode_ms=15,
        passes=4,
    )
    image = ElementTree.fromstring(plot([row, row]))
    lines = image.findall("{*}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [2, 2]


def test_a_random_model_is_the_same_every_time():
    a, b = random_model("tiny.en"), random_model("tiny.en")
    name = "encoder.blocks.0.attn.query.weight"
    assert np.array_equal(a.weights[name], b.weights[name])
    assert a.language == "en"
