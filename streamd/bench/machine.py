"""What a measurement ran on, for people who compare: no names, no paths."""

import os
import platform

import msgspec

from streamd.processor import instruction_sets, processor_name

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
    flags = set(instruction_sets())
    return Machine(
        cpu=processor_name(),
        cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        flags=tuple(flag for flag in _FLAGS if flag in flags),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
    )
