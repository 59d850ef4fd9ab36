"""OpenAI's weights: tiny.en, which is in the box, and base, if ``make test-real`` has got it."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from streamd.engines.coreml.golden import mel_of
from streamd.engines.coreml.package import check_files
from streamd.engines.golden_clips import clips
from streamd.models.store import load_model
from streamd.types import Window
from tests.coreml.lint import lint_built
from tests.coreml.reading import (
    cpu_engine,
    live,
    read_on_core_ml,
    read_on_cpu,
    sounds,
    words_that_differ,
)
from tests.coreml.verify import verify
from tests.support.coreml_runs import arithmetic, core_ml, faulty, silence_of
from tests.support.recorded import whole

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(1200)]


NAMES = ["tiny.en", "base"]


@pytest.mark.parametrize("name", NAMES)
def test_every_function_computes_what_the_reference_does(name, real, weights):
    built, model = real(name), load_model(weights(name))
    mel = mel_of(model.dims, clips()[0].samples, model.dims.n_audio_ctx)
    assert {rule for _, rule in lint_built(built)} == {"64 bytes"}, "only the masks"
    check_files(built)
    findings = list(verify(built, model, mel))
    assert [found for found in findings if not found.right] == []
    assert max(found.peak.value for found in findings) < np.finfo(np.float16).max


@pytest.fixture(scope="module")
def heard(real, weights):
    """What a model writes of a set of sounds on the CPU, in float32."""

    @cache
    def texts(name: str) -> tuple[list[Window], list[str]]:
        model = replace(load_model(weights(name)), silence=silence_of(real(name)))
        return sounds(), read_on_cpu(model, weights(name), sounds())

    return texts


@pytest.mark.parametrize("mode", ["flush", "statistics", "sums"])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_stays_in_the_worst_arithmetic(name, mode, real, weights, heard):
    windows, expected = heard(name)
    built, model = real(name), load_model(weights(name))
    found = read_on_core_ml(built, model, weights(name), windows, modes=f"half,{mode}")
    assert found == expected


def test_a_live_stream_has_the_words_that_it_has_on_the_cpu(real, weights, tmp_path):
    built, name = real("tiny.en"), weights("tiny.en")
    model = replace(load_model(name), silence=silence_of(built))
    cpu = cpu_engine(model)
    expected, expected_windows = live(model, cpu, name, whole())
    with (
        faulty(tmp_path / "faults") as faults,
        arithmetic("half"),
        core_ml(built, cpu) as engine,
    ):
        found, found_windows = live(model, engine, name, whole())
    differing = words_that_differ(expected_windows, found_windows)
    assert found == expected
    assert len(found) >= 14
    assert len(found_windows) == len(expected_windows)
    # Where a window ends within a word, two texts may be about as probable. Then the last bits of a
    # sum decide, which depend on the processor and on the number of threads.
    assert differing < 10
    ran = Counter(function for what, _, function in faults.done() if what == "predict")
    # What is computed as a whole is the first window of an utterance that begins with the end of
    # the one before.
    assert ran["ctx1500"] == 0
    assert ran["resume192"] > 10 * ran["ctx1024"]


@pytest.mark.parametrize("name", NAMES)
def test_palettes_cost_few_words(name, real, weights, heard):
    windows, expected = heard(name)
    built, model = real(name, 8), load_model(weights(name))
    found = read_on_core_ml(built, model, weights(name), windows, modes="half")
    assert words_that_differ(expected, found) < 10
