"""A small model built for Core ML, once for all tests of a process."""

from pathlib import Path

import pytest

from streamd.engine.coreml.build import Plan, write
from streamd.engine.coreml.built import Built, open_built
from tests.support import coreml_runs as runs


def pytest_pycollect_makemodule(module_path, parent):
    return runs.skipped_without_coremltools(module_path, parent)


def _build(folder: Path, plan: Plan) -> Built:
    write(folder, runs.model(), plan)
    return open_built(folder)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Built:
    """For macOS 15 and later, with contexts of 384 and 1500."""
    return _build(tmp_path_factory.mktemp("built"), Plan(contexts=(384,)))


@pytest.fixture(scope="session")
def legacy(tmp_path_factory) -> Built:
    """For macOS 13 and 14."""
    return _build(tmp_path_factory.mktemp("legacy"), Plan(contexts=(384,), legacy=True))
