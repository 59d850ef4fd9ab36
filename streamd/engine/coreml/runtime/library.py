"""Core ML by way of coremltools, in the worker: packages are compiled once and loaded from there.

Core ML compiles a package at each start into a folder that it throws away; and what it makes of a
compiled model for the Neural Engine, which takes minutes, it keeps by the model's path. So compiled
models stay, under a path that does not change. Source: coremltools' guide, "Model Prediction".
"""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamd.engine.coreml.built import Built
from streamd.engine.coreml.package import Function
from streamd.engine.coreml.runtime.placement import UNITS, Unit
from streamd.engine.coreml.tools import coremltools
from streamd.engine.prepared.folder import put_folder

Array = NDArray[np.float32]
State = Any
"""``coremltools.models.model.MLState``."""


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
        self._module: ModuleType = (
            coremltools() if name == coremltools.__name__ else import_module(name)
        )
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

    def _place(self, package: Path) -> Path:
        return self._compiled / f"{package.stem}.mlmodelc"

    def _compile(self, package: Path, new: Path) -> None:
        """Fill the empty folder `new` with the compiled package."""
        target = new / package.with_suffix(".mlmodelc").name
        self._module.models.utils.compile_model(str(package), str(target))
        for part in list(target.iterdir()):
            part.rename(new / part.name)
        shutil.rmtree(target)
