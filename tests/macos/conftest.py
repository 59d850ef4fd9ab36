"""The tests of ``make test-mac``, and the report that they write.

Elsewhere they are skipped. With ``STREAMD_TEST_CORE_ML=tests.support.coreml_stand_in`` they run on
any machine, with numbers that mean nothing: that tests the tests.
"""

import os
import platform
import subprocess
import sys
from functools import cache as once
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import streamd
from streamd.engines.coreml.package import LIBRARY, BuiltModel
from streamd.engines.coreml.package_builder import build_model
from streamd.errors import StreamdError
from streamd.system.processor import processor_name

CORE_ML = os.environ.get("STREAMD_TEST_CORE_ML", LIBRARY)
MODEL = os.environ.get("MODEL", "tiny.en")
REPORT = Path(os.environ.get("STREAMD_TEST_REPORT", Path(__file__).parents[2] / "build/mac.txt"))
"""Where ``make test-mac`` leaves its report."""
_STORES = ("STREAMD_STORE", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
_USERS = {name: os.environ.get(name) for name in _STORES}
"""Where the user's models are; the other tests do not see them."""

_SKIPPED = pytest.StashKey[bool]()
_lines: list[str] = []
_wrong: list[str] = []
_running: list[str] = []


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if item.get_closest_marker("macos")]
    if sys.platform != "darwin" and CORE_ML == LIBRARY:
        why = "needs a Mac"
    elif "macos" not in config.option.markexpr:
        why = "takes minutes: make test-mac"
    else:
        config.stash[_SKIPPED] = not ours
        return
    for item in ours:
        item.add_marker(pytest.mark.skip(reason=why))


def pytest_runtest_logstart(nodeid):
    _running.append(nodeid.rpartition("::")[2])


def pytest_runtest_logreport(report):
    if not report.passed:
        _wrong.append(f"{report.nodeid.rpartition('::')[2]}: {_reason(report)}")


def pytest_runtest_logfinish(nodeid):
    _running.clear()


def pytest_runtest_setup(item):
    if item.get_closest_marker("macos"):
        _store()  # in case that something ends the tests as a whole


def _store() -> str:
    """Write the report as it is now; return its text."""
    wrong = [*_wrong, *(f"{name}: interrupted" for name in _running)]
    text = "\n".join([*_system(), *_lines, *(f"{'not passed':12} {each}" for each in wrong)])
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(f"{text}\n")
    return text


def pytest_terminal_summary(terminalreporter):
    if terminalreporter.config.stash.get(_SKIPPED, True):
        return
    text = _store()
    terminalreporter.section("report: please paste it into an issue")
    terminalreporter.write_line(f"{text}\n\nIt is in {REPORT}, too.")


def _reason(report) -> str:
    """Why a test did not pass, in one line."""
    if report.skipped:
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)  # a broken fixture may have none
    return next(iter((crash.message if crash else report.longreprtext).splitlines()), "")


def is_virtual() -> bool:
    """Whether this Mac is a virtual machine, which has no Neural Engine and no microphone."""
    if sys.platform != "darwin":
        return False
    command = ["/usr/sbin/sysctl", "-n", "kern.hv_vmm_present"]
    return subprocess.run(command, capture_output=True, check=False).stdout.strip() == b"1"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is missing"


@once
def _system() -> list[str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ("coremltools", "onnxruntime", "numpy")
    return [
        f"machine      {processor_name()}, {memory:.0f} GB, macOS {platform.mac_ver()[0]}, "
        f"{platform.version()}" + (", virtual" if is_virtual() else ""),
        f"versions     streamd {streamd.__version__}, Python {platform.python_version()}, "
        + ", ".join(f"{package} {_version(package)}" for package in packages),
        f"model        {MODEL}",
    ]


@pytest.fixture(scope="session")
def report():
    """Writes a line of the report."""

    def add(name: str, told: str) -> None:
        _lines.append(f"{name:12} {told}")
        _store()

    return add


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The user's models, and a cache folder of our own, so that everything is compiled anew."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _USERS.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        folder: Path = tmp_path_factory.mktemp("cache")
        folder.chmod(0o700)
        patch.setenv("STREAMD_CACHE", str(folder))
        patch.setenv("STREAMD_MODEL", MODEL)
        yield folder


@pytest.fixture(scope="session")
def built(cache) -> BuiltModel:
    """The model built for Core ML; without one there is nothing to test."""
    try:
        return build_model(MODEL, lambda done, n, what: None)
    except StreamdError as error:
        pytest.exit(str(error), returncode=1)
