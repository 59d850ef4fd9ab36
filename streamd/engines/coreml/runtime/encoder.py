"""A built encoder, run: what a worker loads, and what it keeps of each window.

Windows have numbers, under which the keys and values of their first positions are kept for the
window that goes on from there.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import BuiltModel, Function, Meta, TensorSpec, kept
from streamd.engines.coreml.runtime.library import Devices, Library, Loaded
from streamd.models.silence import Extent
from streamd.types import Mel

Array = NDArray[np.float32]
Report = Callable[[str], None]

_N_WINDOWS = 4
"""Windows that are kept at a time; a further one takes the place of the oldest."""


class CoreMLEncoder:
    """Runs the functions of a built model."""

    def __init__(self, built: BuiltModel, compiled: Path, library: str, report: Report) -> None:
        """`report` gets a line for each long step; load with `load`, or have `prepare` compile."""
        self._built, self._report = built, report
        self._library = Library(library, built, compiled)
        self._loaded: dict[Function, Loaded] = {}
        self._inputs: dict[Function, dict[str, Array]] = {}
        self._windows: dict[int | None, _KeptStates] = {}
        self._free: list[_KeptStates] = []

    def prepare(self) -> None:
        """Have Core ML compile every function, one at a time: the peak is the memory of one.

        What it has prepared for the Neural Engine it finds again. Raises whatever Core ML raises,
        or `OSError`.
        """
        self._library.compile(self._report)
        for n, function in enumerate(self._built.functions, 1):
            name = f"{function.package}, {function.name} ({n} of {len(self._built.functions)})"
            self._report(f"loading {name}")
            self._library.load(function)

    def load(self) -> None:
        """Compile and load every function. Raises whatever Core ML raises, or `OSError`."""
        self._library.compile(self._report)
        for function in self._built.functions:
            self._report(f"loading {function.package}, {function.name}")
            self._loaded[function] = self._library.load(function)
            self._inputs[function] = _own_inputs(function)

    def plan(self, package: str) -> dict[str, Devices]:
        """Return the devices of each function. Raises `RuntimeError` if Core ML has no plan."""
        return self._library.plan(package)

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
        n_known = min(n_reused, window.n_kept)
        begin = self._built.resumed_at(extent, n_known)
        if begin is None:
            begin, n_known, n_ctx = 0, 0, self._built.context(extent.n)
            added = self._built.encode_mask(extent)
        else:
            n_ctx, added = 0, self._built.resume_mask(extent, begin, n_known)
        x = mel[:, 2 * begin :]
        n_kept = 0
        for function in (each for each in self._loaded if each.n_ctx == n_ctx):
            # a part of the encoder after the other
            inputs = self._inputs[function]
            first = inputs[function.inputs[0].name]
            first[..., x.shape[-1] :] = 0
            first[..., : x.shape[-1]] = x.reshape(first.shape[1], 1, -1)
            inputs["mask"][0, :, 0, 0] = added
            if "positions" in inputs:
                places = self._built.positions[begin : begin + function.width]
                inputs["positions"][0, :, 0, : len(places)] = places.T
            found = self._call(function, {**inputs, **window.inputs(function)})
            n_kept = window.keep(function, found, begin, n_known)
            x = found["encoded"]
        window.n_kept = n_kept
        self._windows[number] = window
        return x[0, :, 0, n_known - begin : extent.n - begin].T.astype(np.float16)

    def _taken(self, previous: int | None, dropped: Iterable[int]) -> "_KeptStates":
        """Take out what was kept of `previous`, or else memory of which nothing is known.

        It is never freed, for the reason that `_own_inputs` gives.
        """
        taken = self._windows.pop(previous, None)
        self._free += [self._windows.pop(each) for each in dropped if each in self._windows]
        if taken is not None:
            return taken
        if not self._free and len(self._windows) == _N_WINDOWS:
            self._free.append(self._windows.pop(next(iter(self._windows))))
        window = self._free.pop() if self._free else _KeptStates(self._built.meta)
        window.n_kept = 0
        return window

    def _call(self, function: Function, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found: Mapping[str, Array] = self._loaded[function].predict(dict(inputs))
        for name, values in found.items():
            if not np.isfinite(values).all():
                # It would be kept, and all text after it would be nonsense.
                raise RuntimeError(f"{function.name} returned {name} with infinity or NaN")
        return found


class _KeptStates:
    """Keys and values of one window after the other, of each part of the encoder.

    `n_kept` says of how many of a window's first positions they are there. What an earlier window
    left behind them is masked, so it need not be cleared.
    """

    def __init__(self, meta: Meta) -> None:
        self.n_kept = 0
        self._kept = [
            _arrays(kept(meta, part, "kept", meta.n_kept)) if meta.n_kept else {}
            for part in range(len(meta.layers))
        ]

    def inputs(self, function: Function) -> Mapping[str, Array]:
        """Return what is an input of a function."""
        return self._kept[function.part] if function.kind == "resume" else {}

    def keep(self, function: Function, found: Mapping[str, Array], begin: int, n_known: int) -> int:
        """Take what a function computed from `begin` on; return how many positions there are.

        What is known of the first `n_known` positions stays.
        """
        n_kept = 0
        for name, cache in self._kept[function.part].items():
            axis = 3 if name == "kept_v" else 1
            if (new := found.get(name.replace("kept", "new"))) is not None:
                rows, place = np.moveaxis(new, axis, 0), np.moveaxis(cache, axis, 0)
                n_kept = min(begin + len(rows), len(place))
                place[n_known:n_kept] = rows[n_known - begin : n_kept - begin]
        return n_kept


def _arrays(tensors: Iterable[TensorSpec]) -> dict[str, Array]:
    return {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in tensors}


def _own_inputs(function: Function) -> dict[str, Array]:
    """Make arrays for the inputs of a function that belong to a call, to be filled for each one.

    Core ML releases its inputs later, in a thread of its own, without Python's lock: an array that
    nothing else references by then crashes the process (apple/coremltools #2827). These are kept.
    """
    return _arrays(each for each in function.inputs if not each.name.startswith("kept"))
