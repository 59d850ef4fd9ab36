"""A worker process, from the side of who gives it work."""

import atexit
import logging
import math
import signal
import time
from collections.abc import Callable
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from streamd.engine.coreml.package import Meta
from streamd.engine.coreml.runtime.messages import (
    Done,
    Encode,
    Failed,
    Job,
    Progress,
    Reply,
    Request,
    Step,
)
from streamd.engine.coreml.runtime.shared import Shared, new_memory
from streamd.engine.coreml.runtime.worker import main
from streamd.search import Alignment, Logits
from streamd.types import Mel

log = logging.getLogger(__name__)

_NAME = "streamd-coreml"
_TELL_S = 20.0
"""So often somebody who watches is told that loading goes on."""


class WorkerLostError(Exception):
    """The worker is gone, with all that it held; another one will do."""


class Worker:
    """A worker process, from this side.

    `answer_s`: how long it may take for a window or a pass.
    """

    def __init__(self, job: Job, meta: Meta) -> None:
        """Start it; `wait` until it is ready."""
        spawn = get_context("spawn")
        memory = new_memory(meta)
        ours, its = spawn.Pipe()
        self.answer_s = math.inf
        self._shared = Shared(memory, meta)
        self._placement = job.placement
        self._connection: Connection = ours
        self._process: BaseProcess = spawn.Process(
            target=main, args=(job, its, memory), name=_NAME, daemon=True
        )
        self._process.start()
        its.close()

    def wait(self, told: Callable[[str], None], *, start_s: float) -> None:
        """Wait until it has loaded, which may take minutes; `told` hears of its progress.

        Raises
        ------
        WorkerLostError
            It died, was not ready within `start_s`, or Core ML refused the model.
        """
        begun_s, at = time.monotonic(), "starting"
        while True:
            spent_s = time.monotonic() - begun_s
            if spent_s >= start_s:
                raise self._lost(f"was not ready within {start_s:g} s")
            if not self._connection.poll(min(_TELL_S, start_s - spent_s)):
                told(f"{at}, for {time.monotonic() - begun_s:.0f} s by now")
                continue
            reply = self._receive()
            if isinstance(reply, Done):
                return
            if isinstance(reply, Progress):
                at = reply.text
                log.debug("%s: %s", self._placement, at)

    def encode(self, seat: int, mel: Mel) -> None:
        """Encode (n_mels, 2 * n_ctx) log-mel and give the seat to this window.

        Raises
        ------
        WorkerLostError
            It died, did not answer in time, or Core ML failed.
        """
        n_ctx = mel.shape[1] // 2
        self._shared.mel(n_ctx)[...] = mel
        self._ask(Encode(seat, n_ctx))

    def step(self, step: Step, n_ctx: int) -> tuple[Logits, Alignment]:
        """Run a pass over the seat's window of `n_ctx` positions, as `Decoder.step` does.

        Raises
        ------
        WorkerLostError
            As above.
        """
        self._ask(step)
        logits = self._shared.logits(len(step.want)).copy()
        return logits, self._shared.alignment(len(step.tokens), n_ctx).copy()

    def _ask(self, request: Request) -> None:
        try:
            self._connection.send(request)
        except OSError as error:
            raise self._lost(self._fate()) from error
        if not self._connection.poll(self.answer_s):
            raise self._lost(f"did not answer within {self.answer_s:g} s")
        self._receive()

    def close(self) -> None:
        """End it at once; nothing that it holds is worth keeping."""
        self._process.kill()
        self._process.join()
        self._connection.close()

    def _receive(self) -> Reply:
        try:
            reply: Reply = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost(self._fate()) from error
        if isinstance(reply, Failed):
            raise self._lost(reply.reason)
        return reply

    def _lost(self, why: str) -> WorkerLostError:
        self.close()
        return WorkerLostError(why)

    def _fate(self) -> str:
        """How the process ended."""
        self._process.join()
        code = self._process.exitcode or 0
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


@atexit.register
def _end_all() -> None:
    """Before `multiprocessing` would ask them to end, and wait: they do not mind its signal."""
    for child in active_children():
        if child.name == _NAME:
            child.kill()
