"""What of a machine decides how a model runs on it best."""

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import onnxruntime


def processor() -> str:
    """The processor's name, for people."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


@cache
def machine() -> str:
    """A line that differs where another processor, or another ONNX Runtime, is at work."""
    features = _cpuinfo("flags") or _cpuinfo("Features")
    parts = (processor(), features, platform.machine(), os.cpu_count(), onnxruntime.__version__)
    return " ".join(map(str, parts))


def _cpuinfo(key: str) -> str:
    """A field of the first processor in Linux's list; empty elsewhere."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""
