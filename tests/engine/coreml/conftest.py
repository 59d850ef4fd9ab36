"""A small model built for Core ML, once for all tests of a process."""

from pathlib import Path

import pytest

from streamd.engine.coreml.built import BuiltModel, open_built
from streamd.engine.coreml.package_builder import write
from streamd.options import BuildOptions
from tests.support import coreml_runs as runs


def pytest_pycollect_makemodule(module_path, parent):
    return runs.skipped_without_coremltools(module_path, parent)


def _build(folder: Path, options: BuildOptions) -> BuiltModel:
    write(folder, runs.model(), options)
    return open_built(folder)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> BuiltModel:
    """With contexts of 384, 640 and 1500."""
    return _build(tmp_path_factory.mktemp("built"), BuildOptions(audio_contexts=(384, 640)))
