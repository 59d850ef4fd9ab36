"""Core ML by way of coremltools: placements, compiled packages, and where Core ML runs what.

Core ML compiles a package at each start into a folder that it deletes afterwards. Preparing that
for the Neural Engine takes minutes, and is cached by the compiled model's path. So packages are
compiled once, and stay under a path that does not change. Source: coremltools' guide, "Model
Prediction".
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamd.disk import put_folder
from streamd.engine.coreml.package import (
    LIBRARY,
    MAX_TOKENS,
    BuiltModel,
    Form,
    Function,
    coremltools,
)

Array = NDArray[np.float32]
State = Any
"""``coremltools.models.model.MLState``."""
Loaded = Any
"""A function that can be called: ``coremltools.models.CompiledMLModel``. States that it makes are
all zeros, and all functions of the package can share them."""

Unit = Literal["ane", "gpu"]
"""The Neural Engine, or the graphics processor."""

_UNITS: dict[Unit, str] = {"ane": "CPU_AND_NE", "gpu": "CPU_AND_GPU"}
"""Their names in ``coremltools.ComputeUnit``; the CPU runs what the other one cannot."""
_UNIT_NAMES: dict[Unit, str] = {"ane": "Neural Engine", "gpu": "GPU"}
_DEVICES = {
    "MLCPUComputeDevice": "CPU",
    "MLGPUComputeDevice": "GPU",
    "MLNeuralEngineComputeDevice": "Neural Engine",
}
_FIRST_STEPS = (1, MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class Placement:
    """The units that run encoder and decoder, and the form of the decoder's caches."""

    encoder: Unit
    decoder: Unit
    form: Form

    def unit(self, function: Function) -> Unit:
        """Return the unit that runs a function of the built model."""
        return self.encoder if function.kind in ("encode", "cross") else self.decoder

    def __str__(self) -> str:
        encoder, decoder = _UNIT_NAMES[self.encoder], _UNIT_NAMES[self.decoder]
        without = " without states" if (self.encoder, self.form) == ("gpu", "mix") else ""
        return f"encoder on the {encoder}, decoder on the {decoder}{without}"


ON_GPU = (Placement("gpu", "gpu", "state"), Placement("gpu", "gpu", "mix"))
"""All on the GPU, which loads within seconds; the second only if the first is refused, since states
that a graph writes fail on some systems in ways that nobody sees (coremltools #2325, #2553)."""
ON_NEURAL_ENGINE = (Placement("ane", "gpu", "state"), Placement("ane", "ane", "mix"))
"""The ways to use the Neural Engine that are worth a trial. Short passes of the decoder are often
faster on the GPU, and some versions of macOS reject graphs with states on the Neural Engine."""


def at_first(built: BuiltModel, form: Form) -> tuple[Function, ...]:
    """Return the functions that suffice for short windows: one context, and steps of one and 32.

    The others are loaded while these serve.
    """
    n_ctx, n_slots = built.meta.contexts[0], built.meta.slots(form)[0]
    return tuple(
        f
        for f in of_form(built, form)
        if f.n_ctx == n_ctx or (f.kind == "step" and f.k in _FIRST_STEPS and f.n_slots == n_slots)
    )


def of_form(built: BuiltModel, form: Form) -> tuple[Function, ...]:
    """Return the functions that a placement of this form needs."""
    return tuple(f for f in built.functions if form in f.forms)


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that run one function of a package.

    `shares` are parts of the estimated work by device, the largest first; `operations` counts the
    kinds of operations by device. Both are empty if Core ML has no plan.
    """

    package: str
    function: str
    shares: dict[str, float] = field(default_factory=dict)
    operations: dict[str, Counter[str]] = field(default_factory=dict)


class Library:
    """coremltools, or in tests a module that replaces it."""

    def __init__(self, name: str, compiled: Path) -> None:
        """`compiled`: the folder for the compiled packages of one built model."""
        self._module: ModuleType = coremltools() if name == LIBRARY else import_module(name)
        self._compiled = compiled

    def compile(
        self, built: BuiltModel, functions: Iterable[Function], on_progress: Callable[[str], None]
    ) -> None:
        """Compile what is not compiled yet. Raises `OSError`, or whatever Core ML raises."""
        packages = sorted({built.folder / function.package for function in functions})
        missing = [path for path in packages if not self._compiled_path(path).is_dir()]
        for n, path in enumerate(missing, 1):
            on_progress(f"compiling {path.name} ({n} of {len(missing)})")
            put_folder(self._compiled_path(path), partial(self._compile, path))

    def load(self, function: Function, unit: Unit) -> Loaded:
        """Load a function whose package is compiled. Raises whatever Core ML raises."""
        return self._module.models.CompiledMLModel(
            str(self._compiled_path(Path(function.package))),
            compute_units=self._module.ComputeUnit[_UNITS[unit]],
            function_name=function.name,
        )

    def plan(self, package: Path, unit: Unit) -> dict[str, Devices]:
        """Return the devices of each function. Raises `RuntimeError` if Core ML has no plan."""
        plan = self._module.models.compute_plan.MLComputePlan.load_from_path(
            str(self._compiled_path(package)), compute_units=self._module.ComputeUnit[_UNITS[unit]]
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
            found[name] = Devices(package.name, name, shares, kinds)
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
