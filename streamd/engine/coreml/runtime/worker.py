"""The process that runs Core ML, its handle in the program, and the supervisor that replaces it.

Requests and replies go through a pipe, large arrays through memory that both processes share. That
memory has no name, so it is freed when both processes have ended, however they end.

A worker that dies, or does not answer in time, costs a repetition. If that happens too often, its
placement is abandoned for the next one; when there is none left, the engine has failed.
"""

import atexit
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from streamd.engine.coreml.built import BuiltModel
from streamd.engine.coreml.package import MAX_TOKENS, Function, Meta
from streamd.engine.coreml.runtime.library import (
    Array,
    Library,
    Placement,
    Telling,
    of_form,
    redirect_stdout,
)
from streamd.engine.coreml.runtime.programs import Programs, Step
from streamd.engine.padding import Extent
from streamd.errors import EngineError
from streamd.search import Alignment, Logits
from streamd.types import Mel

log = logging.getLogger(__name__)

_NAME = "streamd-coreml"
_REPORT_S = 20.0
"""How often the log says that loading goes on."""
_PRIO_DARWIN_PROCESS, _PRIO_DARWIN_BG = 4, 0x1000
"""From macOS's <sys/resource.h>."""

Memory = Any
"""A shared array of ctypes; `multiprocessing` has no public name for its type."""


# -- what is sent ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is to run.

    `compiled` is the folder for the compiled packages; `library` is the module to import for Core
    ML: coremltools, or in tests a replacement. `functions` are loaded at the start, none meaning
    all that the placement needs; without `serve` one by one, to have Core ML prepare them, and at
    background priority. Then the worker is done.
    """

    built: BuiltModel
    compiled: Path
    placement: Placement
    library: str
    functions: tuple[Function, ...] = ()
    serve: bool = True


class Encode(NamedTuple):
    """Encode the first (n_mels, 2 * extent.n) of the shared log-mel into a cache slot."""

    cache_slot: int
    extent: Extent


class Load(NamedTuple):
    """Load one more function."""

    function: Function


Reply = tuple[Literal["progress", "done", "failed"], str]
"""``progress`` while the worker loads, and what it does; ``done`` when it has loaded or answered a
request; ``failed`` with Core ML's error, after which the worker ends."""


class SharedArrays(NamedTuple):
    """Float32 arrays that both processes see, of the largest sizes there are."""

    mel: Array
    logits: Array
    alignment: Array


def _shapes(meta: Meta) -> tuple[tuple[int, ...], ...]:
    dims, n_heads = meta.dims, len(meta.alignment_heads)
    return (
        (dims.n_mels, 2 * dims.n_audio_ctx),
        (MAX_TOKENS, dims.n_vocab),
        (MAX_TOKENS, n_heads, meta.n_keys),
    )


def shared_arrays(memory: Sequence[Memory], meta: Meta) -> SharedArrays:
    """Return the arrays in the memory of a `Worker`, which must outlive them."""
    parts = zip(memory, _shapes(meta), strict=True)
    return SharedArrays(*(np.frombuffer(part, np.float32).reshape(shape) for part, shape in parts))


# -- in the worker --------------------------------------------------------------------------------


