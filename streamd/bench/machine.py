"""The machine that a measurement ran on, without names and paths."""

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
"""Instruction sets that decide how fast matrices of 8 or 16 bits are multiplied."""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A processor with those of `_FLAGS` that it has; `load` is what ran besides, in cores."""

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
        flags=tuple(flag for flag in _FLAGS if flag in flags),
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        load=round(os.getloadavg()[0], 1),
    )
