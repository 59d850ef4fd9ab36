"""MLX in a worker, whose evaluation fails as that of a GPU may when a test leaves a file."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from streamd.engines.mlx import gpu

FOLDER = "STREAMD_TEST_FAULTS"
FAULTS = ("raise", "hang", "kill", "nan")
_serve = gpu.serve


def serve(*given):
    """In place of `gpu.serve`, with another ``mlx.core.eval``."""
    import mlx.core as mx

    folder, evaluate = Path(os.environ[FOLDER]), mx.eval

    def faulty(*arrays: object) -> None:
        evaluate(*arrays)
        for fault in FAULTS:
            if is_due(folder / fault):
                fail(fault, arrays)

    mx.eval = faulty
    return _serve(*given)


def is_due(file: Path) -> bool:
    """Whether the call is the one whose number is in the file, which is gone then."""
    if not file.exists():
        return False
    left = int(file.read_text())
    file.write_text(str(left - 1))
    if left == 0:
        file.unlink()
    return left == 0


def fail(fault: str, arrays: object) -> None:
    """Do what a driver does that fails."""
    match fault:
        case "raise":
            raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory")
        case "hang":
            threading.Event().wait()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "nan":
            for array in leaves(arrays):
                array[...] = float("nan")


def leaves(arrays: object) -> Iterator:
    """The arrays in lists and tuples."""
    if isinstance(arrays, list | tuple):
        for each in arrays:
            yield from leaves(each)
    elif arrays is not None:
        yield arrays
