"""The service files name options that exist, and systemd understands them."""

import ast
import importlib
import json
import plistlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from streamd.cli import main
from streamd.events import Final, Partial, TimedWord

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


DOCKERFILE = (CONTRIB / "docker" / "Dockerfile").read_text()


def instruction(name: str) -> list[str]:
    """The words of an instruction in its JSON form."""
    return json.loads(re.search(rf"^{name} (\[.*\])$", DOCKERFILE, re.M)[1])


def test_the_command_of_the_image_is_understood(monkeypatch):
    monkeypatch.setenv("STREAMD_TOKEN", "0123456789abcdef")
    program, *words = [*instruction("ENTRYPOINT"), *instruction("CMD")]
    assert program == "streamd"
    assert main([*words, "--print-config"]) == 0


def test_the_image_gets_all_that_the_package_is_built_from():
    ignored = (CONTRIB / "docker" / "Dockerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    copied = [line.removeprefix("!") for line in ignored[1:]]
    assert all((CONTRIB.parent / path).exists() for path in copied)
    project = tomllib.loads((CONTRIB.parent / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    about = project["project"]
    wanted = [*wheel["packages"], *wheel["force-include"], *about["license-files"], about["readme"]]
    assert [path for path in wanted if not any(map(path.startswith, copied))] == []


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_image_knows_whether_it_is_well(status, code):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        python, *words = instruction("HEALTHCHECK CMD")
        assert python == "python"
        command = [word.replace("8765", str(server.server_port)) for word in words]
        done = subprocess.run([sys.executable, *command], capture_output=True)
        thread.join()
    assert done.returncode == code


def test_the_flatpak_is_started_from_the_menu():
    recipe, entry = sorted((CONTRIB / "desktop").glob("org.*"), reverse=True)
    made = yaml.safe_load(recipe.read_text())
    commands = "\n".join(made["modules"][0]["build-commands"])
    shown = ConfigParser()
    shown.read(entry)
    assert (made["id"], made["command"]) == (entry.stem, shown["Desktop Entry"]["Exec"])
    assert f"contrib/desktop/{entry.name} -t /app/share/applications" in commands
    assert f"contrib/desktop/window.py /app/bin/{made['command']}" in commands


@pytest.mark.parametrize("folder", ["contrib", "examples"])
def test_what_programs_import_of_streamd_is_there(folder):
    """No other test runs those whose own libraries are missing here, such as Qt."""
    missing = []
    for path in sorted((CONTRIB.parent / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamd"):
                module = importlib.import_module(node.module)
                names = [each.name for each in node.names if not hasattr(module, each.name)]
                missing += [f"{path.name}: {node.module} has no {name}" for name in names]
    assert missing == []


def test_the_window_replaces_what_is_tentative_and_keeps_what_is_final(monkeypatch):
    pytest.importorskip("PySide6.QtWidgets", reason="needs PySide6-Essentials")
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    module = runpy.run_path(str(CONTRIB / "desktop" / "window.py"))
    app = module["QApplication"]([])
    window = module["CaptionWindow"]()

    def said(kind, text, speaker, **fields):
        word = TimedWord(text=text, start_ms=0, end_ms=9, prob=1, final=True, speaker=speaker)
        window.take(kind(seg=1, start_ms=0, end_ms=9, text=text, words=(word,), **fields))
        return window.toPlainText()

    assert said(Partial, "Wood you?", 1, rev=1, stable=0) == "Wood you? "
    assert said(Final, "Would you?", 1, language="en") == "Would you? "
    assert said(Partial, "Yes", 2, rev=1, stable=0) == "Would you? \n– Yes "
    assert said(Final, "Yes.", 2, language="en") == "Would you? \n– Yes. "
    window.close()
    app.shutdown()
