"""Every function of a package computes what the reference does, and breaks no rule that matters."""

from functools import cache

import pytest

from streamd.engines.coreml.package import BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.engines.prepared import with_silence
from streamd.models.model import Model
from streamd.whisper.mel import log_mel
from tests.coreml.lint import lint_built
from tests.coreml.verify import EXACT, verify
from tests.golden import load
from tests.support.coreml_runs import model

HALF = 7e-3
"""What rounding to half precision costs these models, with noise for silence. Measured: 5.2e-3 on
one processor, 6.2e-3 on another, whose matrix products add in another order."""


@cache
def random() -> Model:
    """Its heads' scale is no power of two."""
    return with_silence(load.model("random"), threads=2, precision="int8")


MODELS = {"writes": model, "random": random}


@pytest.fixture(scope="module")
def mels():
    return {n_mels: log_mel(load.samples("lamp", 1500), n_mels) for n_mels in (80, 128)}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> BuiltModel:
    """The random model."""
    folder = tmp_path_factory.mktemp("small")
    write(folder, random())
    return open_built(folder)


@pytest.mark.parametrize("name", ["built", "small"])
def test_every_function_is_right(name, mels, request):
    built = request.getfixturevalue(name)
    verified = MODELS[built.meta.name]()
    findings = list(verify(built, verified, mels[verified.dims.n_mels]))
    assert [f.function for f in findings] == list(built.functions)
    for finding in findings:
        assert finding.exact < EXACT, finding
        assert finding.half < HALF, finding
        assert 0 < finding.peak.value < 1000, finding


def test_built_encoders_break_no_rule_that_matters(built):
    masks = {(f"{function.name} mask", "64 bytes") for function in built.functions}
    assert set(lint_built(built)) == masks
