"""A process that computes, and its handle in the program.

Requests and replies are pickled and go through a pipe: a window's log-mel or encoder output is
below 1 MB, which takes 0.2 ms (measured on Linux), and nothing is shared that an end of either
process could leave behind.
"""

import io
import logging
import math
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen, TimeoutExpired
from threading import Lock, Thread
from typing import Literal, NamedTuple, TypeVar
from weakref import finalize

from streamd.errors import EngineError, StreamdError
from streamd.system.disk import megabytes
from streamd.system.processor import process_bytes

log = logging.getLogger(__name__)

PROCESS_NAME = "streamd-worker"
"""Ends the command of each worker, for whoever looks at the list of processes."""
_END_S = 5.0
"""How long a killed process may take to end; one inside a GPU's driver may never do."""
_REPORT_S = 20.0
"""How often the log says what a worker is doing."""
_USUAL = (RuntimeError, OSError)
"""Errors whose text says enough."""
_PRIO_DARWIN_PROCESS, _PRIO_DARWIN_BG = 4, 0x1000
"""From macOS's <sys/resource.h>."""

Report = Callable[[str], None]
"""Takes a line about what a worker is doing while it loads."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is for.

    `make` is called in the worker, and loads what computes: it returns an object, whose methods the
    program can call then. It is pickled, so it must not hold what cannot be, and a module that only
    the worker should import is imported when it is called. The log calls the worker `name`. A
    worker in the `background` gives way to everything else that the machine does.
    """

    make: Callable[[Report], object]
    name: str
    background: bool = False


Reply = (
    tuple[Literal["progress", "failed"], str]
    | tuple[Literal["done"], object]
    | tuple[Literal["raised"], StreamdError]
)
"""``progress`` while the worker loads, and what it does; ``done`` when it has loaded, or with what
a method returned, or ``raised``; ``failed`` with any other error, after which the worker ends."""


@dataclass(frozen=True, eq=False)
class Handle:
    """Stands for an object that a worker keeps under a number, until nobody has this any more.

    In the arguments of a call there, it is that object.
    """

    number: int


class _Call(NamedTuple):
    """A call of an object's method; what it returns is kept under a number, unless that is 0."""

    on: object
    method: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]
    keeps: int
    dropped: list[int]


class _CallPickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> int | None:
        return obj.number if isinstance(obj, Handle) else None


class _CallUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, kept: Mapping[int, object]) -> None:
        super().__init__(io.BytesIO(data))
        self._kept = kept

    def persistent_load(self, pid: int) -> object:
        return self._kept[pid]


# -- in the worker --------------------------------------------------------------------------------


def main(number: int) -> None:
    """Load, and answer requests until the program ends or closes the connection of this number.

    Signals for the whole program (Ctrl-C, the end of a service) are left to the program: audio
    that was captured before them must still be decoded.
    """
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    with suppress(OSError):  # a service may have no stderr
        os.dup2(2, 1)  # libraries print, and stdout has captions
    Thread(target=_end_with_program, args=(number,), daemon=True).start()
    connection = Connection(number)

    def tell(kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):  # somebody ends the process
            return False
        if isinstance(error, StreamdError):
            connection.send(("raised", error))
            return True
        text = " ".join(str(error).split()) or "no message"
        usual = isinstance(error, _USUAL)  # libraries raise bare exceptions, too
        connection.send(("failed", text if usual else f"{type(error).__name__}: {text}"))
        return True

    # Nobody reads the pipe any more when the program is gone.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError), ExitStack() as stack:
        stack.push(tell)
        sys.path[:] = connection.recv()
        _serve(connection.recv(), connection)


def _end_with_program(number: int) -> None:
    """End the process when the program has ended, even if a library computes on and on."""
    program = select.poll()
    program.register(number, 0)  # tells only that the other end is closed
    program.poll()
    os._exit(0)


def _serve(job: Job, connection: Connection) -> None:
    if job.background:
        _give_way()
    kept = {_TARGET.number: job.make(lambda text: connection.send(("progress", text)))}
    connection.send(("done", None))
    while True:
        request = connection.recv_bytes()
        try:
            connection.send(("done", answered(request, kept)))
        except StreamdError as error:
            connection.send(("raised", error))


def answered(request: bytes, kept: dict[int, object]) -> object:
    """Call what is asked for on one of the objects that are kept; return what it returns.

    A function, so that no name here refers to an object after it was dropped.
    """
    asked: _Call = _CallUnpickler(request, kept).load()
    for number in asked.dropped:
        kept.pop(number, None)
    found: object = getattr(asked.on, asked.method)(*asked.arguments, **asked.options)
    if not asked.keeps:
        return found
    kept[asked.keeps] = found
    return None


def _give_way() -> None:
    with suppress(OSError):  # then it loads at normal priority
        if sys.platform == "darwin":
            os.setpriority(_PRIO_DARWIN_PROCESS, 0, _PRIO_DARWIN_BG)
        else:
            os.nice(19)


# -- in the program -------------------------------------------------------------------------------


StandInT = TypeVar("StandInT")
_TARGET = Handle(0)
"""What `Job.make` has returned."""


class WorkerLostError(EngineError):
    """The worker has ended, with all that it held; another one can replace it."""


