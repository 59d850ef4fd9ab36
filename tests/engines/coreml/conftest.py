"""A small model built for Core ML, once for all tests of a process."""

import pytest

from streamd.engines.coreml.package import BuiltModel
from tests.support import coreml_runs as runs


def pytest_pycollect_makemodule(module_path, parent):
    return runs.skipped_without_coremltools(module_path, parent)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> BuiltModel:
    """With contexts of 384, 640 and 1500."""
    return runs.build_small(tmp_path_factory.mktemp("built"), 384, 640)


@pytest.fixture
def here(built, tmp_path) -> BuiltModel:
    """The same where its compiled form has its own place."""
    return runs.copied(built, tmp_path)
