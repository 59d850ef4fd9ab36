"""How much memory a process has."""

import ctypes
import os
import struct
import subprocess
import sys
from mmap import PAGESIZE, mmap
from pathlib import Path
from types import SimpleNamespace

import pytest

from streamd.system import processor
from streamd.system.processor import memory_bytes, process_bytes


def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.mark.parametrize("has_proc", [True, False], ids=["Linux", "others"])
def test_what_a_process_takes_is_counted(monkeypatch, has_proc):
    if not has_proc:
        if not Path("/bin/ps").exists():
            pytest.skip("needs ps")
        monkeypatch.setattr("streamd.system.processor.Path", lambda name: Path("/nowhere") / "name")
    before = process_bytes(os.getpid())
    with mmap(-1, 64_000_000) as taken:  # an array could lie where memory was free before
        for page in range(0, len(taken), PAGESIZE):
            taken[page] = 1  # what is written at once may stay allocated besides
        assert 0.9 * len(taken) < process_bytes(os.getpid()) - before < 1.5 * len(taken)
    assert before < memory_bytes()
    assert process_bytes(ended()) == 0


@pytest.mark.parametrize("failed", [0, -1])
def test_what_the_gpu_holds_for_a_process_is_counted_on_a_mac(monkeypatch, failed):
    """Its footprint is a field of struct rusage_info_v0, in <sys/resource.h>."""
    fields = ("user", "system", "pkg_idle", "interrupts", "pageins", "wired", "resident")
    fields += ("footprint", "start", "exit")
    usage = struct.Struct("=16s10Q")

    def proc_pid_rusage(pid, flavor, buffer):
        values = {"footprint": 1 << 60} if not failed else {}
        assert (pid, flavor, len(bytes(buffer))) == (os.getpid(), 0, usage.size)
        usage.pack_into(buffer, 0, b"UUID", *(values.get(field, 0) for field in fields))
        return failed

    resident = process_bytes(os.getpid())
    library = SimpleNamespace(proc_pid_rusage=proc_pid_rusage)
    monkeypatch.setattr(ctypes, "CDLL", {"/usr/lib/libproc.dylib": library}.__getitem__)
    monkeypatch.setattr(sys, "platform", "darwin")
    used = process_bytes(os.getpid())
    assert used == 1 << 60 if not failed else used == pytest.approx(resident, rel=0.2)


def described(tmp_path, cores: dict[int, dict[str, str]], **files: str):
    """A folder like Linux's /sys: of each processor its files, and others by their names."""
    for n, about in cores.items():
        folder = tmp_path / f"devices/system/cpu/cpu{n}"
        (folder / "topology").mkdir(parents=True)
        for name, text in about.items():
            (folder / name).write_text(text)
    for name, text in files.items():
        path = tmp_path / {"atom": "devices/cpu_atom/cpus", "quota": "fs/cgroup/cpu.max"}[name]
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


TWINS = {n: {"topology/core_cpus_list": f"{n % 4},{n % 4 + 4}"} for n in range(8)}
PLAIN = {n: {} for n in range(8)}
ARM = {n: {"cpu_capacity": str(capacity)} for n, capacity in enumerate([300] * 4 + [1024, 900] * 2)}


@pytest.mark.parametrize(
    ("cores", "files", "n"),
    [
        (PLAIN, {}, 8),
        (TWINS, {}, 4),
        (TWINS, {"atom": "2-3,6-7\n"}, 2),
        (ARM, {}, 4),
        (PLAIN, {"quota": "250000 100000\n"}, 3),
        (PLAIN, {"quota": "max 100000\n"}, 8),
    ],
)
def test_threads_follow_the_fast_cores(monkeypatch, tmp_path, cores, files, n):
    monkeypatch.setattr(processor.sys, "platform", "linux")
    monkeypatch.setattr(processor.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert processor.fast_cores(described(tmp_path, cores, **files)) == n


def test_a_window_gets_two_to_four_threads(monkeypatch):
    monkeypatch.setattr(processor.os, "cpu_count", lambda: 8)
    for n_fast, n in ((1, 2), (3, 3), (16, 4)):
        monkeypatch.setattr(processor, "fast_cores", lambda n_fast=n_fast: n_fast)
        assert processor.usable_threads() == n
