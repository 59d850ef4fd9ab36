"""The process that runs Core ML, and its handle in the program.

Requests and replies go through a pipe, large arrays through memory that both processes share, which
is freed when both have ended, however they end, since it has no name.
"""

import atexit
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal
from weakref import finalize

import numpy as np

from streamd.engines.coreml.package import MAX_TOKENS, BuiltModel, Function, Meta
from streamd.engines.coreml.runtime.programs import (
    Array,
    Devices,
    Library,
    Placement,
    Programs,
    Step,
    needed,
)
from streamd.errors import StreamdError
from streamd.models.silence import Extent
from streamd.system.disk import megabytes
from streamd.system.processor import process_bytes
from streamd.types import Mel
from streamd.whisper.engine import Alignment, Logits

log = logging.getLogger(__name__)

_NAME = "streamd-coreml"
_REPORT_S = 20.0
"""How often the log says what a worker is doing."""
_PLAN_S = 120.0
"""How long Core ML may take to plan a package."""
_USUAL = (RuntimeError, OSError, StreamdError)
"""Errors whose text says enough."""
_PRIO_DARWIN_PROCESS, _PRIO_DARWIN_BG = 4, 0x1000
"""From macOS's <sys/resource.h>."""


# -- what is sent ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to run.

    `compiled` is the folder for the compiled packages; `library` is the module to import for Core
    ML: coremltools, or in tests a replacement. `functions` are loaded at the start; without `serve`
    one by one, to have Core ML prepare them, and at background priority. Then the worker is done.
    """

    built: BuiltModel
    compiled: Path
    placement: Placement
    library: str
    functions: tuple[Function, ...] = ()
    serve: bool = True


Request = (
    tuple[Literal["encode"], tuple[int, Extent, int]]
    | tuple[Literal["step"], Step]
    | tuple[Literal["plan"], Function]
)
"""``encode`` the first (n_mels, 2 * extent.n) of the shared log-mel into a cache slot that knows so
many positions, or ``plan``: return the devices of each function of this one's package."""
Answer = dict[str, Devices] | None
Reply = tuple[Literal["progress", "failed"], str] | tuple[Literal["done"], Answer]
"""``progress`` while the worker loads, and what it does; ``done`` when it has loaded or answered a
request; ``failed`` with Core ML's error, after which the worker ends."""


def _shapes(meta: Meta) -> tuple[tuple[int, ...], ...]:
    """Return the largest shapes of a window's log-mel, and of a pass's logits and alignment."""
    dims, n_heads = meta.dims, len(meta.alignment_heads)
    return (
        (dims.n_mels, 2 * dims.n_audio_ctx),
        (MAX_TOKENS, dims.n_vocab),
        (MAX_TOKENS, n_heads, meta.n_keys),
    )


def _arrays(memory: Sequence[Any], meta: Meta) -> list[Array]:
    """Return float32 arrays of these shapes, which both processes see, in ctypes' shared memory."""
    parts = zip(memory, _shapes(meta), strict=True)
    return [np.frombuffer(part, np.float32).reshape(shape) for part, shape in parts]


# -- in the worker --------------------------------------------------------------------------------


