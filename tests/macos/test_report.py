"""What does not work on somebody's Mac stands in the report that they send."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_report_says_what_did_not_pass_and_why(tmp_path):
    environment = os.environ | {
        "PATH": str(tmp_path),  # where there is no make
        "STREAMD_TEST_CORE_ML": "tests.support.coreml_stand_in",
        "STREAMD_TEST_REPORT": str(tmp_path / "build" / "mac.txt"),
    }
    options = ["-m", "macos", "-k", "demo", "-p", "no:cacheprovider"]
    plain = ["--override-ini", "addopts=--strict-markers --import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *options, *plain, "tests/macos"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    lines = (tmp_path / "build" / "mac.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["machine", "versions", "model"]
    assert lines[-1].startswith("not passed   test_the_demo_captions_what_is_said: FileNotFound")
    assert "\n".join(lines) in done.stdout
