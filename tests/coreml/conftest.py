"""Models built for Core ML, once for all tests of a process, and the tables that tests print."""

import os
from functools import cache
from pathlib import Path

import pytest

from streamd.engines.coreml.package import BuiltModel, open_built
from streamd.engines.coreml.package_builder import write
from streamd.models.store import load_model
from streamd.options import BuildOptions
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
    def made(name: str, bits: str = "16") -> BuiltModel:
        folder = tmp_path_factory.mktemp(f"{name}-{bits}")
        write(folder, load_model(weights(name)), BuildOptions(weight_bits=bits))
        return open_built(folder)

    return made


# -- tables ---------------------------------------------------------------------------------------


@pytest.fixture
def table(request):
    """Adds a row to a table that is printed at the end: its title, then the cells."""

    def add(title: str, *cells: str) -> None:
        request.node.user_properties.append(("table", (title, cells)))

    return add


def pytest_terminal_summary(terminalreporter):
    tables: dict[str, list[tuple[str, ...]]] = {}
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get(
        "failed", []
    ):
        if report.when == "call":
            for kind, value in report.user_properties:
                if kind == "table":
                    tables.setdefault(value[0], []).append(tuple(value[1]))
    for title, rows in sorted(tables.items()):
        terminalreporter.section(title)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            terminalreporter.write_line("  ".join(cells).rstrip())
