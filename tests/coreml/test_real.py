"""OpenAI's weights: tiny.en, which is in the box, and base, if ``make test-real`` has got it."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from streamd.engines.coreml.golden import mel_of
from streamd.engines.golden_clips import clips
from streamd.models.store import load_model
from tests.coreml.check import FLOAT16_MAX, wrong_tables
from tests.coreml.lint import lint_built
from tests.coreml.reading import (
    Said,
    cpu_engine,
    error_rate,
    evaluated,
    live,
    read_on_core_ml,
    read_on_cpu,
    said,
    words_that_differ,
)
from tests.coreml.verify import verify
from tests.support.coreml_runs import arithmetic, core_ml, faulty, silence_of
from tests.support.recorded import SENTENCES, three_sentences, whole

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(1200)]


NAMES = ["tiny.en", "base"]


@pytest.mark.parametrize("name", NAMES)
def test_every_function_computes_what_the_reference_does(name, real, weights, table):
    built, model = real(name), load_model(weights(name))
    mel = mel_of(model, clips()[0].samples, model.dims.n_audio_ctx)
    assert [each for each in lint_built(built) if each.severity == "error"] == []
    assert wrong_tables(built, model) == []
    findings = list(verify(built, model, mel))
    for found in findings:
        package = found.function.package.removesuffix(".mlpackage")
        where = f"{package} {found.function.name}"
        table(
            "1a. distance from the reference, exactly and in half precision",
            *(name, where, f"{found.exact:.1e}", f"{found.half:.1e}", found.where),
        )
    assert [found for found in findings if not found.right] == []
    assert max(found.peak.value for found in findings) < FLOAT16_MAX


@pytest.fixture(scope="module")
def heard(real, weights):
    """What a model writes of a set of sounds on the CPU, in float32."""

    @cache
    def texts(name: str, which: str) -> tuple[list[Said], list[str]]:
        model = replace(load_model(weights(name)), silence=silence_of(real(name)))
        sounds = [*said(), *evaluated()[:10]] if which == "demo" else evaluated()[:20] or said()
        return sounds, read_on_cpu(model, weights(name), sounds)

    return texts


@pytest.mark.parametrize("mode", ["flush", "statistics", "sums"])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_stays_in_the_worst_arithmetic(name, mode, real, weights, heard, table):
    sounds, expected = heard(name, "demo")
    built, model = real(name), load_model(weights(name))
    found = read_on_core_ml(built, model, weights(name), sounds, form="mix", modes=f"half,{mode}")
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    title = "2. texts as on the CPU, if a unit computes all in half precision and also ..."
    table(title, name, mode, f"{same} of {len(sounds)}")
    assert found == expected


@pytest.mark.parametrize(
    ("form", "sound", "n_finals"),
    [("state", three_sentences, len(SENTENCES)), ("mix", whole, 14)],
    ids=["state, three sentences", "mix, all of the recording"],
)
def test_a_live_stream_has_the_words_that_it_has_on_the_cpu(
    form, sound, n_finals, real, weights, tmp_path, table
):
    built, name = real("tiny.en"), weights("tiny.en")
    model = replace(load_model(name), silence=silence_of(built))
    expected, expected_windows = live(model, cpu_engine(model), name, sound())
    with (
        faulty(tmp_path / "faults") as faults,
        arithmetic("half"),
        core_ml(built, tmp_path / "compiled", form) as engine,
    ):
        found, found_windows = live(model, engine, name, sound())
    same = sum(map(str.__eq__, found_windows, expected_windows))
    differing = words_that_differ(expected_windows, found_windows)
    cells = (
        f"{len(found)} finals",
        f"{len(found_windows)} windows",
        f"{same} read alike",
        f"{differing:.1f} % of the words differ",
    )
    table("10. a live stream in half precision (tiny.en)", form, sound.__name__, *cells)
    assert found == expected
    assert len(found) >= n_finals
    assert len(found_windows) == len(expected_windows)
    # Where a window ends within a word, two texts may be about as probable. Then the last bits of a
    # sum decide, which depend on the processor and on the number of threads.
    assert differing < 10
    ran = Counter(function for what, _, function in faults.done() if what == "predict")
    # Encoder and "cross". Two more projected the states of silence; what is computed as a whole is
    # the first window of an utterance that begins with the end of the one before.
    assert ran["ctx1500"] == 0
    assert ran["resume192"] > 10 * ran["ctx1024"]


@pytest.mark.parametrize("bits", ["16", "8", "6"])
@pytest.mark.parametrize("name", NAMES)
def test_word_error_rate(name, bits, real, weights, heard, table):
    sounds, expected = heard(name, "evaluated")
    built, model = real(name, bits), load_model(weights(name))
    found = read_on_core_ml(built, model, weights(name), sounds, form="state", modes="half")
    wrong, on_cpu = (error_rate(sounds, texts) for texts in (found, expected))
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    cells = (f"{wrong:.1f} %", f"on the CPU {on_cpu:.1f} %", f"{same} texts the same")
    table(
        "8. word error rate in half precision", name, f"{bits} bits", f"{len(sounds)} clips", *cells
    )
    assert wrong < on_cpu + 10
