"""The service files name options that exist, and systemd understands them."""

import plistlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from streamd.cli import main

CONTRIB = Path(__file__).parents[1] / "contrib"
UNITS = sorted((CONTRIB / "systemd").iterdir())


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_commands_of_the_units_are_understood(unit, capsys):
    for command in re.findall(r"ExecStart=(.*)", unit.read_text()):
        program, *words = shlex.split(command)
        assert program.endswith("/streamd")
        assert main([*words, "--print-config"]) == 0, capsys.readouterr().err


def test_the_command_of_the_plist_is_understood():
    plist = plistlib.loads((CONTRIB / "launchd" / "streamd.plist").read_bytes())
    assert main([*plist["ProgramArguments"][1:], "--print-config"]) == 0
    assert plist["Umask"] == 0o077


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_understands_the_units(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    for other in UNITS:
        # The program need not be installed to see whether the rest is right.
        text = re.sub(r"^(ExecStart)=\S+", r"\1=/bin/true", other.read_text(), flags=re.M)
        (tmp_path / other.name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [row for row in done.stderr.splitlines() if "streamd" in row]
    assert complaints == []


def test_the_service_of_the_whole_machine_may_do_little():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = CONTRIB / "systemd" / "streamd.service"
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout  # the exposure is below 2.5
