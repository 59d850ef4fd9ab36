"""Which program types, what it is given, and what ends dictation."""

import os
from pathlib import Path
from signal import SIGKILL

import pytest

from streamd.errors import ConfigError, StreamdError
from streamd.events import Final, Partial
from streamd.rewriting import Rewriter, built_in, read_rules
from streamd.sinks.dictation import TypingSink, typists

X11, WAYLAND = {"DISPLAY": ":0"}, {"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts programs on the path that append what they are given to a file, or fail.

    Keys are appended as they are named; wl-copy goes on in the background, as the real one does.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(name: str, *, problem: str = "") -> Path:
        typed = tmp_path / f"{name}.txt"
        typed.touch()
        program = tmp_path / name
        fails = f"echo {problem!r} >&2; exit 1" if problem else ""
        keys = f'case "$*" in *key*|*-k*) echo "[$*]" >> \'{typed}\';; esac'
        stays = "sleep 600 & echo $! > " + f"'{typed}.pid'" if name == "wl-copy" else ""
        program.write_text(f"#!/bin/sh\n{fails}\n{keys}\ncat >> '{typed}'\n{stays}\n")
        program.chmod(0o755)
        return typed

    yield write
    for pid in tmp_path.glob("*.pid"):
        os.kill(int(pid.read_text()), SIGKILL)


RULES = read_rules([built_in()])


def final(text: str, seg: int = 1) -> Final:
    return Final(seg=seg, start_ms=0, end_ms=1000, text=text, language="en")


def said(text: str) -> Final:
    return Rewriter(RULES).rewritten(final(text), "")


def sink(*programs: str, phrase: str = "stop dictation") -> tuple[TypingSink, list[bool]]:
    stopped: list[bool] = []
    made = TypingSink(
        programs, phrase, RULES, stop=lambda: stopped.append(True), is_stopped=lambda: bool(stopped)
    )
    return made, stopped


@pytest.mark.parametrize(
    ("platform", "session", "there", "found"),
    [
        ("linux", X11, ["xdotool", "ydotool", "wtype"], ["xdotool", "ydotool"]),
        ("linux", X11, ["ydotool"], ["ydotool"]),
        ("linux", WAYLAND, ["xdotool", "wtype", "wl-copy"], ["wtype"]),
        ("linux", WAYLAND, ["ydotool", "wl-copy", "wtype"], ["wtype", "wl-copy", "ydotool"]),
        ("darwin", {}, ["osascript", "xdotool"], ["osascript"]),
    ],
)
def test_the_session_decides_what_types(platform, session, there, found, install, tmp_path):
    for name in there:
        install(name)
    assert typists(platform, {**session, "PATH": str(tmp_path)}) == found


@pytest.mark.parametrize(
    ("session", "says"),
    [
        (X11, "type into a X11 window: install xdotool or ydotool"),
        (WAYLAND, "type into a Wayland window: install wtype, or ydotool and wl-clipboard"),
        ({}, "neither WAYLAND_DISPLAY nor DISPLAY is set"),
    ],
)
def test_what_to_install_is_said(session, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        typists("linux", {**session, "PATH": str(tmp_path)})


def test_only_finals_are_typed_with_blanks_between_them(install):
    typed = install("xdotool")
    types, stopped = sink("xdotool")
    types.write(Partial(seg=1, rev=1, start_ms=0, end_ms=500, text="Wood you", stable=0))
    assert typed.read_text() == ""
    for text in ("Would you\tplease.", "", "Turn\x1b[2J on.", "今日は。", "明日。"):
        types.write(final(text))
    assert typed.read_text() == "Would you please. Turn\ufffd[2J on.今日は。明日。"
    assert not stopped


@pytest.mark.parametrize(
    ("phrase", "text", "typed", "stops"),
    [
        ("stop dictation", "Stop dictation.", "", True),
        ("Stop dictation!", "The lamp, stop, dictation", "The lamp,", True),
        ("stop dictation", "Stop dictation of the letter.", "Stop dictation of the letter.", False),
        ("stop dictation", "It is a nonstop dictation.", "It is a nonstop dictation.", False),
        ("fin de la dictée", "Bonjour. Fin de la dictée.", "Bonjour.", True),
        ("", "Stop dictation.", "Stop dictation.", False),
    ],
)
def test_the_stop_phrase_ends_it_and_is_not_typed(phrase, text, typed, stops, install):
    written = install("xdotool")
    types, stopped = sink("xdotool", phrase=phrase)
    types.write(final(text))
    assert (written.read_text(), bool(stopped)) == (typed, stops)
    types.write(final("More.", seg=2))
    assert written.read_text() == (typed if stops else f"{typed} More.")


def test_a_program_that_fails_is_replaced_by_the_next(install, caplog):
    install("wtype", problem="Compositor does not support the virtual keyboard protocol")
    typed = install("ydotool")
    types, _ = sink("wtype", "ydotool")
    types.write(final("One."))
    types.write(final("Two."))
    assert typed.read_text() == "One. Two."
    (said,) = caplog.messages
    assert said.startswith("wtype cannot type here: Compositor does not support")


def test_what_the_last_program_complains_of_ends_dictation(install):
    install("ydotool", problem="failed to open uinput device")
    types, _ = sink("ydotool")
    with pytest.raises(StreamdError, match="ydotool cannot type here: failed to open uinput"):
        types.write(final("One."))


def test_a_mac_gets_the_text_as_a_string_of_its_script(install):
    script = install("osascript")
    types, _ = sink("osascript")
    types.write(final('Say "a\\b".'))
    assert script.read_text() == (
        'tell application "System Events" to keystroke "Say \\"a\\\\b\\"."'
    )


def test_new_lines_and_marks_that_were_said_are_typed(install):
    typed = install("xdotool")
    types, _ = sink("xdotool")
    for text in ("Dear Anna, comma.", "New line. How are you?", "Open quote.", "Fine.", "New line"):
        types.write(said(text))
    assert typed.read_text() == "Dear Anna,\nHow are you? “Fine.\n"
    types.write(said("Yes"))
    types.write(said("Question mark"))
    assert typed.read_text().endswith("\nYes?")


def test_what_was_typed_is_erased_if_somebody_takes_it_back(install):
    typed = install("xdotool")
    types, _ = sink("xdotool")
    for text in ("One.", "Twö!", "Scratch that. Scratch that. Three", "delete that"):
        types.write(said(text))
    erased = "[key --clearmodifiers{}]\n".format
    assert typed.read_text() == (
        "One. Twö!"
        + erased(" BackSpace" * 5)
        + erased(" BackSpace" * 4)
        + "Three"
        + erased(" BackSpace" * 5)
    )
    types.write(said("Scratch that."))  # nothing is left
    assert typed.read_text().endswith(erased(" BackSpace" * 5))


def test_a_mark_that_was_said_replaces_one_that_was_typed(install):
    typed = install("wtype")
    types, _ = sink("wtype")
    types.write(said("So it is."))
    types.write(said("Question mark."))
    assert typed.read_text() == "So it is.[-s 50 -k BackSpace]\n?"


def test_on_gnome_and_kde_any_letter_goes_through_the_clipboard(install, caplog):
    install("wtype", problem="Compositor does not support the virtual keyboard protocol")
    copied, keys = install("wl-copy"), install("ydotool")
    types, _ = sink("wtype", "wl-copy", "ydotool")
    types.write(said("Grüße aus Köln."))
    assert copied.read_text() == "Grüße aus Köln." * 2  # what is copied, and what is selected
    types.write(said("Scratch that."))
    paste, erase = "[key 42:1 110:1 110:0 42:0]", f"[key{' 14:1 14:0' * 15}]"
    assert keys.read_text() == f"{paste}\n{erase}\n"
    assert [message.split(";")[-1] for message in caplog.messages] == [" trying wl-copy"]
