"""streamd.app as far as it can be checked without a Mac: its files, its launcher, its menu."""

import importlib.util
import plistlib
import shutil
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace

import pytest

import streamd

MACOS = Path(__file__).parents[1] / "contrib" / "macos"


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, MACOS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def app(tmp_path) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    made = program("make_app").main(tmp_path)
    moved = tmp_path / "Äpfel & Birnen"
    moved.mkdir()
    return made.rename(moved / made.name)


def test_the_bundle_has_what_its_description_names(app):
    info = plistlib.loads((app / "Contents" / "Info.plist").read_bytes())
    assert (app / "Contents" / "MacOS" / info["CFBundleExecutable"]).stat().st_mode & 0o111
    assert info["CFBundleShortVersionString"] == streamd.__version__
    assert info["CFBundlePackageType"] == "APPL"
    assert info["NSMicrophoneUsageDescription"], "macOS ends a program that has none"
    inside = {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()}
    assert inside - {"Contents/_CodeSignature/CodeResources"} == {
        "Contents/Info.plist",
        "Contents/MacOS/streamd",
        "Contents/Resources/menu.py",
    }
    if shutil.which("codesign"):
        subprocess.run(["codesign", "--verify", "--strict", app], check=True)
        subprocess.run(["plutil", "-lint", app / "Contents" / "Info.plist"], check=True)


def test_the_launcher_runs_the_menu_of_its_bundle_and_ends_as_it_does(app):
    (app / "Contents" / "Resources" / "menu.py").write_text(
        "import os, sys; print(sys.executable, os.getppid(), flush=True); sys.exit(7)"
    )
    launcher = app / "Contents" / "MacOS" / "streamd"
    with subprocess.Popen([launcher], stdout=subprocess.PIPE, text=True) as process:
        told, _ = process.communicate()
    # It stays, since macOS asks for the microphone in its name.
    assert told.split() == [sys.executable, str(process.pid)]
    assert process.returncode == 7


def test_who_ends_the_launcher_ends_the_menu(app):
    (app / "Contents" / "Resources" / "menu.py").write_text(
        "import signal; print('ready', flush=True); signal.pause()"
    )
    launcher = app / "Contents" / "MacOS" / "streamd"
    with subprocess.Popen([launcher], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == ""  # the menu has ended
    assert process.returncode == 128 + signal.SIGTERM


# -- the menu -------------------------------------------------------------------------------------


class MenuItem(OrderedDict):
    """As rumps has it: equal to another without items."""

    def __init__(self, title: str, callback=None) -> None:
        super().__init__()
        self.title, self.callback, self.state = title, callback, 0

    def add(self, item: "MenuItem") -> None:
        self[item.title] = item

    def set_callback(self, callback) -> None:
        self.callback = callback

    def click(self) -> None:
        assert self.callback, f"{self.title} is grey"
        self.callback(self)


@pytest.fixture
def menu(monkeypatch, tmp_path):
    """The menu beside a stand-in for rumps: its items by their title, and what it says."""
    shown = SimpleNamespace(items={}, alerts=[], app=None, opened=tmp_path / "opened")

    class App:
        def __init__(self, name, *, title, quit_button) -> None:
            self.title, self.menu, shown.app = title, [], self

        def run(self) -> None:
            shown.items |= {item.title: item for item in self.menu if item is not None}

    class Timer:
        def __init__(self, callback, interval) -> None:
            self.callback = callback

        def start(self) -> None:
            shown.tick = self.callback

    rumps = SimpleNamespace(
        App=App,
        MenuItem=MenuItem,
        Timer=Timer,
        alert=lambda title, text: shown.alerts.append(text),
        quit_application=lambda: shown.alerts.append("quit"),
    )
    kit = SimpleNamespace(
        NSApplication=SimpleNamespace(
            sharedApplication=lambda: SimpleNamespace(setActivationPolicy_=lambda policy: None)
        ),
        NSApplicationActivationPolicyAccessory=1,
    )
    monkeypatch.setitem(sys.modules, "rumps", rumps)
    monkeypatch.setitem(sys.modules, "AppKit", kit)
    opener = tmp_path / "bin" / "open"
    opener.parent.mkdir()
    opener.write_text(f'#!/bin/sh\necho "$1" > "{shown.opened}"\n')
    opener.chmod(0o755)
    monkeypatch.setenv("PATH", f"{opener.parent}:/usr/bin:/bin")
    module = program("menu")
    module.LOG = tmp_path / "Logs" / "streamd.log"
    shown.module = module
    yield shown
    if "Quit" in shown.items:
        shown.items["Quit"].click()


def until(condition) -> None:
    """Wait for what another process does."""
    for _ in range(600):
        if condition():
            return
        Event().wait(0.1)
    pytest.fail("it never happened")


def test_captions_start_and_stop_from_the_menu(menu):
    menu.module.STREAMD = [sys.executable, "-m", "streamd", "serve"]  # which needs no microphone
    menu.module.PORT = 0
    menu.module.models = lambda: ["tiny.en"]
    menu.module.microphones = list
    menu.module.main()
    menu.tick()
    assert menu.items["Stop"].callback is None
    menu.items["Model"]["tiny.en"].click()
    assert [item.state for item in menu.items["Model"].values()] == [0, 1]
    assert menu.items["Microphone"]["Automatic"].state == 1
    menu.items["Start"].click()
    assert menu.app.title == "CC \u25cf"
    assert menu.items["Start"].callback is None
    until(lambda: "listening on" in menu.module.LOG.read_text())
    menu.items["Stop"].click()
    until(lambda: menu.tick() or menu.app.title == "CC")
    assert menu.alerts == []
    menu.items["Show the Log"].click()
    assert menu.opened.read_text().strip() == str(menu.module.LOG)
    menu.items["Open the Page"].click()
    assert menu.opened.read_text().strip() == "http://127.0.0.1:0/"


def test_the_menu_lists_what_is_here_and_says_why_captions_ended(menu):
    menu.module.microphones = lambda: ["no such microphone"]
    menu.module.main()
    assert [*menu.items["Model"]] == ["Automatic", "tiny.en"]
    menu.items["Microphone"]["no such microphone"].click()
    menu.tick()
    menu.items["Start"].click()
    until(lambda: menu.tick() or menu.alerts)
    (said,) = menu.alerts
    reasons = ("streamd: no microphone", "no such microphone", "PortAudio is not installed")
    assert any(reason in said for reason in reasons)
    menu.tick()
    assert len(menu.alerts) == 1, "it is said once"
    assert menu.items["Start"].callback
