"""An encoder built for Core ML: its packages, their functions, its other files; reading one.

A built encoder is a folder::

    meta.json                    `Meta`: of which model, which contexts and compression
    positions.npy                (n_audio_ctx, n_state) float16, mapped, if `Meta.n_resumed`
    silence.npy                  `SilenceStates`, if the model has them
    golden.npz                   `GoldenWindow`: speech as the float32 reference encodes it with
                                 what the packages hold
    encoder.mlpackage            or encoder_1of16.mlpackage ...: the encoder, in parts

Everything follows from `Meta`: the builder writes what `functions` lists, the runtime looks there
for what it needs, the tests compare the saved packages with it. All tensors are float16 inside Core
ML; its Python binding takes and returns float32. Reading a built encoder needs no Core ML.

**Contexts.** A context is how many positions an encoder computes. In all but the full one its
attention also sees all `SilenceStates` (streamd/models/silence.py), which follow the computed ones
in each layer. The mask hides those that the window does not use, and adds the logarithm of what a
sampled one stands for. What is returned are the computed positions alone.

**Kept states.** A live window grows: where most of its positions are known from the window before,
a "resume" computes the last `Meta.n_resumed` of them, which attend to the keys and values of the
others. The host keeps these, and passes them in: a graph for the Neural Engine should write no
state. Its shapes are fixed, so a window may need less: its last positions, or all of a short one,
are preceded by some that are known, and masked. Unless it begins with the window's first, there is
at least one, for the convolution of the next.

**Widths.** Every axis over audio positions is padded to a multiple of 32, which is 64 bytes: the
Neural Engine prefers that for a last axis. A mask hides the padding.

**Half precision.** Layer norms square their input, whose sums of squares reach 550,000 in tiny.en,
against 65,504; and their epsilon, 1e-5, is subnormal, which some processors take for zero. So each
input is multiplied by a power of two, which changes no digit, and epsilon by its square.
"""

import hashlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.silence import Extent, bias, extend, kept_positions, longest_extent
from streamd.types import Mel

Bits = Literal[16, 8]
"""Bits of a weight: 16 is float16; 8 is a palette of 256 values for each tensor."""

META, POSITIONS, SILENCE, GOLDEN = "meta.json", "positions.npy", "silence.npy", "golden.npz"
"""Names of the files beside the packages."""

MASKED = -40_000.0
"""What a mask adds to the scores of hidden positions; the Neural Engine's softmax takes no -inf."""
LIBRARY = "coremltools"
"""The Python library that builds and runs Core ML packages."""
BUILD_AGAIN = "build it again: streamd models build NAME"

_ALIGN = 32
_PART_WEIGHTS = 40_000_000
"""A part has as many layers as have so many weights, but 2 to 8. Others compiled large-v3-turbo's
encoder for the Neural Engine in 610 s as a whole, in 154 s in 16 parts of 2 layers; parts below
some 50 MB are often left to the CPU (benchmarks/RESULTS.md)."""
_FEWEST_LAYERS, _MOST_LAYERS = 2, 8


