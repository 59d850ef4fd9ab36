"""Programs in processes of their own: streamd, what it logs, how it ends; and the system's."""

import asyncio
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any, NoReturn

import pytest

PROGRAM = str(Path(sys.executable).with_name("streamd"))


async def begun(*command: object, **how: Any) -> Process:
    """A process whose stdout and stderr are pipes, unless they are something else."""
    pipes = {"stdout": PIPE, "stderr": PIPE}
    return await asyncio.create_subprocess_exec(*map(str, command), **{**pipes, **how})


async def logged(process: Process, what: bytes) -> str:
    """The first match of a pattern in what it logs."""
    assert process.stderr is not None
    async for line in process.stderr:
        if found := re.search(what, line):
            return found[0].decode()
    raise AssertionError(f"streamd ended with {await process.wait()}")


async def ended(process: Process, code: int = 0, *, by: signal.Signals | None = None) -> bytes:
    """Wait for the end, after a signal if it is to end by one; gives the rest of stderr."""
    if by is not None:
        process.send_signal(by)
    _, complaints = await process.communicate()
    assert process.returncode == code, complaints
    return complaints or b""


async def cleared(*processes: Process) -> None:
    """Kill those that are still there."""
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def lacking(reason: str) -> NoReturn:
    """Skip the test, or fail where everything that the tests need has to be there."""
    if os.environ.get("STREAMD_REQUIRE_SYSTEM") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def installed(name: str) -> str:
    """The path of a program of the system."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    return found or lacking(f"needs {name} (make system-packages installs it)")
