"""OpenAI's weights: tiny.en, which is in the box, and base, if ``make test-real`` has got it."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from streamd.engines.coreml.package import check_files
from streamd.whisper.mel import log_mel
from tests.coreml.conftest import openai
from tests.coreml.lint import lint_built
from tests.coreml.reading import cpu_engine, live, read, read_on_core_ml, words_that_differ
from tests.coreml.verify import verify
from tests.golden import load
from tests.support.coreml_runs import arithmetic, core_ml, faulty
from tests.support.recorded import whole

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(1200)]


NAMES = ["tiny.en", "base"]


@pytest.mark.parametrize("name", NAMES)
def test_every_function_computes_what_the_reference_does(name, real):
    model, built = real(name)
    mel = log_mel(load.samples("lamp", model.dims.n_audio_ctx), model.dims.n_mels)
    assert {rule for _, rule in lint_built(built)} == {"64 bytes"}, "only the masks"
    check_files(built)
    findings = list(verify(built, model, mel))
    assert [found for found in findings if not found.right] == []
    assert max(found.peak.value for found in findings) < np.finfo(np.float16).max


@cache
def heard(name: str) -> list[str]:
    """What a model writes of a set of sounds on the CPU, in float32."""
    return read(openai(name), cpu_engine(openai(name)))


@pytest.mark.parametrize("mode", ["flush", "statistics", "sums"])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_stays_in_the_worst_arithmetic(name, mode, real):
    model, built = real(name)
    assert read_on_core_ml(built, model, modes=f"half,{mode}") == heard(name)


def test_a_live_stream_has_the_words_that_it_has_on_the_cpu(real, tmp_path):
    model, built = real("tiny.en")
    cpu = cpu_engine(model)
    expected, expected_windows = live(model, cpu, whole())
    with (
        faulty(tmp_path / "faults") as faults,
        arithmetic("half"),
        core_ml(built, cpu) as engine,
    ):
        found, found_windows = live(model, engine, whole())
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
def test_palettes_cost_few_words(name, real):
    model, built = real(name, 8)
    found = read_on_core_ml(built, model, modes="half")
    assert words_that_differ(heard(name), found) < 10
