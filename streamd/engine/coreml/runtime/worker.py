"""The process that runs Core ML: loads a built model, then does what it is told until told no more.

It ends when its supervisor does, or closes the connection. Signals that are meant for the whole
program (Ctrl-C, the end of a service) are the supervisor's to answer: what was said until then must
still be decoded.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from streamd.engine.coreml.built import open_built
from streamd.engine.coreml.runtime.library import Library
from streamd.engine.coreml.runtime.messages import Done, Encode, Failed, Job, Progress, Request
from streamd.engine.coreml.runtime.programs import Programs
from streamd.engine.coreml.runtime.shared import Memory, Shared
from streamd.errors import StreamdError

_PRIO_DARWIN_PROCESS, _PRIO_DARWIN_BG = 4, 0x1000
"""Of macOS's <sys/resource.h>. Unlike niceness, being in the background can be ended again."""


def main(job: Job, connection: Connection, memory: Memory) -> None:
    """Serve the supervisor at the other end of the connection."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _serve(job, connection, memory)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody is there any more
    except (RuntimeError, OSError, StreamdError) as error:
        connection.send(Failed(str(error).strip() or repr(error)))


def _serve(job: Job, connection: Connection, memory: Memory) -> None:
    built = open_built(job.folder)
    shared = Shared(memory, built.meta)
    with _background(job.quietly):
        library = Library(job.library, job.compiled)
        programs = Programs(
            built, job.placement, library, told=lambda text: connection.send(Progress(text))
        )
    connection.send(Done())
    while True:
        request: Request = connection.recv()
        if isinstance(request, Encode):
            programs.encode(request.seat, shared.mel(request.n_ctx), request.n_ctx)
        else:
            logits, alignment = programs.step(request)
            shared.logits(len(request.want))[...] = logits
            shared.alignment(*alignment.shape[::2])[...] = alignment
        connection.send(Done())


@contextmanager
def _background(quietly: bool) -> Iterator[None]:
    """Leave the processor to others, as long as this lasts."""
    if not quietly:
        yield
        return
    if sys.platform == "darwin":
        with suppress(OSError):  # then it is not so quiet
            os.setpriority(_PRIO_DARWIN_PROCESS, 0, _PRIO_DARWIN_BG)
        yield
        os.setpriority(_PRIO_DARWIN_PROCESS, 0, 0)
    else:
        os.nice(10)  # for good: there is no Core ML here that would be slower for it
        yield
