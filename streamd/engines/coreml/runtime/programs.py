"""Core ML by way of coremltools: placements, compiled packages, and a built model's functions, run.

Core ML compiles a package at each start into a folder that it deletes afterwards. Preparing that
for the Neural Engine takes minutes, and is cached by the compiled model's path. So packages are
compiled once, and stay under a path that does not change. Source: coremltools' guide, "Model
Prediction".

A *cache slot* holds the caches of one window's decoder, in Core ML's memory or in the host's. A
decoder's tokens lie in numbered *columns* of its self-attention cache.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import (
    LIBRARY,
    MASKED,
    BuiltModel,
    Form,
    Function,
    FunctionKind,
    Meta,
    TensorSpec,
    caches,
    coremltools,
    kept,
)
from streamd.models.silence import Extent
from streamd.system.disk import put_folder

Array = NDArray[np.float32]
State = Any
"""``coremltools.models.model.MLState``."""
Loaded = Any
"""A function that can be called: ``coremltools.models.CompiledMLModel``. States that it makes are
all zeros."""

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


@dataclass(frozen=True, slots=True)
class Placement:
    """The units that run encoder and decoder, and the form of the decoder's caches.

    With `single`, one function runs all passes of the decoder: with as many rows and columns as
    any, of which masks hide those that a pass does not use. It computes more, but less is in
    memory.
    """

    encoder: Unit
    decoder: Unit
    form: Form
    single: bool = False

    def unit(self, function: Function) -> Unit:
        """Return the unit that runs a function of the built model."""
        return self.encoder if function.kind in ("encode", "resume", "cross") else self.decoder

    def __str__(self) -> str:
        encoder, decoder = _UNIT_NAMES[self.encoder], _UNIT_NAMES[self.decoder]
        how = " without states" if (self.decoder, self.form) == ("gpu", "mix") else ""
        how += " in one function" if self.single else ""
        return f"encoder on the {encoder}, decoder on the {decoder}{how}"


PLACEMENTS: Mapping[Unit, tuple[Placement, ...]] = {
    "gpu": (
        Placement("gpu", "gpu", "state"),
        Placement("gpu", "gpu", "mix"),
        Placement("gpu", "gpu", "mix", single=True),
    ),
    "ane": (
        Placement("ane", "gpu", "state"),
        Placement("ane", "ane", "mix"),
        Placement("ane", "gpu", "mix", single=True),
    ),
}
"""The ways to use a unit, each only if those before it are refused: states that a graph writes fail
on some systems in ways that nobody sees (coremltools #2325, #2553), and some versions of macOS
reject them on the Neural Engine, where short passes of the decoder are often slower, too. Each
function is loaded as a model of its own (``CompiledMLModel``), and Core ML does not say whether one
takes a state that another made, as the first way needs; in the others no state is passed from one
function to another (`WindowCaches.state`)."""


def needed(built: BuiltModel, placement: Placement) -> tuple[Function, ...]:
    """Return the functions that run on a placement."""
    found = tuple(f for f in built.functions if placement.form in f.forms)
    if not placement.single:
        return found
    widest = max((f for f in found if f.kind == "step"), key=lambda f: (f.k, f.n_slots))
    return tuple(f for f in found if f.kind not in ("step", "align") or f is widest)


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


_OF_THE_WINDOW = ("cross_mask", "self_k", "self_v", "kept_k", "kept_v")
"""Inputs that belong to a window, not to a call."""


@dataclass(frozen=True, slots=True)
class Step:
    """A pass of at most `MAX_TOKENS` tokens over one window, as `Decoder.step` has them.

    `columns` are those of the cache that the tokens are written to; `visible` (k, n_columns) says
    which columns each token sees.
    """

    cache_slot: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    columns: NDArray[np.int64]
    visible: NDArray[np.bool_]
    want: NDArray[np.int64]


class Programs:
    """Runs the functions of a built model: encodes windows into cache slots, passes over them."""

    def __init__(
        self,
        built: BuiltModel,
        placement: Placement,
        library: Library,
        on_progress: Callable[[str], None],
    ) -> None:
        """Load functions with `load` next; `on_progress` gets a line for each long step."""
        self._built, self._form, self._placement = built, placement.form, placement
        self._library, self._on_progress = library, on_progress
        self._loaded: dict[Function, Loaded] = {}
        self._inputs: dict[Function, dict[str, Array]] = {}
        self._caches: dict[int, WindowCaches] = {}

    def load(self, functions: Iterable[Function], *, keep: bool) -> None:
        """Compile and load functions, one after the other.

        Without `keep` each is dropped before the next: what Core ML has prepared for a unit it
        finds again, and the peak is the memory of one. Those with states come first, since without
        a state that the host can write the others are of no use. Raises whatever Core ML raises, or
        `OSError` if files cannot be read or written.
        """
        functions = sorted(functions, key=lambda each: not each.states)
        self._library.compile(self._built, functions, self._on_progress)
        for n, function in enumerate(functions, 1):
            name = f"{function.package}, {function.name} ({n} of {len(functions)})"
            self._on_progress(f"loading {name}")
            unit = self._placement.unit(function)
            loaded = self._library.load(function, unit)
            if n == 1 and function.states:
                _write_state(loaded, function.states[-1])
            if keep:
                self._loaded[function], self._inputs[function] = loaded, new_inputs(function)
            del loaded

    def encode(self, cache_slot: int, mel: Array, extent: Extent, n_known: int) -> None:
        """Encode (n_mels, 2 * extent.n) log-mel into a cache slot.

        The window begins with the same `n_known` positions as the one that the slot has, which is
        dropped.
        """
        built = self._built
        if cache_slot not in self._caches:
            self._caches[cache_slot] = WindowCaches(built.meta, self._form)
        caches = self._caches[cache_slot]
        n_known = min(n_known, caches.n_kept)
        begin = built.resumed_at(extent, n_known)
        if begin is None:
            begin, n_known, n_ctx = 0, 0, built.context(extent.n)
            added, parts = built.encode_mask(extent), self._of("encode", n_ctx=n_ctx)
        else:
            n_ctx, added = 0, built.resume_mask(extent, begin, n_known)
            parts = self._of("resume")
        x = mel[:, 2 * begin :]
        for function in parts:  # a part of the encoder after the other
            inputs = self._inputs[function]
            first = inputs[function.inputs[0].name]
            first[..., x.shape[-1] :] = 0
            first[..., : x.shape[-1]] = x.reshape(first.shape[1], 1, -1)
            inputs["mask"][0, :, 0, 0] = added
            if "positions" in inputs:
                places = built.encoder_positions[begin : begin + function.k]
                inputs["positions"][0, :, 0, : len(places)] = places.T
            found = self._call(function, {**inputs, **caches.inputs(function)})
            caches.keep(function, found, begin, n_known)
            x = found["encoded"]
        new = {name: array[..., n_known - begin :] for name, array in self._cross(x, n_ctx).items()}
        n_silence = built.meta.n_silence if n_ctx < built.meta.dims.n_audio_ctx else 0
        if not n_ctx:
            new = {
                name: np.concatenate([array, self._silence[name]], axis=-1)
                for name, array in new.items()
            }
        caches.load(new, n_known, n_silence, built.cross_mask(extent))

    def step(self, step: Step) -> tuple[Array, Array]:
        """Run a pass: logits (m, n_vocab) of wanted tokens, alignment (k, n_heads, n_keys)."""
        caches, function = self._caches[step.cache_slot], choose(self._of("step", "align"), step)
        inputs = self._inputs[function]
        x = self._built.embedding[step.tokens].astype(np.float32)
        fill(inputs, function, step, x + self._built.positions[step.positions])
        state = caches.state(function, self._loaded[function].make_state)
        found = self._call(function, {**inputs, **caches.inputs(function)}, state)
        caches.store(found, step.columns)
        scores = found["alignment"][0, :, : len(step.tokens)]
        alignment = scores[..., caches.seen].swapaxes(0, 1)
        n_vocab = self._built.meta.dims.n_vocab
        if not len(step.want):
            return np.zeros((0, n_vocab), np.float32), alignment
        chunks = [found[name][0, :, 0] for name in function.logits]
        return np.concatenate(chunks, axis=-1)[step.want, :n_vocab], alignment

    def _cross(self, encoded: Array, n_ctx: int = 0) -> Mapping[str, Array]:
        """Return cross-attention's keys and values of an encoder's output."""
        (function,) = self._of("cross", n_ctx=n_ctx)
        inputs = self._inputs[function]
        inputs["encoded"][...] = encoded
        return self._call(function, inputs)

    @cached_property
    def _silence(self) -> Mapping[str, Array]:
        """Those of the states of silence, with padding, for windows that are resumed."""
        k, meta = self._built.meta.n_resumed, self._built.meta
        states = self._built.silence[-1].astype(np.float32).T[None, :, None, :]
        n_more = -(-meta.n_silence // k) * k - states.shape[3]
        states = np.pad(states, ((0, 0), (0, 0), (0, 0), (0, n_more)), mode="edge")
        found = [self._cross(part) for part in np.split(states, states.shape[3] // k, axis=3)]
        return {
            name: np.concatenate([each[name] for each in found], axis=-1)[..., : meta.n_silence]
            for name in found[0]
        }

    def _of(self, *kinds: FunctionKind, n_ctx: int = 0) -> tuple[Function, ...]:
        return tuple(f for f in self._loaded if f.kind in kinds and f.n_ctx == n_ctx)

    def _call(
        self, function: Function, inputs: Mapping[str, Array], state: State = None
    ) -> Mapping[str, Array]:
        found: Mapping[str, Array] = self._loaded[function].predict(dict(inputs), state)
        for name, values in found.items():
            if not np.isfinite(values).all():
                # It would stay in the caches, and all text after it would be nonsense.
                raise RuntimeError(f"{function.name} returned {name} with infinity or NaN")
        return found


class WindowCaches:
    """Keys and values of one window after the other.

    What an earlier window left is masked, so it need not be cleared. It is finite: `Programs` ends
    at the first result that is not. `seen` are the audio positions that the window attends to,
    `n_kept` says of how many of its first positions the encoder's keys and values are there.
    """

    def __init__(self, meta: Meta, form: Form) -> None:
        self.seen: NDArray[np.int64] = np.zeros(0, np.int64)
        self.n_kept = 0
        self._form = form
        # By function, or by "" where all of them have the same; and those that have this window.
        self._states: dict[str, State] = {}
        self._current: set[str] = set()
        self._cross_mask = np.full((1, 1, 1, meta.n_keys), MASKED, np.float32)
        self._cross = _arrays(caches(meta, "cross", meta.n_keys))
        # A function for a short cache reads a short array, so every size has its own copy.
        self._own = {
            n_slots: _arrays(caches(meta, "self", n_slots))
            for n_slots in (meta.slots(form) if form == "mix" else ())
        }
        self._kept = [
            _arrays(kept(meta, part, "kept", meta.n_kept)) if meta.n_kept else {}
            for part in range(len(meta.layers))
        ]

    def keep(
        self, function: Function, found: Mapping[str, Array], begin: int, n_known: int
    ) -> None:
        """Take what a part of the encoder computed of its keys and values from `begin` on.

        What is known of the first `n_known` positions stays.
        """
        self.n_kept = 0
        for name, cache in self._kept[function.part].items():
            axis = 3 if name == "kept_v" else 1
            if (new := found.get(name.replace("kept", "new"))) is not None:
                rows, place = np.moveaxis(new, axis, 0), np.moveaxis(cache, axis, 0)
                self.n_kept = min(begin + len(rows), len(place))
                place[n_known : self.n_kept] = rows[n_known - begin : self.n_kept - begin]

    def load(
        self, found: Mapping[str, Array], n_known: int, n_silence: int, cross_mask: Array
    ) -> None:
        """Start a window with what a "cross" computed of it from position `n_known` on.

        Of that the last `n_silence` are those of the states of silence.
        """
        self.seen = np.flatnonzero(cross_mask > MASKED)
        self._cross_mask[0, 0, 0] = cross_mask
        self._current.clear()
        for name, new in found.items():
            cache, n = self._cross[name], new.shape[-1] - n_silence
            cache[..., n_known : n_known + n] = new[..., :n]
            cache[..., cache.shape[-1] - n_silence :] = new[..., n:]

    def state(self, function: Function, make_state: Callable[[], State]) -> State:
        """Return the state for a pass, with the window's keys and values of cross-attention.

        Where graphs write states, all functions share one. Otherwise each has its own, which
        `make_state` makes and the host fills when a window first needs it: Core ML may refuse a
        state of another function.
        """
        owner = "" if self._form == "state" else function.name
        if owner not in self._states:
            self._states[owner] = make_state()
        state = self._states[owner]
        if owner not in self._current:
            for name, cache in self._cross.items():
                state.write_state(name, cache)
            self._current.add(owner)
        return state

    def inputs(self, function: Function) -> Mapping[str, Array]:
        """Return the caches that are inputs of a function."""
        if function.kind == "resume":
            return self._kept[function.part]
        if not function.k:
            return {}
        return {"cross_mask": self._cross_mask, **self._own.get(function.n_slots, {})}

    def store(self, found: Mapping[str, Array], columns: NDArray[np.int64]) -> None:
        """Write a pass's new columns into the host's caches; a graph writes its states itself."""
        k = len(columns)
        for n_slots, own in self._own.items():
            fits = columns < n_slots
            for part in "kv":
                new = found[f"new_{part}"][..., :k]
                own[f"self_{part}"][..., columns[fits]] = new[..., fits]


def _write_state(loaded: Loaded, tensor: TensorSpec) -> None:
    """Raise `RuntimeError` if Core ML does not let the host write a state of this function."""
    try:
        loaded.make_state().write_state(tensor.name, np.zeros(tensor.shape, np.float32))
    except RuntimeError as error:
        raise RuntimeError(f"a state cannot be written, which every way needs: {error}") from error


def _arrays(tensors: Iterable[TensorSpec]) -> dict[str, Array]:
    return {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in tensors}


# -- the inputs of a pass -------------------------------------------------------------------------


def new_inputs(function: Function) -> dict[str, Array]:
    """Make arrays for the inputs of a function that belong to a pass, to be filled for each one.

    Core ML releases its inputs later, in a thread of its own, without Python's lock: an array that
    nothing else references by then crashes the process (apple/coremltools #2827). These are kept.
    """
    return {
        tensor.name: np.zeros(tensor.shape, np.float32)
        for tensor in function.inputs
        if tensor.name not in _OF_THE_WINDOW
    }


def choose(loaded: tuple[Function, ...], step: Step) -> Function:
    """Return the smallest function that runs the pass: few tokens, a short cache, logits if wanted.

    `loaded` are "step" and "align" functions of the decoder's form.
    """
    k, seen = len(step.tokens), np.flatnonzero(step.visible.any(axis=0))
    n_columns = 1 + int(max(step.columns.max(), seen.max(initial=0)))
    fitting = [
        f
        for f in loaded
        if f.k >= k and f.n_slots >= n_columns and (f.kind == "step" or not len(step.want))
    ]
    return min(fitting, key=lambda f: (f.k, f.n_slots, f.kind == "step"))


def fill(inputs: Mapping[str, Array], function: Function, step: Step, x: Array) -> None:
    """Write the pass into the function's inputs; `x` is (k, n_state), embedded tokens.

    Unused rows are copies of the first: the layer norm of zeros, and a softmax over nothing but
    masked scores, may be no numbers. They are written nowhere.
    """
    k, n_slots = len(step.tokens), function.n_slots
    inputs["x"][0, :, 0, :k] = x.T
    inputs["x"][0, :, 0, k:] = x[:1].T
    mask, visible = inputs["mask"][0, 0], step.visible[:, :n_slots]
    if "put" in inputs:
        put = inputs["put"][0, 0]
        put[...] = 0
        put[np.arange(k), step.columns] = 1
        mask[:k] = _hide(visible)
        mask[k:] = mask[0]
        return
    in_cache = visible.copy()
    # The columns that this pass writes still hold old tokens in the host's cache. The new ones are
    # appended after the cache, so the mask looks for them there.
    in_cache[:, step.columns] = False
    mask[:k, :n_slots] = _hide(in_cache)
    mask[:k, n_slots : n_slots + k] = _hide(step.visible[:, step.columns])
    mask[:k, n_slots + k :] = MASKED
    mask[k:] = mask[0]


def _hide(visible: NDArray[np.bool_]) -> Array:
    return np.where(visible, np.float32(0), np.float32(MASKED))
