"""What does not work on somebody's Mac stands in the report that they send."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tests.macos import conftest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path):
    """Starts the demo's test as make test-mac does; only what is in tmp_path can be called."""
    environment = os.environ | {
        "PATH": str(tmp_path),
        "STREAMD_TEST_CORE_ML": "tests.support.coreml_stand_in",
        "STREAMD_TEST_REPORT": str(tmp_path / "build" / "mac.txt"),
    }
    options = ["-m", "macos", "-k", "demo", "-p", "no:cacheprovider"]
    plain = ["--override-ini", "addopts=--strict-markers --import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *options, *plain, "tests/macos"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


def test_the_report_says_what_did_not_pass_and_why(run, tmp_path):
    told, _ = run.communicate()
    assert run.returncode == 1, told
    lines = (tmp_path / "build" / "mac.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["machine", "versions", "model"]
    assert lines[-1].startswith("not passed   test_the_demo_captions_what_is_said: FileNotFound")
    assert "\n".join(lines) in told


def test_without_coremltools_the_report_says_so(monkeypatch):
    def version(package):
        if package == "coremltools":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(conftest, "version", version)
    assert "coremltools is missing, onnxruntime 1.0" in "".join(conftest._system.__wrapped__())


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGKILL])
def test_whoever_ends_it_has_a_report_that_says_what_hung(run, tmp_path, ends):
    begun, make = tmp_path / "begun", tmp_path / "make"
    os.mkfifo(begun)
    hangs = f"open({str(begun)!r}, 'w').write(str(os.getpid())); signal.pause()"
    make.write_text(f"#!{sys.executable}\nimport os, signal; {hangs}\n")
    make.chmod(0o755)
    hung = int(begun.read_text())  # waits for it
    run.send_signal(ends)
    run.wait()
    with suppress(ProcessLookupError):
        os.kill(hung, signal.SIGKILL)
    lines = (tmp_path / "build" / "mac.txt").read_text().splitlines()
    assert lines[-1] == "not passed   test_the_demo_captions_what_is_said: interrupted"
