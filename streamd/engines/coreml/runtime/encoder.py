"""A built encoder, run by Core ML: what a worker loads, and what it keeps of each window.

Core ML compiles a package at each start into a folder that it deletes afterwards. Preparing that
for the Neural Engine takes minutes, and is cached by the compiled model's path. So packages are
compiled once, and stay under a path that does not change. Source: coremltools' guide, "Model
Prediction". What was compiled is kept for one built model, one build of the system and one chip:
another may compile differently, or reject what the last one accepted.
"""

import hashlib
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import (
    LIBRARY,
    META,
    POSITIONS,
    BuiltModel,
    Function,
    Meta,
    Shapes,
    coremltools,
    kept,
)
from streamd.errors import ModelError
from streamd.models.silence import Extent
from streamd.system.disk import discard, put_folder
from streamd.system.processor import processor_name
from streamd.types import Mel

Array = NDArray[np.float32]
Devices = dict[str, tuple[float, Counter[str]]]
"""By device, the largest share first: its part of the estimated work of a function, and how many
operations of each kind it runs. Empty if Core ML has no plan."""

_N_WINDOWS = 4
"""Windows that are kept at a time; a further one takes the place of the oldest."""
_UNIT = "CPU_AND_NE"
"""Of ``coremltools.ComputeUnit``: the CPU runs what the Neural Engine cannot."""
_DEVICES = {
    "MLCPUComputeDevice": "CPU",
    "MLGPUComputeDevice": "GPU",
    "MLNeuralEngineComputeDevice": "Neural Engine",
}
_COMPILED = "compiled-"


