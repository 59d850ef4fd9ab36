"""A worker ends with its program, and only with that."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.engines.supervised import worker
from streamd.engines.supervised.worker import Job, Worker, WorkerLostError

pytestmark = pytest.mark.timeout(200)


class Echo:
    """Returns what it gets."""

    def say(self, what: object) -> object:
        return what

    def another(self) -> "Echo":
        return Echo()

    def is_other(self, others: list["Echo"]) -> bool:
        """Whether all of them are one object here, and not this one."""
        return all(each is others[0] and each is not self for each in others)

    def alive(self) -> int:
        """How many there are."""
        return sum(isinstance(each, Echo) for each in gc.get_objects())

    def compute(self) -> None:
        signal.pause()

    def fail(self) -> None:
        raise LookupError


def make(report: worker.Report) -> Echo:
    report("making an echo")
    print("a library that prints to stdout")
    return Echo()


def make_slowly(report: worker.Report) -> Echo:
    signal.pause()
    return Echo()


def ready(name: str = "an echo", function=make) -> Worker:
    found = Worker(Job(function, name))
    found.wait(60)
    return found


def test_it_answers(capfd):
    echo = ready()
    assert echo.call("say", {"a": (1, 2)}) == {"a": (1, 2)}
    assert echo.used_bytes() > 1 << 20
    echo.close()
    assert capfd.readouterr().out == "", "stdout has captions"
    with pytest.raises(WorkerLostError, match="was ended"):
        echo.call("say", 1)


def test_what_it_keeps_stays_there_until_it_is_dropped_here():
    echo = ready()
    kept = echo.keep("another")
    same = echo.keep("say", kept)
    assert echo.call("is_other", [kept, same]) is True
    assert echo.call("is_other", [kept, same], on=kept) is False
    assert echo.call("alive") == 2
    del kept
    assert echo.call("alive") == 2, "it has another name"
    del same
    assert echo.call("alive") == 1
    echo.close()


def test_an_error_ends_it_and_is_what_later_calls_raise():
    echo = ready()
    for _ in range(2):
        with pytest.raises(WorkerLostError, match=r"^LookupError: no message$"):
            echo.call("fail")


@pytest.mark.parametrize("n_bytes", [1, 1 << 22])
def test_one_that_is_stopped_while_it_waits_is_lost(n_bytes):
    """What is larger than the pipe is not even taken by it."""
    echo = ready()
    os.kill(echo.pid, signal.SIGSTOP)
    echo.answer_s = 0.1
    with pytest.raises(WorkerLostError, match=r"did not answer within 0\.1 s"):
        echo.call("say", bytes(n_bytes))


def test_one_that_is_not_ready_in_time_is_lost():
    echo = Worker(Job(make_slowly, "an echo"))
    with pytest.raises(WorkerLostError, match=r"was not ready within 0\.1 s"):
        echo.wait(0.1)


def test_it_says_what_it_is_doing_all_the_time(monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(worker, "_REPORT_S", 0.05)
    echo = Worker(Job(make_slowly, "an echo"))
    with pytest.raises(WorkerLostError):
        echo.wait(0.3)
    assert "an echo: no answer yet, for 0 s so far" in caplog.messages


def test_signals_for_the_program_leave_it_alone():
    echo = ready()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(echo.pid, number)
    assert echo.call("say", 1) == 1
    echo.close()


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_only_what_nobody_waits_for_is_in_the_background(monkeypatch, background, platform):
    lowered = []
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(os, "setpriority", lambda *which: lowered.append(which))
    monkeypatch.setattr(os, "nice", lambda by: lowered.append(by))
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    with pytest.raises((EOFError, BrokenPipeError)):
        worker._serve(Job(make, "an echo", background=background), theirs)
    assert bool(lowered) == background


ORPHAN = """
import sys
from streamd.engines.supervised.worker import Job, Worker
from tests.engines.supervised.test_worker import make

print("the program runs", flush=True)
echo = Worker(Job(make, "an echo"))
echo.wait(60)
print("ready", flush=True)
sys.stdin.read()
"""
COMPUTES = """
import os, threading
threading.Thread(target=echo.call, args=("compute",), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)  # as the daemon does with an engine that hangs
"""
# It has no `if __name__ == "__main__"`, as programs that use the library: it must not run twice.


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, None])
def test_it_ends_when_its_program_does(tmp_path, number, computes):
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN.partition('print("ready"')[0] + COMPUTES if computes else ORPHAN)
    root = str(Path(__file__).parents[3])
    program = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    with program:
        assert program.stdout.readline() == b"the program runs\n"
        assert program.stdout.readline() == b"ready\n"
        if number is None:
            program.stdin.close()
        else:
            program.send_signal(number)
        said = program.stderr.read()  # ends when the worker, which has it too, ends
    assert b"Traceback" not in said
