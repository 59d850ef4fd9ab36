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
        return _sysctl("machdep.cpu.brand_string") or platform.processor()
    return _cpuinfo("model name", "Hardware") or platform.processor() or platform.machine()


_MOST_THREADS = 4
"""More threads for one window have never been measured; faster-whisper and whisper.cpp take four.
By CPU time, two take 1.06 (large-v3-turbo) to 1.2 times (tiny) of what one does."""


def usable_threads() -> int:
    """Return how many threads a window gets on this machine: one for each fast core, four at most.

    Threads of slower cores would hold up the others, which wait for them in each operation.
    """
    return min(_MOST_THREADS, max(fast_cores(), min(2, os.cpu_count() or 1)))


def fast_cores(system: Path = Path("/sys")) -> int:
    """Return the number of performance cores that this process may use, two threads of a core once.

    `system` is where Linux describes its processors; a container's limit of CPU time counts, too.
    """
    if sys.platform == "darwin":
        for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
            if (told := _sysctl(name)).isdecimal():
                return int(told)
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    usable = sorted(affinity(0)) if affinity else range(os.cpu_count() or 1)
    folders = {n: system / f"devices/system/cpu/cpu{n}" for n in usable}
    # Of Arm's and recent Intel's hybrids; 0 where all are alike.
    capacities = {n: int(_read(folders[n] / "cpu_capacity") or 0) for n in usable}
    fast = [n for n in usable if capacities[n] >= _FAST_SHARE * max(capacities.values())]
    if slow := _read(system / "devices/cpu_atom/cpus"):  # of Intel's hybrids before Linux 6.12
        fast = [n for n in fast if n not in _numbers(slow)] or fast
    cores = {_read(folders[n] / "topology/core_cpus_list") or str(n) for n in fast}
    quota, _, period = _read(system / "fs/cgroup/cpu.max").partition(" ")
    most = -(-int(quota) // int(period)) if quota.isdecimal() and period else len(cores)
    return max(1, min(len(cores), most))


_FAST_SHARE = 0.7
"""Of the fastest core's capacity, from which on a core is taken for fast; chosen, not measured."""


def _sysctl(name: str) -> str:
    """Return what macOS says of itself, or nothing."""
    command = ("/usr/sbin/sysctl", "-n", name)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def _numbers(ranges: str) -> set[int]:
    """Return the numbers in a list as Linux writes it, such as "16-23,30"."""
    bounds = (each.partition("-") for each in ranges.split(","))
    return {n for low, _, high in bounds for n in range(int(low), int(high or low) + 1)}


def memory_bytes() -> int:
    """Return how much memory the machine has, or a container may take."""
    limit = _read(Path("/sys/fs/cgroup/memory.max"))
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(has, int(limit)) if limit.isdecimal() else has


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
