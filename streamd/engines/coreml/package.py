"""An encoder built for Core ML: its packages, their functions, its other files; reading one.

A built encoder is a folder::

    meta.json                    `Meta`: of which model, and how its weights are held
    positions.npy                (n_audio_ctx, n_state) float16, mapped
    golden.npz                   `GoldenWindow`: speech as the float32 reference encodes it with
                                 what the packages hold
    encoder.mlpackage            or encoder_1of16.mlpackage ...: the encoder, in parts

Everything follows from `Meta`: the builder writes what `functions` lists, the runtime looks there
for what it needs, the tests compare the saved packages with it. All tensors are float16 inside Core
ML; its Python binding takes and returns float32. Reading a built encoder needs no Core ML.

**Contexts.** A context is how many positions an encoder computes: all, or the most that
`SilenceStates` follow (streamd/models/silence.py). There attention also sees these, behind the
computed ones in each layer. The mask hides those that the window does not use, and adds the
logarithm of what a sampled one stands for. What is returned are the computed positions alone.

**Kept states.** A live window grows: where most of its positions are known from the window before,
a "resume" computes the last 192 of them, which attend to the keys and values of the others. The
host keeps these, and passes them in: a graph for the Neural Engine should write no state. Its
shapes are fixed, so a window may need less: its last positions, or all of a short one, are preceded
by some that are known, and masked. Unless it begins with the window's first, there is at least one,
for the convolution of the next.

**Widths.** Every axis over audio positions is padded to a multiple of 32, which is 64 bytes: the
Neural Engine prefers that for a last axis. A mask hides the padding.

**Half precision.** Layer norms square their input, whose sums of squares reach 550,000 in tiny.en,
against 65,504; and their epsilon, 1e-5, is subnormal, which some processors take for zero. So each
input is multiplied by a power of two, which changes no digit, and epsilon by its square.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.silence import Extent, bias, kept_positions, longest_extent
from streamd.system.disk import sha256

Bits = Literal[16, 8]
"""Bits of a weight: 16 is float16; 8 is a palette of 256 values for each tensor."""

META, POSITIONS, GOLDEN = "meta.json", "positions.npy", "golden.npz"
"""Names of the files beside the packages."""

MASKED = -40_000.0
"""What a mask adds to the scores of hidden positions; the Neural Engine's softmax takes no -inf."""
LIBRARY = "coremltools"
"""The Python library that builds and runs Core ML packages."""
BUILD_AGAIN = "build it again: streamd models build NAME"

RESUMED = 192
"""Positions that a "resume" computes. A step of 0.5 s needs 141 at most, three steps at once 191
(benchmarks/RESULTS.md)."""
_ALIGN = 32
_PART_WEIGHTS = 40_000_000
"""A part has as many layers as have so many weights, but 2 to 8. Others compiled large-v3-turbo's
encoder for the Neural Engine in 610 s as a whole, in 154 s in 16 parts of 2 layers; parts below
some 50 MB are often left to the CPU (benchmarks/RESULTS.md)."""
_FEWEST_LAYERS, _MOST_LAYERS = 2, 8


def padded(n: int) -> int:
    """Round `n` up to a multiple of 32."""
    return math.ceil(n / _ALIGN) * _ALIGN


