"""What a process gives up for good before it reads data that may take it over."""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

_NICE = 10
"""What `nice` adds, too: work that nobody waits for at this moment."""
_NO_NEW_PRIVS = 38
"""``PR_SET_NO_NEW_PRIVS`` of linux/prctl.h."""
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""System calls of Landlock, with these numbers on every processor (linux/landlock.h)."""
_ASK_VERSION = 1
"""``LANDLOCK_CREATE_RULESET_VERSION``."""
_NEEDED = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables without which Python may not find this package."""


def child_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a process that runs a module of this package."""
    # -P: no module of the folder in which streamd was started is imported.
    return (sys.executable, "-P", "-m", module, *arguments)


def child_environment() -> dict[str, str]:
    """Return the only variables of ours that such a process gets."""
    return {name: os.environ[name] for name in _NEEDED if name in os.environ}


def limit_cpu(seconds: int) -> None:
    """End this process with SIGXCPU when it has used so many seconds of CPU time in all."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    if most != resource.RLIM_INFINITY:
        seconds = min(seconds, most)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, most))


def confine(n_bytes: int) -> list[str]:
    """Confine this process, which must have one thread; return what is missing on this machine.

    It keeps its open files. It can open no others and no connection, start no process or thread,
    write to no file, get no rights that it lacks, and allocate `n_bytes` more.
    """
    os.nice(_NICE)
    missing = [*_missing_on_linux(n_bytes)] if sys.platform == "linux" else [_MEMORY, _LANDLOCK]
    for limit in ("CORE", "FSIZE", "NPROC", "NOFILE"):
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (0, 0))
    if os.geteuid() == 0:
        missing.append("limits for root")
    return missing


_MEMORY, _LANDLOCK = "a limit of memory", "Landlock"


def _missing_on_linux(n_bytes: int) -> Iterator[str]:
    n_pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = n_pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    libc = ctypes.CDLL(None)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or not _landlocked(libc):
        yield _LANDLOCK


def _landlocked(libc: ctypes.CDLL) -> bool:
    """Forbid all that Landlock knows in this kernel; return whether it knows anything.

    That is every use of a path; from its version 4 on connections over TCP, and from 6 on signals
    and abstract sockets of other processes. Source: docs.kernel.org/userspace-api/landlock.html.
    """
    ask, restrict = ctypes.c_long(_CREATE_RULESET), ctypes.c_long(_RESTRICT_SELF)
    version = libc.syscall(ask, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if version < 1:  # no such call, or it is switched off
        return False
    n_paths = 13 + (version >= 2) + (version >= 3) + (version >= 5)
    paths, net, scope = (1 << n_paths) - 1, 3 * (version >= 4), 3 * (version >= 6)
    rules = (ctypes.c_uint64 * 3)(paths, net, scope)
    n_bytes = ctypes.c_size_t(ctypes.sizeof(rules))
    ruleset = libc.syscall(ask, ctypes.byref(rules), n_bytes, ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        return not libc.syscall(restrict, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
