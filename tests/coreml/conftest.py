"""Models built for Core ML, once for all tests of a process."""

import os
from functools import cache
from pathlib import Path

import pytest

from streamd.engines.coreml.package import Bits, BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.engines.prepared import with_silence
from streamd.models.model import Model
from streamd.models.store import load_model
from tests.support.coreml_runs import built, here, pytest_pycollect_makemodule

__all__ = ["built", "here", "pytest_pycollect_makemodule"]

_WEIGHTS = Path(os.environ.get("STREAMD_TEST_MODELS", Path(__file__).parents[2] / "build/real"))


@cache
def openai(name: str) -> Model:
    """OpenAI's model of this name, with states of silence; without its weights, the test skips."""
    if name != "tiny.en" and not (_WEIGHTS / name).is_dir():
        pytest.skip(f"{_WEIGHTS / name} is not there: make test-real gets it")
    model = load_model(name if name == "tiny.en" else str(_WEIGHTS / name))
    return with_silence(model, threads=2, precision="int8")


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """One of OpenAI's models, and what was built of it with weights of so many bits."""

    @cache
    def made(name: str, bits: Bits = 16) -> tuple[Model, BuiltModel]:
        folder = tmp_path_factory.mktemp(f"{name}-{bits}")
        write(folder, openai(name), bits=bits)
        return openai(name), open_built(folder)

    return made