class DroppedNumbers:
    """The numbers in a worker of what the program has dropped. Any thread may call."""

    def __init__(self, *numbers: int) -> None:
        self._dropped = deque(numbers)

    def watched(self, stand_in: StandInT, number: int) -> StandInT:
        """Return what stands for a number in the program; that is dropped with it."""
        finalize(stand_in, self._dropped.append, number).atexit = False
        return stand_in

    def taken(self) -> list[int]:
        """Return the numbers that were dropped since this was last called."""
        taken = []
        with suppress(IndexError):  # until there are no more: several threads take some
            while True:
                taken.append(self._dropped.popleft())
        return taken


class Worker:
    """A handle of a worker process, which ends with it.

    `most_bytes` is how much memory it may take, which is looked at whenever it tells something.
    `wait` and `call` raise `WorkerLostError` if it died, did not answer in time, took more, or what
    it computes with failed; and what is raised in it as a `StreamdError`, with which it ends only
    while it loads. Any thread may call.
    """

    def __init__(self, job: Job, told: Report = lambda text: None) -> None:
        """Start the process; call `wait` before `call`. `told` gets what it does as it loads."""
        ours, theirs = Pipe()
        self._answer_s = self.most_bytes = math.inf
        self._name, self._connection, self._lock = job.name, ours, Lock()
        self._why_lost, self._told = "", told
        self._numbers, self._dropped = count(1), DroppedNumbers()
        self.exit_code: int | None = None
        """With what it ended by itself; a negative number is that of a signal."""
        # Not by `multiprocessing`, which would run the program's own script again.
        code = f"from {__name__} import main; main({theirs.fileno()})  # {PROCESS_NAME}"
        try:
            self._process = Popen(
                [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=DEVNULL
            )
        except OSError as error:
            raise WorkerLostError(f"cannot be started: {error.strerror}") from error
        theirs.close()
        self._end = finalize(self, _end, self._process, ours)
        with suppress(OSError):  # then it has ended, as `wait` tells
            ours.send(sys.path)
            ours.send(job)

    @property
    def answer_s(self) -> float:
        """How long the worker may take for an answer."""
        return self._answer_s

    @answer_s.setter
    def answer_s(self, within_s: float) -> None:
        self._answer_s = within_s
        # Of what the pipe cannot hold, it has to take the rest in this time, too; 0 is no limit.
        limit_us = math.ceil(within_s * 1e6) if within_s < math.inf else 0
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as pipe:
            limit = struct.pack("ll", *divmod(limit_us, 1_000_000))
            pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def wait(self, start_s: float) -> None:
        """Wait until the worker has loaded, which may take minutes; the log says what it does."""
        with self._lock:
            try:
                self._answer(start_s, "was not ready")
            except StreamdError:
                self._end()
                raise

    def call(self, method: str, *arguments: object, on: Handle = _TARGET) -> object:
        """Call a method of what `Job.make` returned, or of another object; return what it does."""
        return self._send(_Call(on, method, arguments, {}, 0, []))

    def keep(
        self,
        method: str,
        *arguments: object,
        options: Mapping[str, object] | None = None,
        on: Handle = _TARGET,
    ) -> Handle:
        """Call a method; what it returns stays in the worker as long as what this returns."""
        kept = Handle(next(self._numbers))
        self._send(_Call(on, method, arguments, options or {}, kept.number, []))
        return self._dropped.watched(kept, kept.number)

    def _send(self, request: _Call) -> object:
        with self._lock:
            if not self._end.alive:
                raise WorkerLostError(self._why_lost or "was ended")
            data = io.BytesIO()
            _CallPickler(data).dump(request._replace(dropped=self._dropped.taken()))
            try:
                self._connection.send_bytes(data.getbuffer())
            except BlockingIOError as error:
                raise self._lost(f"did not answer within {self.answer_s:g} s") from error
            except OSError as error:
                raise self._lost(self._exit()) from error
            return self._answer(self.answer_s, "did not answer")

    def close(self) -> None:
        """End the worker; whoever waits for an answer in another thread loses it."""
        self._process.kill()
        with self._lock:
            self._end()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def used_bytes(self) -> int:
        """Return how much memory it takes, but for what macOS holds for it elsewhere."""
        return process_bytes(self._process.pid)

    def _answer(self, within_s: float, otherwise: str) -> object:
        begun_s, state = time.monotonic(), "no answer yet"
        while True:
            left_s = within_s - (time.monotonic() - begun_s)
            if left_s <= 0:
                raise self._lost(f"{otherwise} within {within_s:g} s")
            try:
                if not self._connection.poll(min(_REPORT_S, left_s)):
                    spent_s = time.monotonic() - begun_s
                    log.info("%s: %s, for %.0f s so far", self._name, state, spent_s)
                    continue
                reply: Reply = self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._lost(self._exit()) from error
            if self.most_bytes < math.inf and (used := self.used_bytes()) > self.most_bytes:
                raise self._lost(f"takes {megabytes(used)}, too much for this machine")
            if reply[0] == "done":
                return reply[1]
            if reply[0] == "raised":
                raise reply[1]
            state = reply[1]
            if reply[0] == "failed":
                raise self._lost(state)
            log.debug("%s: %s", self._name, state)
            self._told(state)

    def _lost(self, why: str) -> WorkerLostError:
        self._why_lost = why
        self._end()
        return WorkerLostError(why)

    def _exit(self) -> str:
        """Say how the process ended."""
        with suppress(TimeoutExpired):
            self._process.wait(_END_S)
        self.exit_code = code = self._process.returncode or 0
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _end(process: Popen[bytes], connection: Connection) -> None:
    """Kill the process; nothing that it holds is needed any more."""
    process.kill()
    with suppress(TimeoutExpired):
        process.wait(_END_S)
    connection.close()
