"""The processor that streamd runs on, as far as the operating system describes it."""

import platform
from contextlib import suppress
from pathlib import Path


def processor_name() -> str:
    """Return the processor's name for people, such as "AMD EPYC 9R14"."""
    return _cpuinfo("model name", "Hardware") or platform.processor() or platform.machine()


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
