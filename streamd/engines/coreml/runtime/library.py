"""Core ML by way of coremltools: compiled packages, and the functions in them.

Core ML compiles a package at each start into a folder that it deletes afterwards. Preparing that
for the Neural Engine takes minutes, and is cached by the compiled model's path. So packages are
compiled once, and stay under a path that does not change. Source: coremltools' guide, "Model
Prediction". What was compiled is kept for one built model, one build of macOS and one chip: another
system may compile differently, or reject what the last one accepted.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from streamd.engines.coreml.package import LIBRARY, META, BuiltModel, Function, coremltools
from streamd.errors import ModelError
from streamd.system.disk import discard, put_folder
from streamd.system.processor import processor_name

Loaded = Any
"""A function that can be called: ``coremltools.models.CompiledMLModel``."""

_UNIT = "CPU_AND_NE"
"""Of ``coremltools.ComputeUnit``: the CPU runs what the Neural Engine cannot."""
_DEVICES = {
    "MLCPUComputeDevice": "CPU",
    "MLGPUComputeDevice": "GPU",
    "MLNeuralEngineComputeDevice": "Neural Engine",
}
_COMPILED = "compiled-"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that run one function of a package.

    `shares` are parts of the estimated work by device, the largest first; `operations` counts the
    kinds of operations by device. Both are empty if Core ML has no plan.
    """

    shares: dict[str, float] = field(default_factory=dict)
    operations: dict[str, Counter[str]] = field(default_factory=dict)


class Library:
    """coremltools, or in tests a module that replaces it, for one built model."""

    def __init__(self, name: str, built: BuiltModel, compiled: Path) -> None:
        """`compiled`: the folder for the compiled packages."""
        self._module: ModuleType = coremltools() if name == LIBRARY else import_module(name)
        self._built, self._compiled = built, compiled

    def compile(self, on_progress: Callable[[str], None]) -> None:
        """Compile what is not compiled yet. Raises `OSError`, or whatever Core ML raises."""
        packages = sorted({self._built.folder / each.package for each in self._built.functions})
        missing = [path for path in packages if not self._compiled_path(path).is_dir()]
        for n, path in enumerate(missing, 1):
            on_progress(f"compiling {path.name} ({n} of {len(missing)})")
            put_folder(self._compiled_path(path), partial(self._compile, path))

    def load(self, function: Function) -> Loaded:
        """Load a function whose package is compiled. Raises whatever Core ML raises."""
        return self._module.models.CompiledMLModel(
            str(self._compiled_path(Path(function.package))),
            compute_units=self._module.ComputeUnit[_UNIT],
            function_name=function.name,
        )

    def plan(self, package: str) -> dict[str, Devices]:
        """Return the devices of each function. Raises `RuntimeError` if Core ML has no plan."""
        plan = self._module.models.compute_plan.MLComputePlan.load_from_path(
            str(self._compiled_path(Path(package))), compute_units=self._module.ComputeUnit[_UNIT]
        )
        found = {}
        for name, function in plan.model_structure.program.functions.items():
            work: dict[str, float] = {}
            kinds: dict[str, Counter[str]] = {}
            for operation in function.block.operations:
                usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
                cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
                if usage is not None:  # constants have no device
                    device = _DEVICES[type(usage.preferred_compute_device).__name__]
                    work[device] = work.get(device, 0.0) + (cost.weight if cost else 0.0)
                    kinds.setdefault(device, Counter())[operation.operator_name] += 1
            total = sum(work.values())
            largest_first = sorted(work.items(), key=lambda item: -item[1])
            shares = {device: part / total for device, part in largest_first if total}
            found[name] = Devices(shares, kinds)
        return found

    def _compiled_path(self, package: Path) -> Path:
        return self._compiled / f"{package.stem}.mlmodelc"

    def _compile(self, package: Path, new: Path) -> None:
        """Fill the empty folder `new` with the compiled package."""
        target = new / package.with_suffix(".mlmodelc").name
        self._module.models.utils.compile_model(str(package), str(target))
        for part in list(target.iterdir()):
            part.rename(new / part.name)
        shutil.rmtree(target)


def compiled_folder(built: BuiltModel) -> Path:
    """Return the folder, beside the built model, for what is compiled of it on this machine."""
    parts = ((built.folder / META).read_bytes().hex(), *machine())
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return built.folder.with_name(f"{_COMPILED}{built.folder.name}-{key}")


def make_compiled_folder(built: BuiltModel) -> Path:
    """Return it, created; delete those of earlier systems. Raises `ModelError` if it cannot be."""
    folder = compiled_folder(built)
    if not folder.is_dir():
        for old in folder.parent.glob(f"{_COMPILED}{built.folder.name}-*"):
            discard(old)
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise ModelError(f"{folder.parent} cannot be written ({error.strerror})") from error
    return folder


@cache
def machine() -> tuple[str, str]:
    """Return the chip and the build of the system."""
    if sys.platform != "darwin":
        return processor_name(), platform.version()
    command = ("/usr/bin/sw_vers", "-buildVersion")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return processor_name(), done.stdout.strip()
