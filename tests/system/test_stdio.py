"""Log lines: one form for people, one for programs, on a stream that captions may share."""

import io
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import current_thread

import pytest

from streamd.system import stdio
from streamd.system.stdio import lines_inside, log_to

log = logging.getLogger("streamd.test")
library = logging.getLogger("websockets.test")


@pytest.fixture(autouse=True)
def leave_no_trace():
    root, ours = logging.getLogger(), logging.getLogger("streamd")
    before = root.handlers[:], root.level, ours.level
    root.handlers = []
    yield
    root.handlers, level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


def say(stream: io.StringIO) -> list[str]:
    for logger in (log, library):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logger.log(level, "%s at %d", logger.name.split(".")[0], level)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("verbose", "levels", "of_libraries"),
    [
        (0, [20, 30, 40], [30, 40]),
        (1, [10, 20, 30, 40], [30, 40]),
        (2, [10, 20, 30, 40], [10, 20, 30, 40]),
        (-1, [40], [40]),
    ],
)
def test_how_much_is_said(verbose, levels, of_libraries):
    stream = io.StringIO()
    log_to(stream, form="text", verbose=verbose)
    expected = [f"streamd at {level}" for level in levels]
    expected += [f"websockets at {level}" for level in of_libraries]
    assert [line.split(": ")[-1] for line in say(stream)] == expected


def test_text_looks_like_the_program_s_errors():
    stream = io.StringIO()
    log_to(stream, form="text", verbose=1)
    log.info("listening on %s", "ws://127.0.0.1:8765")
    log.warning("no %s", "speech")
    assert (
        stream.getvalue()
        == "streamd: listening on ws://127.0.0.1:8765\nstreamd: warning: no speech\n"
    )


def test_json_lines_carry_time_level_origin_and_traceback():
    stream = io.StringIO()
    log_to(stream, form="json")
    log.warning("zwei\nZeilen, %s", "ä")
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"] == "zwei\nZeilen, ä"
    assert (first["level"], first["logger"]) == ("warning", "streamd.test")
    assert first["time"].endswith("+00:00")
    assert "traceback" not in first
    assert second["traceback"].endswith("ValueError: no")


def test_lines_are_written_inside_the_room_that_captions_make():
    stream = io.StringIO()
    log_to(stream, form="text")

    @contextmanager
    def room():
        stream.write("<")
        yield
        stream.write(">")

    with ThreadPoolExecutor(1) as drawing, lines_inside(room, drawing.submit):
        log.warning("late")
    log.warning("alone")
    assert stream.getvalue() == "<streamd: warning: late\n>streamd: warning: alone\n"


def test_lines_are_written_in_the_thread_that_draws():
    names = []

    @contextmanager
    def room():
        names.append(current_thread().name)
        yield

    log_to(io.StringIO(), form="text")
    with (
        ThreadPoolExecutor(1, thread_name_prefix="drawing") as drawing,
        lines_inside(room, drawing.submit),
    ):
        log.warning("late")
    assert names == ["drawing_0"]


def test_a_second_call_replaces_the_first():
    first, second = io.StringIO(), io.StringIO()
    log_to(first, form="text")
    log_to(second, form="text")
    log.warning("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_the_end_waits_as_long_for_many_threads_as_for_one(monkeypatch):
    now_s, left = 100.0, []

    class Hung:
        def join(self, timeout_s: float) -> None:
            nonlocal now_s
            now_s += timeout_s

        def is_alive(self) -> bool:
            return True

    monkeypatch.setattr(stdio.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(stdio.os, "_exit", left.append)
    stdio.leave([Hung(), Hung(), Hung()], 3, wait_s=0.5)
    assert (now_s, left) == (100.5, [3])
