"""Models of transcribe.cpp in processes of their own, one for each stream that is open.

Of 2,000 damaged files (``benchmarks/damaged_gguf.py``) the library refused most, but some ended the
process by SIGABRT, and some computed for minutes. Here such a file costs a session. The processes
share the pages of the mapped weights; what one takes besides is in docs/figures.md.
"""

import os
import signal
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import cast

from streamd.engines.families import library
from streamd.engines.families.library import Compute, Family
from streamd.engines.families.said import Abilities, FamilyStream, Said
from streamd.engines.supervised.worker import Job, Report, Worker, WorkerLostError
from streamd.errors import EngineMemoryError, ModelError, OneSessionError, StreamdError
from streamd.types import Samples, TextOptions

START_S = 300.0
"""How long a model may take to load; the largest, of 3 GB, from a slow disk."""
MOST_SPARE = 2
"""Processes that are kept while no stream uses them."""

# -- in the worker --------------------------------------------------------------------------------


class ServedFamily:
    """What a worker calls; it has one stream at a time."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._stream: FamilyStream | None = None

    def about(self) -> Abilities:
        """Return what the model can do."""
        return self._family.abilities

    def cpu_s(self) -> float:
        """Return the CPU time of this process."""
        return time.process_time()

    def begin(self, options: TextOptions) -> None:
        """Open a stream; the one before is closed."""
        self._close()
        self._stream = self._family.begin(options)

    def stream(self, method: str, *arguments: object) -> object:
        """Call a method of the stream."""
        return getattr(self._stream, method)(*arguments)

    def run(self, samples: Samples, options: TextOptions) -> Said:
        """Transcribe a piece of sound; a stream is closed."""
        self._close()
        return self._family.run(samples, options)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _served(
    path: Path, threads: int, compute: Compute, look_ahead_ms: int | None, _: Report
) -> ServedFamily:
    _hush()
    return ServedFamily(Family(path, threads=threads, compute=compute, look_ahead_ms=look_ahead_ms))


def _without_model(_: Report) -> ModuleType:
    _hush()
    return library


def _hush() -> None:
    """Let the library write nothing to the terminal, although it has a callback for messages."""
    os.environ["GGML_NO_BACKTRACE"] = "1"  # it would start a debugger before it ends the process
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


# -- in the program -------------------------------------------------------------------------------


def find_devices() -> list[str]:
    """Return what the library can compute on here, found in a process that may crash.

    A driver of a GPU is loaded for that. Raises `ConfigError` if the library is not installed,
    `EngineError` if it crashes.
    """
    with closing(Worker(Job(_without_model, "transcribe.cpp"))) as worker:
        worker.wait(START_S)
        return cast(list[str], worker.call("devices"))


class FamilyProcesses:
    """A model of which each stream has a process of its own; see `FamilyModel`.

    Where a process dies, or does not answer within `answer_s`, the call raises `OneSessionError`;
    where none can be started, `EngineMemoryError`. Any thread may call.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        compute: Compute = "cpu",
        look_ahead_ms: int | None = None,
        answer_s: float = 60.0,
    ) -> None:
        """Open the file in a first process.

        Raises what `Family` does, `ModelError` if the library crashes with the file or does not
        open it within `START_S`, and `EngineMemoryError` if the system cannot run the process,
        which may be otherwise later.
        """
        self._path, self._answer_s = path, answer_s
        make = partial(_served, path, threads, compute, look_ahead_ms)
        self._job = Job(make, path.name)
        # A stream that is garbage-collected closes itself, maybe in the thread that has the lock.
        self._lock = threading.RLock()
        self._free: list[Worker] = []
        self._all: set[Worker] = set()
        self._is_closed = False
        try:
            worker = self._start()
            self.abilities = cast(Abilities, self.ask(worker, "about"))
        except OneSessionError as error:
            self.close()
            raise ModelError(f"{path}: transcribe.cpp cannot open it ({error})") from error
        except StreamdError:
            self.close()
            raise
        self._free.append(worker)

    def begin(self, options: TextOptions) -> "StreamProcess":
        """Open a stream in a process that has none, which is started if need be."""
        worker = self._take()
        self.ask(worker, "begin", options)
        return StreamProcess(self, worker)

    def run(self, samples: Samples, options: TextOptions) -> Said:
        """Transcribe a piece of sound in a process that is free."""
        worker = self._take()
        said = self.ask(worker, "run", samples, options)
        self.give_back(worker)
        return cast(Said, said)

    def cpu_s(self) -> float:
        """Return the CPU time of the processes."""
        return sum(cast(float, self.ask(worker, "cpu_s")) for worker in self.workers)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            every = [*self._all]
        for worker in every:
            self._drop(worker)

    @property
    def workers(self) -> list[Worker]:
        """The processes that there are."""
        with self._lock:
            return [*self._all]

    def ask(self, worker: Worker, method: str, *arguments: object) -> object:
        """Return what a process answers. Raises `OneSessionError` if that is lost or unusable."""
        try:
            return worker.call(method, *arguments)
        except WorkerLostError as error:
            is_late = worker.exit_code is None and not self._is_closed
            self._drop(worker)
            cure = "; if only slow, raise decoding.engine_deadline_ms" if is_late else ""
            raise OneSessionError(f"the process of {self._path.name} {error}{cure}") from error
        except StreamdError:
            self.give_back(worker)
            raise

    def give_back(self, worker: Worker) -> None:
        """Let another stream use a process, which ends if enough others are free."""
        with self._lock:
            is_spare = len(self._free) >= MOST_SPARE
            if worker in self._all and worker not in self._free and not is_spare:
                self._free.append(worker)
        if is_spare:
            self._drop(worker)

    def _take(self) -> Worker:
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._start()

    def _start(self) -> Worker:
        worker: Worker | None = None
        try:
            worker = Worker(self._job)
            worker.wait(START_S)
        except WorkerLostError as error:
            # The system starts no process, or has killed it, if memory is short.
            is_short = worker is None or worker.exit_code == -signal.SIGKILL
            kind = EngineMemoryError if is_short else OneSessionError
            raise kind(f"the process of {self._path.name} {error}") from error
        worker.answer_s = self._answer_s
        with self._lock:
            self._all.add(worker)
            is_late = self._is_closed
        if is_late:
            self._drop(worker)
        return worker

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
            if worker in self._free:
                self._free.remove(worker)
        worker.close()


class StreamProcess:
    """A stream in a process; see `FamilyStream`."""

    def __init__(self, family: FamilyProcesses, worker: Worker) -> None:
        self._family, self._worker, self._is_open = family, worker, True

    def __del__(self) -> None:
        self.close()

    def feed(self, samples: Samples) -> None:
        """Take the next samples."""
        self._ask("feed", samples)

    def settle(self) -> int:
        """Have the model say all that it has heard."""
        return cast(int, self._ask("settle"))

    def said(self) -> Said:
        """Return all words since the stream began."""
        return cast(Said, self._ask("said"))

    def close(self) -> None:
        """Let another stream use the process, which closes this one when that begins."""
        if self._is_open:
            self._is_open = False
            self._family.give_back(self._worker)

    def _ask(self, method: str, *arguments: object) -> object:
        try:
            return self._family.ask(self._worker, "stream", method, *arguments)
        except StreamdError:
            self._is_open = False
            raise