Shapes = dict[str, tuple[int, ...]]
"""Shapes of float16 inputs or outputs by name, in the order in which a package declares them."""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One function of one package: of the encoder's part `part`, from 0.

    `n_ctx` is its context, in positions before padding, and 0 of a "resume"; `width` is how many
    positions it computes, with padding. With w = width, K = `Meta.keys` of the context, E layers of
    this part, R = `Meta.n_kept`, `inputs` and `outputs` are

    mel (1, n_mels, 1, 2w), positions (1, n_state, 1, w) : inputs of the first part; positions are
        those of `POSITIONS`
    hidden (1, n_state, 1, w) : input of the later parts, the output of the part before
    mask (1, K, 1, 1) : what is added to the scores of each kept position of a "resume", then of
        each position computed, then of each state of silence: 0, `MASKED`, or its bias
    kept_k (E, R, 1, n_state), kept_v (E, n_state, 1, R) : inputs of "resume", keys and values of
        the window's first positions
    encoded (1, n_state, 1, w) : output
    new_k (E, n, 1, n_state), new_v (E, n_state, 1, n) : those that were computed, but at the full
        context; n is the least of w and R
    """

    package: str
    name: str
    inputs: Shapes
    outputs: Shapes
    n_ctx: int = 0
    part: int = 0
    width: int = 0


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What was built, and from what.

    `name` is the model's, `coremltools` the version that wrote the packages. Without states of
    `silence`, as models of a shorter context than Whisper's are, there is one function, for the
    full context. `norms` has what each layer norm multiplies its input by, a power of two, `files`
    size in bytes and SHA-256 of all but ``meta.json``.
    """

    name: str
    coremltools: str
    dims: ModelDimensions
    norms: dict[str, float]
    silence: bool
    bits: Bits
    files: dict[str, tuple[int, str]] = {}

    @property
    def contexts(self) -> tuple[int, ...]:
        """Contexts in positions, the full one last."""
        short = (padded(longest_extent(self.dims)),) if self.silence else ()
        return (*short, self.dims.n_audio_ctx)

    def keys(self, n_ctx: int) -> int:
        """Positions that attention sees in this context, or in a "resume" if that is 0."""
        computed = padded(n_ctx) if n_ctx else self.n_kept + RESUMED
        has_silence = n_ctx < self.dims.n_audio_ctx
        return computed + has_silence * padded(len(kept_positions(self.dims.n_audio_ctx)))

    @property
    def n_kept(self) -> int:
        """Positions whose keys and values are kept for a "resume": all that it may find known."""
        return padded(longest_extent(self.dims) - RESUMED) if self.silence else 0

    @property
    def layers(self) -> tuple[range, ...]:
        """The encoder's layers in each of its parts, which are about equally long."""
        n, fitting = self.dims.n_audio_layer, _PART_WEIGHTS // (12 * self.dims.n_audio_state**2)
        n_parts = math.ceil(n / min(max(fitting, _FEWEST_LAYERS), _MOST_LAYERS))
        borders = [n * i // n_parts for i in range(n_parts + 1)]
        return tuple(map(range, borders, borders[1:]))


def kept(meta: Meta, part: int, which: str, n: int) -> Shapes:
    """Return the shapes of keys and values of n positions in the layers of a part."""
    n_layer, n_state = len(meta.layers[part]), meta.dims.n_audio_state
    return {f"{which}_k": (n_layer, n, 1, n_state), f"{which}_v": (n_layer, n_state, 1, n)}


@dataclass(frozen=True)
class BuiltModel:
    """A built encoder on disk; nothing but `meta` is read before it is needed."""

    folder: Path
    meta: Meta

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Everything that its packages can do, package by package."""
        return tuple(self._functions())

    def _functions(self) -> Iterator[Function]:
        meta, n_parts = self.meta, len(self.meta.layers)
        for part in range(n_parts):
            stem = "encoder" if n_parts == 1 else f"encoder_{part + 1}of{n_parts}"
            for n_ctx in (*meta.contexts, 0) if meta.silence else meta.contexts:
                width = padded(n_ctx) if n_ctx else RESUMED
                hidden = (1, meta.dims.n_audio_state, 1, width)
                inputs: Shapes = {"hidden": hidden}
                if part == 0:
                    inputs = {"mel": (1, meta.dims.n_mels, 1, 2 * width), "positions": hidden}
                inputs["mask"] = (1, meta.keys(n_ctx), 1, 1)
                outputs: Shapes = {"encoded": hidden}
                if n_ctx < meta.dims.n_audio_ctx:
                    outputs |= kept(meta, part, "new", min(width, meta.n_kept))
                if not n_ctx:
                    inputs |= kept(meta, part, "kept", meta.n_kept)
                name = f"ctx{n_ctx}" if n_ctx else f"resume{width}"
                yield Function(f"{stem}.mlpackage", name, inputs, outputs, n_ctx, part, width)

    def call(self, extent: Extent, n_known: int) -> tuple[int, int, int, NDArray[np.float32]]:
        """Return how a window is computed whose first `n_known` positions are.

        That is its context, 0 for a "resume"; the first position that is computed; how many are
        taken as known; and the mask, (keys,), which hides those that a "resume" computes again.
        Unless the first is 0, it is one of them: what is computed of it lacks what is before it.
        """
        meta, begin = self.meta, max(0, extent.n - RESUMED)
        n_ctx = min(context for context in meta.contexts if extent.n <= context)
        # What is computed at the full context leaves nothing to go on from.
        if n_ctx < meta.dims.n_audio_ctx and begin < max(1, n_known):
            n_ctx = 0
        else:
            begin = n_known = 0
        before = 0 if n_ctx else meta.n_kept
        mask = np.full(meta.keys(n_ctx), MASKED, np.float32)
        mask[:n_known] = 0
        mask[before + n_known - begin : before + extent.n - begin] = 0
        biases = bias(meta.dims.n_audio_ctx)[extent.first :]
        silent = before + (padded(n_ctx) or RESUMED) + extent.first
        mask[silent : silent + len(biases)] = biases
        return n_ctx, begin, n_known, mask


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
    for name, (size, _) in meta.files.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            raise ModelError(f"{file}: missing or damaged; {BUILD_AGAIN}")
    return BuiltModel(folder, meta)


def check_files(built: BuiltModel) -> None:
    """Compare all files with their SHA-256, which takes a second per gigabyte or two.

    Raises `ModelError` that names the first damaged one.
    """
    for name, (_, digest) in built.meta.files.items():
        try:
            found = sha256(built.folder / name).hex()
        except OSError as error:
            raise ModelError(f"{built.folder / name}: {error.strerror}") from error
        if found != digest:
            raise ModelError(f"{built.folder / name}: damaged; {BUILD_AGAIN}")


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
