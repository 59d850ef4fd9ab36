"""How much memory a process has."""

import os
import subprocess
from mmap import PAGESIZE, mmap
from pathlib import Path

import pytest

from streamd.system.processor import memory_bytes, resident_bytes


def ended() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.mark.parametrize("has_proc", [True, False], ids=["Linux", "others"])
def test_what_a_process_takes_is_in_its_resident_memory(monkeypatch, has_proc):
    if not has_proc:
        if not Path("/bin/ps").exists():
            pytest.skip("needs ps")
        monkeypatch.setattr("streamd.system.processor.Path", lambda name: Path("/nowhere") / "name")
    before = resident_bytes(os.getpid())
    with mmap(-1, 64_000_000) as taken:  # an array could lie where memory was free before
        for page in range(0, len(taken), PAGESIZE):
            taken[page] = 1  # what is written at once may stay allocated besides
        assert 0.9 * len(taken) < resident_bytes(os.getpid()) - before < 1.5 * len(taken)
    assert before < memory_bytes()
    assert resident_bytes(ended()) == 0
