"""The machine that streamd runs on, as far as the operating system describes it."""

import ctypes
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

_FAST = "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 amx_int8 asimddp i8mm"
"""Instruction sets that decide how fast matrices of 8 or 16 bits are multiplied."""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a measurement, without names and paths.

    `flags` are the processor's fast instruction sets, `load` is the number of cores in use.
    """

    cpu: str
    cores: int
    flags: tuple[str, ...]
    system: str
    load: float


def machine() -> MachineFacts:
    """Describe this machine as it is now."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    flags = set(instruction_sets())
    return MachineFacts(
        cpu=processor_name(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        flags=tuple(flag for flag in _FAST.split() if flag in flags),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
    )


def processor_name() -> str:
    """Return the processor's name for people, such as "AMD EPYC 9R14"."""
    if sys.platform == "darwin":  # where `platform` knows only the family, "arm"
        command = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return _cpuinfo("model name", "Hardware") or platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Return how much memory the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def process_bytes(pid: int) -> int:
    """Return how much memory a process takes; 0 if there is no such process.

    That is what is resident, or on a Mac its footprint, if that is larger: macOS counts the GPU's
    buffers, and what it has compressed, only there.
    """
    if sys.platform == "darwin":
        # struct rusage_info_v0 of <sys/resource.h>, the first 16 bytes of which are a UUID
        usage = (ctypes.c_uint64 * 12)()
        with suppress(OSError, AttributeError):
            if ctypes.CDLL("/usr/lib/libproc.dylib").proc_pid_rusage(pid, 0, usage) == 0:
                return max(usage[8:10])  # ri_resident_size, ri_phys_footprint
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    command = ("/bin/ps", "-o", "rss=", "-p", str(pid))  # in KiB
    with suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(done.stdout or 0) * 1024
    return 0


def instruction_sets() -> tuple[str, ...]:
    """Return the processor's feature flags as Linux lists them; empty on other systems."""
    return tuple(_cpuinfo("flags", "Features").split())


def _cpuinfo(*keys: str) -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in keys:
                return value.strip()
    return ""