def main(job: Job, connection: Connection, memory: Sequence[Memory]) -> None:
    """Load the model and answer requests until the supervisor ends or closes the connection.

    Signals for the whole program (Ctrl-C, the end of a service) are left to the supervisor: audio
    that was captured before them must still be decoded.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    redirect_stdout()
    # Nobody reads the pipe any more when the supervisor is gone.
    with (
        suppress(EOFError, BrokenPipeError, ConnectionResetError),
        Telling(lambda error: connection.send(("failed", error))),
    ):
        _serve(job, connection, memory)


def _serve(job: Job, connection: Connection, memory: Sequence[Memory]) -> None:
    shared = shared_arrays(memory, job.built.meta)
    if not job.serve:
        _lower_priority()
    library = Library(job.library, job.compiled)
    programs = Programs(
        job.built, job.placement, library, lambda text: connection.send(("progress", text))
    )
    programs.load(job.functions, keep=job.serve)
    connection.send(("done", ""))
    while job.serve:
        request: Encode | Step | Load = connection.recv()
        if isinstance(request, Load):
            programs.load([request.function], keep=True)
        elif isinstance(request, Encode):
            mel = shared.mel[:, : 2 * request.extent.n]
            programs.encode(request.cache_slot, mel, request.extent)
        else:
            logits, alignment = programs.step(request)
            shared.logits[: len(logits)] = logits
            shared.alignment[: len(alignment), :, : alignment.shape[2]] = alignment
        connection.send(("done", ""))


def _lower_priority() -> None:
    """Give this process background priority on a Mac; elsewhere its priority stays."""
    if sys.platform == "darwin":
        with suppress(OSError):  # then it loads at normal priority
            os.setpriority(_PRIO_DARWIN_PROCESS, 0, _PRIO_DARWIN_BG)


# -- in the program -------------------------------------------------------------------------------


class WorkerLostError(Exception):
    """The worker has ended, with all that it held; another one can replace it.

    `timed_out`: it was ended because it took too long, which says nothing of what it can do.
    """

    def __init__(self, why: str = "", *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out


class Worker:
    """A handle of a worker process; `answer_s` is how long it may take for a window or a pass."""

    def __init__(self, job: Job) -> None:
        """Start the process; call `wait` before anything else."""
        spawn, meta = get_context("spawn"), job.built.meta
        memory = [spawn.RawArray("f", math.prod(shape)) for shape in _shapes(meta)]
        ours, theirs = spawn.Pipe()
        self.answer_s = math.inf
        self._shared = shared_arrays(memory, meta)
        self._placement = job.placement
        self._connection: Connection = ours
        self._process: BaseProcess = spawn.Process(
            target=main, args=(job, theirs, memory), name=_NAME, daemon=True
        )
        self._process.start()
        theirs.close()

    def wait(self, start_s: float) -> None:
        """Wait until the worker has loaded, which may take minutes; the log says what it is doing.

        Raises `WorkerLostError` if it died, was not ready within `start_s`, or Core ML rejected the
        model.
        """
        begun_s, state = time.monotonic(), "starting"
        while True:
            spent_s = time.monotonic() - begun_s
            if spent_s >= start_s:
                raise self._lost(f"was not ready within {start_s:g} s", timed_out=True)
            if not self._connection.poll(min(_REPORT_S, start_s - spent_s)):
                spent_s = time.monotonic() - begun_s
                log.info("Core ML, %s: %s, for %.0f s so far", self._placement, state, spent_s)
                continue
            kind, state = self._receive()
            if kind == "done":
                return
            log.debug("%s: %s", self._placement, state)

    def encode(self, cache_slot: int, mel: Mel, extent: Extent) -> None:
        """Encode (n_mels, 2 * extent.n) log-mel into a cache slot.

        Raises `WorkerLostError` if the worker died, did not answer in time, or Core ML failed.
        """
        self._shared.mel[:, : mel.shape[1]] = mel
        self._request(Encode(cache_slot, extent))

    def step(self, step: Step, n_keys: int) -> tuple[Logits, Alignment]:
        """Run a pass over a window that sees `n_keys` audio positions.

        Raises `WorkerLostError` as `encode`.
        """
        self._request(step)
        alignment = self._shared.alignment[: len(step.tokens), :, :n_keys]
        return self._shared.logits[: len(step.want)].copy(), alignment.copy()

    def load(self, function: Function, start_s: float) -> None:
        """Load one more function within this time. Raises `WorkerLostError` as `encode`."""
        self._request(Load(function), start_s)

    def close(self) -> None:
        """Kill the process; nothing that it holds is needed any more."""
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _request(self, request: Encode | Step | Load, within_s: float | None = None) -> None:
        within_s = self.answer_s if within_s is None else within_s
        try:
            self._connection.send(request)
        except OSError as error:
            raise self._lost(self._exit()) from error
        while True:
            if not self._connection.poll(within_s):
                raise self._lost(f"did not answer within {within_s:g} s", timed_out=True)
            if self._receive()[0] == "done":
                return

    def _receive(self) -> Reply:
        try:
            reply: Reply = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost(self._exit()) from error
        if reply[0] == "failed":
            raise self._lost(reply[1])
        return reply

    def _lost(self, why: str, *, timed_out: bool = False) -> WorkerLostError:
        self.close()
        return WorkerLostError(why, timed_out=timed_out)

    def _exit(self) -> str:
        """Say how the process ended."""
        self._process.join()
        code = self._process.exitcode or 0
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


# -- supervision ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """When a worker counts as hung, and a placement as unusable.

    `start_s`, `answer_s`: how long a worker may take to load, and for a window or a pass. A
    placement is abandoned after `deaths` workers lost within `windows` windows.
    """

    start_s: float = 30.0
    answer_s: float = 20.0
    deaths: int = 3
    windows: int = 50


class Supervisor:
    """Owns one worker at a time, on the first placement that works."""

    def __init__(self, job: Job, limits: WorkerLimits) -> None:
        """The worker is started when it is first needed."""
        needed = job.functions or of_form(job.built, job.placement.form)
        self._job, self._limits = replace(job, functions=needed), limits
        self._fallbacks: list[Placement] = []
        self._worker: Worker | None = None
        self._n_windows = 0
        self._deaths: list[int] = []

    @property
    def placement(self) -> Placement:
        """Where the model runs now."""
        return self._job.placement

    @property
    def functions(self) -> tuple[Function, ...]:
        """What each worker loads."""
        return self._job.functions

    def configure(self, limits: WorkerLimits, *fallbacks: Placement) -> None:
        """Set new limits, and the placements to try when the current one is abandoned."""
        self._limits, self._fallbacks = limits, list(fallbacks)

    def load(self, function: Function) -> None:
        """Load one more function, now and in each worker from now on.

        Raises `WorkerLostError` or `EngineError` as `worker` does.
        """
        worker = self.worker()
        # Another placement, to which this one may have fallen back, has functions of its own.
        needed = of_form(self._job.built, self.placement.form)
        if function in needed and function not in self.functions:
            worker.load(function, self._limits.start_s)
            self._job = replace(self._job, functions=(*self.functions, function))

    def new_window(self) -> None:
        """Count a window, and forget workers that were lost too many windows ago."""
        self._n_windows += 1
        since = self._n_windows - self._limits.windows
        self._deaths = [window for window in self._deaths if window > since]

    def worker(self) -> Worker:
        """Return the worker, loaded. Raises `EngineError` if too many were lost, as `lost` does."""
        while self._worker is None:
            worker = Worker(self._job)
            try:
                worker.wait(self._limits.start_s)
            except WorkerLostError as error:
                self.lost(error)
            else:
                self._worker = worker
        self._worker.answer_s = self._limits.answer_s
        return self._worker

    def lost(self, error: WorkerLostError) -> None:
        """Record a lost worker, which `worker` replaces. Raises `EngineError` if too many were."""
        self._worker = None
        self._deaths.append(self._n_windows)
        if len(self._deaths) < self._limits.deaths:
            log.warning("Core ML, %s: the worker %s; starting another", self.placement, error)
            return
        if not self._fallbacks:
            raise EngineError(
                f"Core ML failed, {self.placement}: the worker {error}; use --compute cpu"
            ) from error
        abandoned, self._deaths = self.placement, []
        placement = self._fallbacks.pop(0)
        needed = of_form(self._job.built, placement.form)
        self._job = replace(self._job, placement=placement, functions=needed)
        log.warning("Core ML, %s: the worker %s; changing to %s", abandoned, error, self.placement)

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


@atexit.register
def _kill_all() -> None:
    # `multiprocessing` would ask them to end with SIGTERM, which they ignore, and wait for them.
    for child in active_children():
        if child.name == _NAME:
            child.kill()
