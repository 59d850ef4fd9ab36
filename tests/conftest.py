"""What all tests share."""

import gc
import logging
import os
import shutil
import signal
import tempfile
from pathlib import Path

# Before anything imports numpy: test processes run side by side, and threads of matrix products
# that wait for each other take ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before a test imports ONNX Runtime ahead of streamd, which sets this too.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# What a developer has once answered (`streamd.cli.asking`) is not for the servers of tests.
os.environ["XDG_STATE_HOME"] = str(Path(tempfile.gettempdir(), "no-streamd-state"))

import pytest
from hypothesis import HealthCheck, settings

from tests.support import pulseaudio, slow
from tests.support.programs import lacking

# A shell's background jobs ignore Ctrl-C, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """One worker more than there are cores: many tests wait for a process or a timer."""
    return (os.cpu_count() or 1) + 1


# Machines are slow and noisy: no test asserts on time. CI draws the same examples every time; who
# works on streamd runs the tests often, and each time with others.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", patient, max_examples=8)
settings.register_profile("local", patient, max_examples=25)
settings.register_profile("ci", patient, max_examples=60, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser):
    group = parser.getgroup("streamd")
    group.addoption("--quick", action="store_true", help="few examples, without tests/slow.txt")
    group.addoption("--write-slow", action="store_true", help="measure, write tests/slow.txt")


def pytest_configure(config):
    if config.getoption("--quick") or config.getoption("--write-slow"):
        settings.load_profile("quick")
    if config.getoption("--write-slow"):
        config.pluginmanager.register(slow.Measuring())


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collecting tests makes a million objects, and all of them stay: none is worth looking for."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if config.getoption("--quick"):
        slow.leave_out(config, items)


@pytest.fixture(scope="session", autouse=True)
def empty_store(tmp_path_factory):
    """No test sees or changes the models of whoever runs it, and none reaches the hub.

    Where a test names no model, the program runs the model in the box.
    """
    folder, every = tmp_path_factory.mktemp("store"), tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # a model is prepared once, not by each worker
        every = every.parent
    (cache := every / "cache").mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("HF_HOME", str(folder / "hub"))
        patch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
        patch.setenv("STREAMD_STORE", str(folder / "imported"))
        patch.setenv("STREAMD_CACHE", str(cache))
        patch.setenv("STREAMD_MODEL", "tiny.en")
        yield


_LOGGERS = {name: logging.getLogger(name).level for name in ("", "streamd")}
"""What is logged before anything has set it."""


@pytest.fixture(autouse=True)
def loud_logs():
    """A program that was run in this process may have set what is logged; the next test hears all.

    Which tests came before must not matter, nor which fixtures of a whole module.
    """
    for name, level in _LOGGERS.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def null_sink():
    # Not tmp_path: a socket's path may have 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="streamd-") as folder,
        pulseaudio.null_sink(Path(folder)) as sink,
    ):
        yield sink


@pytest.fixture(scope="session")
def ffmpeg():
    """Skips without ffmpeg, or fails where it has to be there."""
    if shutil.which("ffmpeg") is None or shutil.which("ffprobe") is None:
        lacking("needs ffmpeg: apt-get install ffmpeg")
