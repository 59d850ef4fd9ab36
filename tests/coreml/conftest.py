"""Models built for Core ML, once for all tests of a process."""

import os
from functools import cache
from pathlib import Path

import pytest

from streamd.engines.coreml.package import Bits, BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.models.store import load_model
from tests.support import coreml_runs as runs

_WEIGHTS = Path(os.environ.get("STREAMD_TEST_MODELS", Path(__file__).parents[2] / "build/real"))


def pytest_pycollect_makemodule(module_path, parent):
    return runs.skipped_without_coremltools(module_path, parent)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> BuiltModel:
    """With contexts of 384 and 1500."""
    return runs.build_small(tmp_path_factory.mktemp("built"), 384)


@pytest.fixture(scope="session")
def weights():
    """The path or name of OpenAI's weights of a model; without them the test is skipped."""

    def found(name: str) -> str:
        if name == "tiny.en":
            return name
        if not (_WEIGHTS / name).is_dir():
            pytest.skip(f"{_WEIGHTS / name} is not there: make test-real gets it")
        return str(_WEIGHTS / name)

    return found


@pytest.fixture(scope="session")
def real(tmp_path_factory, weights):
    """One of OpenAI's models, built with weights of so many bits."""

    @cache
    def made(name: str, bits: Bits = 16) -> BuiltModel:
        folder = tmp_path_factory.mktemp(f"{name}-{bits}")
        write(folder, load_model(weights(name)), bits=bits)
        return open_built(folder)

    return made


@pytest.fixture
def here(built, tmp_path) -> BuiltModel:
    """The same where its compiled form has its own place."""
    return runs.copied(built, tmp_path)