def padded(n: int) -> int:
    """Round `n` up to a multiple of 32."""
    return math.ceil(n / _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name and shape of a float16 input or output."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """One function of one package: of the encoder's part `part`, from 0.

    `n_ctx` is its context, in positions before padding, and 0 of a "resume"; `width` is how many
    positions it computes, with padding. `inputs` and `outputs` are in the order in which the
    package declares them. With w = width, K = `Meta.keys` of the context, E layers of
    this part, R = `Meta.n_kept`, they are

    mel (1, n_mels, 1, 2w) : input of the first part
    hidden (1, n_state, 1, w) : input of the later parts, the output of the part before
    positions (1, n_state, 1, w) : of `POSITIONS`, another input of the first "resume"
    mask (1, K, 1, 1) : what is added to the scores of each position computed, then of each state of
        silence: 0, `MASKED`, or its bias; of a "resume", of each kept position, then the same,
        (1, R + w + `Meta.n_silence`, 1, 1)
    kept_k (E, R, 1, n_state), kept_v (E, n_state, 1, R) : inputs of "resume", keys and values of
        the window's first positions
    new_k (E, n, 1, n_state), new_v (E, n_state, 1, n) : those that were computed; n is w of a
        "resume", and the least of w and R of a context that has states of silence
    encoded (1, n_state, 1, w) : output
    """

    package: str
    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    n_ctx: int = 0
    part: int = 0
    width: int = 0


class NormScale(msgspec.Struct, frozen=True):
    """What a layer norm multiplies its input by, a power of two, and its epsilon after that."""

    scale: float
    epsilon: float


class FileFacts(msgspec.Struct, frozen=True):
    """A file's size in bytes, and its SHA-256."""

    size: int
    sha256: str


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What was built, and from what.

    `name` is the model's, `coremltools` the version that wrote the packages. `contexts` are sorted
    numbers of positions; `silence` says whether all but the full one have states of silence.
    `n_resumed` is how many positions a "resume" computes, 0 if there is none. `norms` are those of
    all layer norms by their parameters' name, `files` all but ``meta.json``.
    """

    name: str
    coremltools: str
    dims: ModelDimensions
    contexts: tuple[int, ...]
    norms: dict[str, NormScale]
    silence: bool = False
    n_resumed: int = 0
    bits: Bits = 16
    files: dict[str, FileFacts] = {}

    def keys(self, n_ctx: int) -> int:
        """Audio positions that attention sees in this context: those computed, then silence."""
        return padded(n_ctx) + (self.n_silence if n_ctx < self.dims.n_audio_ctx else 0)

    @property
    def n_silence(self) -> int:
        """Positions of the states of silence, with padding."""
        return padded(len(kept_positions(self.dims.n_audio_ctx))) if self.silence else 0

    @property
    def n_kept(self) -> int:
        """Positions whose keys and values are kept for a "resume": all that it may find known."""
        return padded(longest_extent(self.dims) - self.n_resumed) if self.n_resumed else 0

    @property
    def layers(self) -> tuple[range, ...]:
        """The encoder's layers in each of its parts, which are about equally long."""
        n, fitting = self.dims.n_audio_layer, _PART_WEIGHTS // (12 * self.dims.n_audio_state**2)
        n_parts = math.ceil(n / min(max(fitting, _FEWEST_LAYERS), _MOST_LAYERS))
        borders = [n * i // n_parts for i in range(n_parts + 1)]
        return tuple(map(range, borders, borders[1:]))


def kept(meta: Meta, part: int, which: str, n: int) -> tuple[TensorSpec, ...]:
    """Return keys and values of n positions in the layers of a part of the encoder."""
    n_layer, n_state = len(meta.layers[part]), meta.dims.n_audio_state
    keys = TensorSpec(f"{which}_k", (n_layer, n, 1, n_state))
    return keys, TensorSpec(f"{which}_v", (n_layer, n_state, 1, n))


def _positions(meta: Meta, name: str, width: int) -> TensorSpec:
    return TensorSpec(name, (1, meta.dims.n_audio_state, 1, width))


def functions(meta: Meta) -> Iterator[Function]:
    """Yield all functions of a built encoder, package by package."""
    dims, n_parts = meta.dims, len(meta.layers)
    for part in range(n_parts):
        stem = "encoder" if n_parts == 1 else f"encoder_{part + 1}of{n_parts}"
        for n_ctx in (*meta.contexts, 0) if meta.n_resumed else meta.contexts:
            width = padded(n_ctx) if n_ctx else meta.n_resumed
            entered = _positions(meta, "hidden", width)
            if part == 0:
                entered = TensorSpec("mel", (1, dims.n_mels, 1, 2 * width))
            n_keys = meta.keys(n_ctx) if n_ctx else meta.n_kept + width + meta.n_silence
            inputs = [entered, TensorSpec("mask", (1, n_keys, 1, 1))]
            n_new = width
            if n_ctx:
                n_new = min(width, meta.n_kept) if n_ctx < dims.n_audio_ctx else 0
            else:
                inputs += [] if part else [_positions(meta, "positions", width)]
                inputs += kept(meta, part, "kept", meta.n_kept)
            yield Function(
                package=f"{stem}.mlpackage",
                name=f"ctx{n_ctx}" if n_ctx else f"resume{width}",
                inputs=tuple(inputs),
                outputs=(
                    _positions(meta, "encoded", width),
                    *(kept(meta, part, "new", n_new) if n_new else ()),
                ),
                n_ctx=n_ctx,
                part=part,
                width=width,
            )


@dataclass(frozen=True)
class BuiltModel:
    """A built encoder on disk; nothing but `meta` is read before it is needed."""

    folder: Path
    meta: Meta

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Everything that its packages can do."""
        return tuple(functions(self.meta))

    @cached_property
    def positions(self) -> NDArray[np.float16]:
        """The encoder's positional embedding, (n_audio_ctx, n_state), mapped."""
        return np.asarray(np.load(self.folder / POSITIONS, mmap_mode="r"))

    def context(self, n: int) -> int:
        """Return the smallest context of at least `n` positions. Raises `ValueError`."""
        return min(context for context in self.meta.contexts if n <= context)

    def extend(self, mel: Mel, audio_ctx: int) -> tuple[Mel, Extent]:
        """Return what is computed of a window, as `models.silence.extend` does, on one context."""
        dims = self.meta.dims
        longer, extent = extend(mel, dims, has_silence=self.meta.silence, audio_ctx=audio_ctx)
        if not audio_ctx and self.context(extent.n) == dims.n_audio_ctx:
            return extend(mel, dims, has_silence=False)  # the full context has no states of silence
        return longer, extent

    def resumed_at(self, extent: Extent, n_known: int) -> int | None:
        """Return the first position that a "resume" computes of a window, None if it cannot.

        Unless that is 0, it is known: what a call computes of it lacks what is before it.
        """
        k, begin = self.meta.n_resumed, max(0, extent.n - self.meta.n_resumed)
        # What has no states of silence is computed as a whole.
        fits = k > 0 and self.context(extent.n) < self.meta.dims.n_audio_ctx
        return begin if fits and begin < max(1, n_known) else None

    def encode_mask(self, extent: Extent) -> NDArray[np.float32]:
        """Return the mask of a context, (keys,): which keys a window has."""
        width = padded(self.context(extent.n))
        return self._mask(extent, width, self.meta.keys(self.context(extent.n)))

    def resume_mask(self, extent: Extent, begin: int, n_known: int) -> NDArray[np.float32]:
        """Return the mask of a "resume" from position `begin` on; it hides what is known."""
        kept = np.full(self.meta.n_kept, MASKED, np.float32)
        k, n = self.meta.n_resumed, extent.n - begin
        new = self._mask(Extent(n, extent.first), k, k + self.meta.n_silence)
        kept[:n_known], new[: n_known - begin] = 0, MASKED
        return np.concatenate([kept, new])

    def _mask(self, extent: Extent, width: int, n_keys: int) -> NDArray[np.float32]:
        """Return what is added to the scores of positions, of silence from `width` on."""
        added = np.full(n_keys, MASKED, np.float32)
        biases = bias(self.meta.dims.n_audio_ctx)[extent.first :]
        first = width + extent.first
        added[first : first + len(biases)] = biases
        added[: extent.n] = 0
        return added


def open_built(folder: Path) -> BuiltModel:
    """Read a built encoder's description and check that its files are complete.

    Raises `ModelError` if it is no built encoder, or damaged.
    """
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=Meta)
    except OSError as error:
        raise ModelError(f"{folder}: no Core ML model ({error.strerror or error})") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{folder / META}: damaged ({error}); {BUILD_AGAIN}") from error
    for name, facts in meta.files.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != facts.size:
            raise ModelError(f"{file}: missing or damaged; {BUILD_AGAIN}")
    return BuiltModel(folder, meta)


def check_files(built: BuiltModel) -> None:
    """Compare all files with their SHA-256, which takes a second per gigabyte or two.

    Raises `ModelError` that names the first damaged one.
    """
    for name, facts in built.meta.files.items():
        if sha256(built.folder / name) != facts.sha256:
            raise ModelError(f"{built.folder / name}: damaged; {BUILD_AGAIN}")


def sha256(path: Path) -> str:
    """Return a file's SHA-256. Raises `ModelError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error


@cache
def coremltools() -> ModuleType:
    """Import coremltools, which takes two seconds. Raises `ModelError` if it is not installed."""
    # Off a Mac it logs a line for each missing part of Core ML; building needs none of them.
    logging.getLogger(LIBRARY).setLevel(logging.ERROR)
    try:
        import coremltools
    except ImportError as error:
        raise ModelError(
            "Core ML packages need coremltools, which is not installed: pip install coremltools, "
            "with Python 3.11 to 3.13 on macOS or on Linux (x86_64)"
        ) from error
    module: ModuleType = coremltools
    return module
