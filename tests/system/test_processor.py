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