def main(job: Job, connection: Connection, memory: Sequence[Any]) -> None:
    """Load the model and answer requests until the program ends or closes the connection.

    Signals for the whole program (Ctrl-C, the end of a service) are left to the program: audio
    that was captured before them must still be decoded.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Core ML's compiler is verbose, and stdout has captions. coremltools silences the compiler in
    # some calls, not in ``compile_model`` (coremltools 9.0, CoreMLPython.mm).
    os.dup2(2, 1)

    def tell(kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):  # somebody ends the process
            return False
        text = " ".join(str(error).split()) or "no message"
        usual = isinstance(error, _USUAL)  # coremltools raises bare exceptions, too
        connection.send(("failed", text if usual else f"{type(error).__name__}: {text}"))
        return True

    # Nobody reads the pipe any more when the program is gone.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError), ExitStack() as stack:
        stack.push(tell)
        _serve(job, connection, memory)


def _serve(job: Job, connection: Connection, memory: Sequence[Any]) -> None:
    shared_mel, shared_logits, shared_alignment = _arrays(memory, job.built.meta)
    if not job.serve and sys.platform == "darwin":
        with suppress(OSError):  # then it loads at normal priority
            os.setpriority(_PRIO_DARWIN_PROCESS, 0, _PRIO_DARWIN_BG)
    library = Library(job.library, job.compiled)
    programs = Programs(
        job.built, job.placement, library, lambda text: connection.send(("progress", text))
    )
    programs.load(job.functions, keep=job.serve)
    connection.send(("done", None))
    while job.serve:
        request: Request = connection.recv()
        found = None
        match request:
            case "plan", function:
                unit = job.placement.unit(function)
                found = library.plan(job.built.folder / function.package, unit)
            case "encode", (cache_slot, extent, n_known):
                programs.encode(cache_slot, shared_mel[:, : 2 * extent.n], extent, n_known)
            case "step", step:
                logits, alignment = programs.step(step)
                shared_logits[: len(logits)] = logits
                shared_alignment[: len(alignment), :, : alignment.shape[2]] = alignment
        connection.send(("done", found))


# -- in the program -------------------------------------------------------------------------------


class WorkerLostError(Exception):
    """The worker has ended, with all that it held; another one can replace it."""


class Worker:
    """A handle of a worker process, which ends with it.

    `answer_s` is how long the worker may take for a window or a pass, `most_bytes` how much memory,
    which is looked at whenever it tells something. All methods but `close` and `used_bytes` raise
    `WorkerLostError` if it died, did not answer in time, or took more, or Core ML failed.
    """

    def __init__(self, job: Job) -> None:
        """Start the process; call `wait` before anything else."""
        spawn, meta = get_context("spawn"), job.built.meta
        memory = [spawn.RawArray("f", math.prod(shape)) for shape in _shapes(meta)]
        ours, theirs = spawn.Pipe()
        self.answer_s = self.most_bytes = math.inf
        self._mel, self._logits, self._alignment = _arrays(memory, meta)
        self._placement = job.placement
        self._connection: Connection = ours
        self._process: BaseProcess = spawn.Process(
            target=main, args=(job, theirs, memory), name=_NAME, daemon=True
        )
        self._process.start()
        theirs.close()
        self.close = finalize(self, _end, self._process, ours)
        self.close.atexit = False  # `_kill_all` does it, and when is important

    def wait(self, start_s: float) -> None:
        """Wait until the worker has loaded, which may take minutes; the log says what it does."""
        self._answer(start_s, "was not ready")

    def encode(self, cache_slot: int, mel: Mel, extent: Extent, n_known: int) -> None:
        """Encode (n_mels, 2 * extent.n) log-mel into a cache slot, as `Programs.encode` does."""
        self._mel[:, : mel.shape[1]] = mel
        self._request(("encode", (cache_slot, extent, n_known)), self.answer_s)

    def step(self, step: Step, n_keys: int) -> tuple[Logits, Alignment]:
        """Run a pass over a window that sees `n_keys` audio positions."""
        self._request(("step", step), self.answer_s)
        alignment = self._alignment[: len(step.tokens), :, :n_keys]
        return self._logits[: len(step.want)].copy(), alignment.copy()

    def plan(self, function: Function) -> dict[str, Devices]:
        """Return the devices of each function of this one's package."""
        return self._request(("plan", function), _PLAN_S) or {}

    def used_bytes(self) -> int:
        """Return how much memory it takes, but for what macOS holds for it elsewhere."""
        return process_bytes(self._process.pid or 0)

    def _request(self, request: Request, within_s: float) -> Answer:
        try:
            self._connection.send(request)
        except OSError as error:
            raise self._lost(self._exit()) from error
        return self._answer(within_s, "did not answer")

    def _answer(self, within_s: float, otherwise: str) -> Answer:
        begun_s, state = time.monotonic(), "starting"
        while True:
            left_s = within_s - (time.monotonic() - begun_s)
            if left_s <= 0:
                raise self._lost(f"{otherwise} within {within_s:g} s")
            if not self._connection.poll(min(_REPORT_S, left_s)):
                spent_s = time.monotonic() - begun_s
                log.info("Core ML, %s: %s, for %.0f s so far", self._placement, state, spent_s)
                continue
            try:
                reply: Reply = self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._lost(self._exit()) from error
            if self.most_bytes < math.inf and (used := self.used_bytes()) > self.most_bytes:
                raise self._lost(f"takes {megabytes(used)}, too much for this machine")
            if reply[0] == "done":
                return reply[1]
            state = reply[1]
            if reply[0] == "failed":
                raise self._lost(state)
            log.debug("%s: %s", self._placement, state)

    def _lost(self, why: str) -> WorkerLostError:
        self.close()
        return WorkerLostError(why)

    def _exit(self) -> str:
        """Say how the process ended."""
        self._process.join()
        code = self._process.exitcode or 0
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _end(process: BaseProcess, connection: Connection) -> None:
    """Kill the process; nothing that it holds is needed any more."""
    process.kill()
    process.join()
    connection.close()


def refusal(job: Job) -> str:
    """Return why Core ML does not load a decoder of the placement or write its states, or ""."""
    decoder = next(each for each in needed(job.built, job.placement) if each.states)
    worker = Worker(replace(job, functions=(decoder,), serve=False))
    try:
        worker.wait(_PLAN_S)
    except WorkerLostError as error:
        return str(error)
    finally:
        worker.close()
    return ""


def devices(job: Job) -> Iterator[Devices]:
    """Yield the devices of each function that the placement needs.

    Core ML is asked in a process of its own for each package: ``MLComputePlan`` is slow, and is
    known to crash on models with states.
    """
    for _, of in groupby(needed(job.built, job.placement), lambda each: each.package):
        functions = list(of)
        worker, found = Worker(replace(job, functions=())), dict[str, Devices]()
        with suppress(WorkerLostError):
            worker.wait(_PLAN_S)
            found = worker.plan(functions[0])
        worker.close()
        for function in functions:
            yield found.get(function.name) or Devices(function.package, function.name)


@atexit.register
def _kill_all() -> None:
    # `multiprocessing` would ask them to end with SIGTERM, which they ignore, and wait for them.
    for child in active_children():
        if child.name == _NAME:
            child.kill()
