"""What a process cannot do any more after it has confined itself."""

import subprocess
import sys

import pytest

TRY = """
import os, socket, sys
from streamd.system.sandbox import confine
taken, file = sys.argv[1], int(sys.argv[2])
print(confine(64 << 20), flush=True)
tries = {
    "open": lambda: os.open(taken, os.O_RDONLY),
    "write": lambda: os.write(file, b"x"),
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "fork": lambda: os.fork() or os._exit(0),
    "unlink": lambda: os.unlink(taken),
    "exec": lambda: os.execv(sys.executable, [sys.executable, "-c", "print('exec')"]),
    "memory": lambda: bytearray(65 << 20),
}
for name, call in tries.items():
    try:
        call()
    except (OSError, MemoryError):
        continue
    print(name)
"""
"""Prints what `confine` says is missing, and what is possible."""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are fewer limits")
def test_a_confined_process_can_only_compute(tmp_path):
    (taken := tmp_path / "taken").write_bytes(b"")
    with taken.open("wb") as file:
        command = (sys.executable, "-c", TRY, str(taken), str(file.fileno()))
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, pass_fds=[file.fileno()]
        )
    missing, *possible = done.stdout.splitlines()
    allowed = {"limits for root": {"fork"}, "Landlock": {"unlink", "exec"}}
    assert set(possible) <= {
        each for name, every in allowed.items() if name in missing for each in every
    }
    assert not taken.exists() or taken.read_bytes() == b""
