"""Core ML by way of coremltools, in the worker: packages are compiled once and loaded from there.

Core ML compiles a package at each start into a folder that it throws away; and what it makes of a
compiled model for the Neural Engine, which takes minutes, it keeps by the model's path. So compiled
models stay, under a path that does not change. Source: coremltools' guide, "Model Prediction".
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.disk import put_folder
from streamd.engine.coreml.built import Built
from streamd.engine.coreml.package import Function
from streamd.engine.coreml.runtime.placement import UNITS, Unit
from streamd.engine.coreml.tools import LIBRARY, coremltools

Array = NDArray[np.float32]
State = Any
"""``coremltools.models.model.MLState``."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One of a function's operations: its kind, where it is to run, its part of the work."""

    kind: str
    device: str
    work: float


_DEVICES = {
    "MLCPUComputeDevice": "CPU",
    "MLGPUComputeDevice": "GPU",
    "MLNeuralEngineComputeDevice": "Neural Engine",
}


class Loaded(Protocol):
    """A function that can be called: ``coremltools.models.CompiledMLModel``."""

    def predict(self, data: dict[str, Array], state: State = None) -> Mapping[str, Array]:
        """Compute the outputs. Raises `RuntimeError` if Core ML fails."""
        ...

    def make_state(self) -> State:
        """New states, all zeros, which all functions of the package can share."""
        ...


class Library:
    """coremltools, or in tests a module that takes its place."""

    def __init__(self, name: str, compiled: Path) -> None:
        """`compiled`: the folder for the compiled packages of one built model."""
        self._module: ModuleType = coremltools() if name == LIBRARY else import_module(name)
        self._compiled = compiled

    def compile(self, built: Built, functions: list[Function], told: Callable[[str], None]) -> None:
        """Compile the packages with these functions, unless that was done before.

        Raises
        ------
        OSError
            The compiled models cannot be kept.
        RuntimeError
            Core ML refuses a package.
        """
        packages = sorted({built.path(function) for function in functions})
        missing = [path for path in packages if not self._place(path).is_dir()]
        for n, path in enumerate(missing, 1):
            told(f"compiling {path.name} ({n} of {len(missing)})")
            put_folder(self._place(path), partial(self._compile, path))

    def load(self, package: Path, function: str, unit: Unit) -> Loaded:
        """Load a function of a compiled package. Raises `RuntimeError` if Core ML refuses it."""
        loaded: Loaded = self._module.models.CompiledMLModel(
            str(self._place(package)),
            compute_units=self._module.ComputeUnit[UNITS[unit]],
            function_name=None if function == "main" else function,
        )
        return loaded

    def plan(self, package: Path, unit: Unit) -> dict[str, list[Operation]]:
        """Where Core ML means to run what, in each function of a compiled package.

        Raises
        ------
        RuntimeError
            It does not tell.
        """
        plan = self._module.models.compute_plan.MLComputePlan.load_from_path(
            str(self._place(package)), compute_units=self._module.ComputeUnit[UNITS[unit]]
        )
        program = plan.model_structure.program
        found: dict[str, list[Operation]] = {}
        for name, function in program.functions.items():
            found[name] = operations = []
            for operation in function.block.operations:
                usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
                cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
                if usage is not None:  # constants run nowhere
                    device = _DEVICES[type(usage.preferred_compute_device).__name__]
                    work = 0.0 if cost is None else cost.weight
                    operations.append(Operation(operation.operator_name, device, work))
        return found

    def _place(self, package: Path) -> Path:
        return self._compiled / f"{package.stem}.mlmodelc"

    def _compile(self, package: Path, new: Path) -> None:
        """Fill the empty folder `new` with the compiled package."""
        target = new / package.with_suffix(".mlmodelc").name
        self._module.models.utils.compile_model(str(package), str(target))
        for part in list(target.iterdir()):
            part.rename(new / part.name)
        shutil.rmtree(target)
