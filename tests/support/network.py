"""A network namespace of its own, for programs that listen on other addresses than loopback."""

import shutil
import subprocess
from pathlib import Path

import pytest

ADDRESS = "192.0.2.7"
"""Of the machine in its network, if it is in one."""
_JOIN = (
    f"ip link set lo up && ip addr add {ADDRESS}/24 dev lo && ip route add default dev lo"
    f' src {ADDRESS} && exec "$@"'
)


def isolated(*command: str, joined: bool = True) -> list[str]:
    """The command that runs `command` there; the test is skipped where that is not possible."""
    alone = ["unshare", "--map-root-user", "--net"]
    if joined:
        alone += ["sh", "-c", _JOIN, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"]).returncode:
        pytest.skip("needs unshare, ip, and the right to make a network namespace")
    return [*alone, *command]


def run_isolated(*command: str, joined: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command there, in the root of the repository."""
    root = Path(__file__).parents[2]
    return subprocess.run(
        isolated(*command, joined=joined), cwd=root, capture_output=True, text=True, check=False
    )
