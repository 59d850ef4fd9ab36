"""OpenAI's weights: tiny.en, which is in the box, and base, if ``make test-real`` has got it."""

import pytest

from streamd.engine.check import FLOAT16_MAX, clips, mel_of
from streamd.engine.store import load_model
from tests.coreml.check import wrong_tables
from tests.coreml.lint import lint_built
from tests.coreml.verify import verify

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("name", ["tiny.en", "base"])
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
