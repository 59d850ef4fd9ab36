"""What a measurement ran on, for people who compare: no names, no paths."""

import os
import platform
from pathlib import Path

import msgspec

_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimddp",
    "i8mm",
)
"""What decides how fast matrices of 8 or 16 bits are multiplied."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A processor: `flags` are those that matter here, `load` what ran besides, in cores."""

    cpu: str
    cores: int
    flags: tuple[str, ...]
    system: str
    load: float


def machine() -> Machine:
    """What we run on, now."""
    text = _cpuinfo()
    flags = set(_field(text, "flags", "Features").split())
    return Machine(
        cpu=_field(text, "model name", "Hardware") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        flags=tuple(flag for flag in _FLAGS if flag in flags),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
    )


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")  # Linux only; elsewhere nothing is known of the flags
    return path.read_text() if path.exists() else ""


def _field(text: str, *names: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""