class CoreMLEncoder:
    """Runs the functions of a built model.

    Windows have numbers, under which the keys and values of their first positions are kept for the
    window that goes on from there.
    """

    def __init__(
        self, built: BuiltModel, compiled: Path, library: str, report: Callable[[str], None]
    ) -> None:
        """`compiled`: the folder for compiled packages; `library`: coremltools, but in tests.

        `report` gets a line for each long step; `load` comes next.
        """
        self._built, self._compiled, self._report = built, compiled, report
        self._library = coremltools() if library == LIBRARY else import_module(library)
        self._positions = np.load(built.folder / POSITIONS, mmap_mode="r")
        self._unit = self._library.ComputeUnit[_UNIT]
        # Core ML releases the inputs of a call later, in a thread of its own, without Python's
        # lock: an array that nothing else references by then crashes the process
        # (apple/coremltools #2827). So all are kept, and filled for each call.
        self._loaded: list[tuple[Function, Any, dict[str, Array]]] = []
        self._windows: dict[int | None, _KeptStates] = {}
        self._free = [_KeptStates(built.meta) for _ in range(_N_WINDOWS)]

    def load(self, keep: bool = True) -> None:
        """Compile and load every function. Raises whatever Core ML raises, or `OSError`.

        Without `keep` each is dropped before the next: what Core ML has prepared for the Neural
        Engine it finds again, and the peak is the memory of one.
        """
        for package in dict.fromkeys(each.package for each in self._built.functions):
            if not self._path(package).is_dir():
                self._report(f"compiling {package}")
                put_folder(self._path(package), partial(self._compile, package))
        for function in self._built.functions:
            self._report(f"loading {function.package}, {function.name}")
            loaded = self._library.models.CompiledMLModel(
                str(self._path(function.package)),
                compute_units=self._unit,
                function_name=function.name,
            )
            if keep:
                own = {name: of for name, of in function.inputs.items() if "kept" not in name}
                self._loaded.append((function, loaded, _arrays(own)))
            del loaded

    def plan(self, package: str) -> dict[str, Devices]:
        """Return the devices of each function. Raises `RuntimeError` if Core ML has no plan."""
        plan = self._library.models.compute_plan.MLComputePlan.load_from_path(
            str(self._path(package)), compute_units=self._unit
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
            total, order = sum(work.values()), sorted(work, key=lambda device: -work[device])
            found[name] = {each: (work[each] / total, kinds[each]) for each in order if total}
        return found

    def _path(self, package: str) -> Path:
        return self._compiled / Path(package).with_suffix(".mlmodelc")

    def _compile(self, package: str, new: Path) -> None:
        """Fill the empty folder `new` with the compiled package."""
        target = new / self._path(package).name
        self._library.models.utils.compile_model(str(self._built.folder / package), str(target))
        for part in list(target.iterdir()):
            part.rename(new / part.name)
        target.rmdir()

    def encode(
        self,
        number: int,
        mel: Mel,
        extent: Extent,
        previous: int | None,
        n_reused: int,
        dropped: Iterable[int] = (),
    ) -> NDArray[np.float16]:
        """Encode log-mel (n_mels, 2 * extent.n) of a window that gets a number.

        It begins with `n_reused` positions of the window `previous`, of which what was kept becomes
        its own. The windows `dropped` are over. Returns the output (n, n_state) of the last n
        positions: of those behind the ones reused, or of more where less of them is known.
        """
        window = self._taken(previous, dropped)
        n_ctx, begin, n_known, mask = self._built.call(extent, min(n_reused, window.n_kept))
        x = mel[:, 2 * begin :]
        for function, loaded, inputs in self._loaded:  # a part of the encoder after the other
            if function.n_ctx == n_ctx:
                first = inputs["hidden" if function.part else "mel"]
                first[..., x.shape[-1] :] = 0
                first[..., : x.shape[-1]] = x.reshape(first.shape[1], 1, -1)
                inputs["mask"][0, :, 0, 0] = mask
                if function.part == 0:
                    places = self._positions[begin : begin + function.width]
                    inputs["positions"][0, :, 0, : len(places)] = places.T
                given = {**inputs, **({} if n_ctx else window.kept[function.part])}
                found = loaded.predict(given)
                if not all(np.isfinite(each).all() for each in found.values()):
                    # It would be kept, and all text after it would be nonsense.
                    raise RuntimeError(f"{function.name} returned infinity or NaN")
                window.n_kept = window.keep(function, found, begin, n_known)
                x = found["encoded"]
        self._windows[number] = window
        return x[0, :, 0, n_known - begin : extent.n - begin].T.astype(np.float16)

    def _taken(self, previous: int | None, dropped: Iterable[int]) -> "_KeptStates":
        """Take out what was kept of `previous`, or else memory of which nothing is known."""
        window = self._windows.pop(previous, None)
        self._free += [self._windows.pop(each) for each in dropped if each in self._windows]
        if window is None:
            oldest = next(iter(self._windows), None)
            window = self._free.pop() if self._free else self._windows.pop(oldest)
            window.n_kept = 0
        return window


class _KeptStates:
    """Keys and values of one window after the other, of each part of the encoder.

    `n_kept` says of how many of a window's first positions they are there. What an earlier window
    left behind them is masked, so it need not be cleared.
    """

    def __init__(self, meta: Meta) -> None:
        self.n_kept = 0
        self.kept = [_arrays(kept(meta, i, "kept", meta.n_kept)) for i in range(len(meta.layers))]

    def keep(self, function: Function, found: Mapping[str, Array], begin: int, n_known: int) -> int:
        """Take what a function computed from `begin` on; return how many positions there are.

        What is known of the first `n_known` positions stays.
        """
        n_kept = 0
        for name, axis in (("k", 1), ("v", 3)):
            if (new := found.get(f"new_{name}")) is not None:
                place = np.moveaxis(self.kept[function.part][f"kept_{name}"], axis, 0)
                n_kept = min(begin + new.shape[axis], len(place))
                rows = np.moveaxis(new, axis, 0)
                place[n_known:n_kept] = rows[n_known - begin : n_kept - begin]
        return n_kept


def _arrays(shapes: Shapes) -> dict[str, Array]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def compiled_folder(built: BuiltModel) -> Path:
    """Return the folder, beside the built model, for what is compiled of it on this machine."""
    known = (built.folder / META).read_bytes(), processor_name(), platform.version()
    key = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
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
