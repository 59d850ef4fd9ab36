"""A model built for Core ML: its packages, their functions, its other files; reading one.

A built model is a folder::

    meta.json                    `Meta`: which model, which contexts and compression
    embedding.npy                (n_vocab, n_state) float16, mapped; the host embeds tokens with it
    positions.npy                (n_text_ctx, n_state) float16, mapped
    encoder_positions.npy        (n_audio_ctx, n_state) float16, if `Meta.n_resumed`
    silence.npy                  `SilenceStates`, if the model has them
    golden.npz                   `Golden`: windows of speech as the float32 reference computes them
                                 with what the packages hold
    encoder.mlpackage            or encoder_1of4.mlpackage ...: the encoder, 8 layers in each part
    cross.mlpackage              cross-attention keys and values of the encoder's output
    decoder_state.mlpackage      the decoder with its caches in Core ML's memory
    decoder_mix.mlpackage        the decoder with its self-attention cache in the host's memory

Everything follows from `Meta`: the builder writes what `functions` lists, the engine looks there
for what it needs, the tests compare the saved packages with it. All tensors are float16 inside Core
ML; its Python binding takes and returns float32. Reading a built model needs no Core ML.

**Contexts.** A context is how many positions an encoder computes. In all but the full one its
attention also sees all `SilenceStates` (streamd/models/silence.py), which follow the
computed ones in each layer and in its output. The mask hides those that the window does not use,
and adds the logarithm of what a sampled one stands for.

**Kept states.** A live window grows: where most of its positions are known from the window before,
a "resume" computes the last `Meta.n_resumed` of them, which attend to the keys and values of the
others. The host keeps these, and passes them in; nothing depends on a state, which the Neural
Engine may not write, and a call that is done over gives the same. Its shapes are fixed, so a window
may need less: its last positions, or all of a short one, are preceded by some that are known, and
masked. Unless it begins with the window's first, there is at least one, for the convolution of the
next.

**Widths.** Every axis over audio positions is padded to a multiple of 32, which is 64 bytes: the
Neural Engine prefers that for a last axis and requires it for a state's. A mask hides the padding.
So a window of n positions gives the same result on the next larger context as on its own, if its
log-mel is zero from column ``2 * n`` on (which is what Whisper's convolution pads with).

**Half precision.** Layer norms square their input, whose sums of squares reach 550,000 in tiny.en
and 330,000 in base, against 65,504; and their epsilon, 1e-5, is subnormal, which some processors
take for zero. So each input is multiplied by a power of two, which changes no digit, and epsilon by
its square (`NormScale`). Rows that a pass does not use are copies of one that it does: the norm of
zeros divides by the root of epsilon alone.

**Caches** are (n_layer, n_head, d_head, positions), keys and values alike: the decoder's attention
is two matrix products without a transposed copy, and the host writes a token's new keys as one
column. Those of cross-attention have room for every context (`Meta.n_keys`), and the states of
silence at their end; ``cross_mask`` hides the rest. So one decoder serves all contexts.
"""

import hashlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamd.errors import ModelError
from streamd.models import ModelDimensions
from streamd.models.model import Heads
from streamd.models.silence import Extent, bias, extend, kept_positions, longest_extent
from streamd.types import Mel

Form = Literal["state", "mix"]
"""Where the decoder's caches lie.

Those of cross-attention are Core ML states that the host fills (``write_state``) and the graph only
reads. ``state``: those of self-attention are states that the graph itself writes; for the GPU.
``mix``: they are inputs, and their new columns are outputs; for the Neural Engine, which is
reported to reject graphs that write states.
"""
FORMS: tuple[Form, ...] = ("state", "mix")

FunctionKind = Literal["encode", "resume", "cross", "step", "align"]
"""What a function does.

``encode``: a part of the encoder. ``resume``: the same for the last positions of a window whose
first ones are known. ``cross``: keys and values for cross-attention. ``step``: k tokens through the
decoder. ``align``: the same without logits, for a prompt, which needs none.
"""

Bits = Literal[16, 8, 6]
"""Bits of a weight: 16 is float16; 8 and 6 are palettes of 256 or 64 values for each tensor."""

META, EMBEDDING, POSITIONS = "meta.json", "embedding.npy", "positions.npy"
SILENCE, GOLDEN = "silence.npy", "golden.npz"
ENCODER_POSITIONS = "encoder_positions.npy"
"""Names of the files beside the packages."""
VERSION = 6
"""Version of this layout."""
_READABLE = (4, 5, VERSION)
"""Folders of other versions are rejected. In version 4 no model could be resumed; until 5, the
decoder's steps had other sizes."""

MASKED = -40_000.0
"""What a mask adds to the scores of hidden positions; the Neural Engine's softmax takes no -inf."""
MAX_TOKENS = 32
"""The most tokens in one pass of the decoder, and those of an ``align``."""
STEPS = (2, 16, MAX_TOKENS)
"""Numbers of tokens that a ``step`` takes at once. Of a live step's passes, half run a token and a
guess of the next one, and a third 3 to 16 tokens: the newest text and the draft."""
_EARLIER_STEPS = (1, 8, MAX_TOKENS)
LIBRARY = "coremltools"
"""The Python library that builds and runs Core ML packages."""
BUILD_AGAIN = "build it again: streamd models build NAME --engine coreml"

LONGEST_AXIS = 16_384
"""The Neural Engine takes no longer axis, so logits come in chunks."""
_ALIGN = 32
_WHOLE_LAYERS, _PART_LAYERS = 12, 8
"""An encoder of more layers is split: compile time grows faster than the number of layers."""
_SHORT_SLOTS = 128
"""A second, shorter cache for ``mix``, whose whole cache is passed in with each call."""


Mask = NDArray[np.float32]


def padded(n: int) -> int:
    """Round `n` up to a multiple of 32."""
    return math.ceil(n / _ALIGN) * _ALIGN


def logit_chunks(n_vocab: int) -> tuple[int, int]:
    """Return the number of outputs that hold the logits, and the number of tokens in each.

    All are equally long, a multiple of 32; the last one ends with tokens that do not exist.
    """
    n = math.ceil(n_vocab / LONGEST_AXIS)
    return n, padded(math.ceil(n_vocab / n))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name and shape of a float16 input, output or state."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """One function of one package.

    Attributes
    ----------
    package : the package's file name in the folder
    name : the function's name in the package
    kind : what it does
    forms : the forms of the decoder that need it
    n_ctx : for "encode" and "cross" the context, in positions before padding; 0 for others, and for
        the "cross" that follows a "resume"
    part : which part of the encoder it is, from 0
    k : tokens at once, for "step" and "align"; positions, for "resume" and the "cross" after it
    n_slots : columns of the self-attention cache; 0 where there is none
    inputs, outputs, states : its tensors, in the order in which the package declares them

    With w = padded(n_ctx) or k, K = `Meta.keys` of the context, L, H, d = layers, heads and size of
    a head of the decoder, E layers of this part of the encoder, R = `Meta.n_kept`, T = n_slots,
    S = `Meta.n_keys`, A alignment heads, the tensors are

    mel (1, n_mels, 1, 2w) : input of the first part of the encoder
    hidden (1, n_state, 1, w) : input of the later parts, the output of the part before
    positions (1, n_state, 1, w) : of `ENCODER_POSITIONS`, another input of the first "resume"
    mask (1, K, 1, 1) : for "encode", what is added to the scores of each position computed, then
        of each state of silence: 0, `MASKED`, or its bias; for "resume", of each kept position,
        then the same, (1, R + w + `Meta.n_silence`, 1, 1)
    kept_k (E, R, 1, n_state), kept_v (E, n_state, 1, R) : inputs of "resume", keys and values of
        the window's first positions
    new_k (E, n, 1, n_state), new_v (E, n_state, 1, n) : those that were computed; n is w for
        "resume", and the least of w and R for "encode" of a context that has states of silence
    encoded (1, n_state, 1, w) : output of the encoder; K wide, with the states of silence, from the
        last part of an "encode", as the input of its "cross"
    cross_k, cross_v (L, H, d, K) : outputs of "cross"; (L, H, d, w) after a "resume", else
        (L, H, d, S)
    x (1, n_state, 1, k) : sums of rows of `EMBEDDING` and `POSITIONS`
    put (1, 1, k, T) : "state" only: a 1 in the column that each token is written to; a row of
        zeros is written nowhere
    mask (1, 1, k, T) : "state": 0 or `MASKED`, which columns each token sees, its own included
    mask (1, 1, k, T + 32) : "mix": the same for what is in the cache; after it the tokens of this
        call themselves, which are not in the cache yet; the last 32 - k columns are never seen
    cross_mask (1, 1, 1, S) : what is added to the scores of each position, then to those of the
        states of silence, which are the last
    self_k, self_v (L, H, d, T) : states in "state", else inputs
    logits0, logits1, ... (1, k, 1, v) : `logit_chunks`, to be joined and cut to n_vocab
    alignment (1, A, k, S) : scores of the alignment heads, scaled, before mask and softmax, sorted
        by layer and head; only positions that the mask does not hide are meaningful
    new_k, new_v (L, H, d, k) : "mix": the columns for the host to write into its cache

    A row of x that is not used is a copy of one that is, with what it sees.
    """

    package: str
    name: str
    kind: FunctionKind
    forms: tuple[Form, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[TensorSpec, ...] = ()
    n_ctx: int = 0
    part: int = 0
    k: int = 0
    n_slots: int = 0

    @property
    def logits(self) -> tuple[str, ...]:
        """Names of the outputs that hold the logits, in the order in which they are joined."""
        return tuple(t.name for t in self.outputs if t.name.startswith("logits"))


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

    `name` is the model's, `coremltools` the version that wrote the packages. `alignment_heads` are
    sorted (decoder layer, head) pairs, `contexts` sorted numbers of encoder positions; `silence`
    (``bank`` in the file) says whether all but the full one have states of silence. `n_resumed` is
    how many positions a "resume" computes, 0 if there is none, `steps` how many tokens each "step"
    takes. `norms` are those of all layer norms by their parameters' name, `files` all but
    ``meta.json``.
    """

    version: int = VERSION
    name: str
    coremltools: str
    dims: ModelDimensions
    alignment_heads: Heads
    contexts: tuple[int, ...]
    norms: dict[str, NormScale]
    silence: bool = msgspec.field(default=False, name="bank")
    n_resumed: int = 0
    steps: tuple[int, ...] = _EARLIER_STEPS
    bits: Bits = 16
    files: dict[str, FileFacts] = {}

    @property
    def n_keys(self) -> int:
        """Audio positions that the decoder's caches have room for."""
        return max(map(self.keys, self.contexts))

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
    def d_head(self) -> int:
        """Size of a head of the decoder."""
        return self.dims.n_text_state // self.dims.n_text_head

    @property
    def layers(self) -> tuple[range, ...]:
        """The encoder's layers in each of its parts."""
        n = self.dims.n_audio_layer
        step = n if n <= _WHOLE_LAYERS else _PART_LAYERS
        return tuple(range(first, min(n, first + step)) for first in range(0, n, step))

    def slots(self, form: Form) -> tuple[int, ...]:
        """Sizes of the self-attention cache that there are functions for, the longest first."""
        longest = padded(self.dims.n_text_ctx)
        return (longest, _SHORT_SLOTS) if form == "mix" and longest > _SHORT_SLOTS else (longest,)


def functions(meta: Meta) -> tuple[Function, ...]:
    """Return all functions of a built model, package by package."""
    decoders = (function for form in FORMS for function in _decoder(meta, form))
    return (*_encoder(meta), *_cross(meta), *decoders)


def caches(meta: Meta, which: str, n: int) -> tuple[TensorSpec, ...]:
    """Return keys and values of the "self" or "cross" attention for n positions."""
    shape = (meta.dims.n_text_layer, meta.dims.n_text_head, meta.d_head, n)
    return tuple(TensorSpec(f"{which}_{part}", shape) for part in "kv")


def _encoded(meta: Meta, width: int) -> TensorSpec:
    return TensorSpec("encoded", (1, meta.dims.n_audio_state, 1, width))


def kept(meta: Meta, part: int, which: str, n: int) -> tuple[TensorSpec, ...]:
    """Return keys and values of n positions in the layers of a part of the encoder."""
    n_layer, n_state = len(meta.layers[part]), meta.dims.n_audio_state
    keys = TensorSpec(f"{which}_k", (n_layer, n, 1, n_state))
    return keys, TensorSpec(f"{which}_v", (n_layer, n_state, 1, n))


def _entered(meta: Meta, part: int, width: int) -> TensorSpec:
    if part:
        return TensorSpec("hidden", (1, meta.dims.n_audio_state, 1, width))
    return TensorSpec("mel", (1, meta.dims.n_mels, 1, 2 * width))


def _encoder(meta: Meta) -> Iterator[Function]:
    dims, n_parts = meta.dims, len(meta.layers)
    for part in range(n_parts):
        stem = "encoder" if n_parts == 1 else f"encoder_{part + 1}of{n_parts}"
        is_last = part + 1 == n_parts
        for n_ctx in meta.contexts:
            width, n_keys = padded(n_ctx), meta.keys(n_ctx)
            n_kept = min(width, meta.n_kept) if n_ctx < dims.n_audio_ctx else 0
            yield Function(
                package=f"{stem}.mlpackage",
                name=f"ctx{n_ctx}",
                kind="encode",
                forms=FORMS,
                inputs=(_entered(meta, part, width), TensorSpec("mask", (1, n_keys, 1, 1))),
                outputs=(
                    _encoded(meta, n_keys if is_last else width),
                    *(kept(meta, part, "new", n_kept) if n_kept else ()),
                ),
                n_ctx=n_ctx,
                part=part,
            )
        if (k := meta.n_resumed) == 0:
            continue
        places = () if part else (TensorSpec("positions", (1, dims.n_audio_state, 1, k)),)
        mask = TensorSpec("mask", (1, meta.n_kept + k + meta.n_silence, 1, 1))
        yield Function(
            package=f"{stem}.mlpackage",
            name=f"resume{k}",
            kind="resume",
            forms=FORMS,
            inputs=(_entered(meta, part, k), mask, *places, *kept(meta, part, "kept", meta.n_kept)),
            outputs=(_encoded(meta, k), *kept(meta, part, "new", k)),
            part=part,
            k=k,
        )


def _cross(meta: Meta) -> Iterator[Function]:
    widths = [(f"ctx{n_ctx}", n_ctx, 0, meta.keys(n_ctx)) for n_ctx in meta.contexts]
    if k := meta.n_resumed:
        widths.append((f"resume{k}", 0, k, k))
    for name, n_ctx, k, width in widths:
        yield Function(
            package="cross.mlpackage",
            name=name,
            kind="cross",
            forms=FORMS,
            inputs=(_encoded(meta, width),),
            outputs=caches(meta, "cross", width),
            n_ctx=n_ctx,
            k=k,
        )


def _decoder(meta: Meta, form: Form) -> Iterator[Function]:
    passes: tuple[tuple[FunctionKind, int], ...] = (
        *(("step", k) for k in meta.steps),
        ("align", MAX_TOKENS),
    )
    for n_slots, (kind, k) in product(meta.slots(form), passes):
        yield _pass(meta, form, kind, k=k, n_slots=n_slots)


def _pass(meta: Meta, form: Form, kind: FunctionKind, *, k: int, n_slots: int) -> Function:
    """Describe a "step" or "align" of k tokens on a cache of n_slots."""
    dims = meta.dims
    in_state = form == "state"
    suffix = "" if n_slots == meta.slots(form)[0] else f"_t{n_slots}"
    own, cross = caches(meta, "self", n_slots), caches(meta, "cross", meta.n_keys)
    inputs = [TensorSpec("x", (1, dims.n_text_state, 1, k))]
    if in_state:
        inputs.append(TensorSpec("put", (1, 1, k, n_slots)))
    n_seen = n_slots if in_state else n_slots + padded(k)
    inputs.append(TensorSpec("mask", (1, 1, k, n_seen)))
    inputs.append(TensorSpec("cross_mask", (1, 1, 1, meta.n_keys)))
    n_chunks, n_each = logit_chunks(dims.n_vocab) if kind == "step" else (0, 0)
    outputs = [TensorSpec(f"logits{i}", (1, k, 1, n_each)) for i in range(n_chunks)]
    outputs.append(TensorSpec("alignment", (1, len(meta.alignment_heads), k, meta.n_keys)))
    if not in_state:
        inputs += own
        outputs += caches(meta, "new", k)
    return Function(
        package=f"decoder_{form}.mlpackage",
        name=f"{kind}{k}{suffix}",
        kind=kind,
        forms=(form,),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        states=(*own, *cross) if in_state else cross,
        k=k,
        n_slots=n_slots,
    )


@dataclass(frozen=True)
class BuiltModel:
    """A built model on disk; nothing but `meta` is read before it is needed."""

    folder: Path
    meta: Meta

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Everything that its packages can do."""
        return functions(self.meta)

    @cached_property
    def embedding(self) -> NDArray[np.float16]:
        """The token embedding, (n_vocab, n_state), mapped."""
        return np.asarray(np.load(self.folder / EMBEDDING, mmap_mode="r"))

    @cached_property
    def positions(self) -> NDArray[np.float16]:
        """The decoder's positional embedding, (n_text_ctx, n_state), mapped."""
        return np.asarray(np.load(self.folder / POSITIONS, mmap_mode="r"))

    @cached_property
    def encoder_positions(self) -> NDArray[np.float16]:
        """The encoder's positional embedding, (n_audio_ctx, n_state), mapped."""
        return np.asarray(np.load(self.folder / ENCODER_POSITIONS, mmap_mode="r"))

    @cached_property
    def silence(self) -> NDArray[np.float16]:
        """The model's `SilenceStates.states`, mapped."""
        return np.asarray(np.load(self.folder / SILENCE, mmap_mode="r"))

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

    def encode_mask(self, extent: Extent) -> Mask:
        """Return the mask of an "encode", (keys,): which keys a window has."""
        width = padded(self.context(extent.n))
        return self._mask(extent, width, self.meta.keys(self.context(extent.n)))

    def resume_mask(self, extent: Extent, begin: int, n_known: int) -> Mask:
        """Return the mask of a "resume" from position `begin` on; it hides what is known."""
        kept = np.full(self.meta.n_kept, MASKED, np.float32)
        k, n = self.meta.n_resumed, extent.n - begin
        new = self._mask(Extent(n, extent.first), k, k + self.meta.n_silence)
        kept[:n_known], new[: n_known - begin] = 0, MASKED
        return np.concatenate([kept, new])

    def cross_mask(self, extent: Extent) -> Mask:
        """Return the mask of the decoder's cross-attention, (n_keys,)."""
        n_keys = self.meta.n_keys
        return self._mask(extent, n_keys - self.meta.n_silence, n_keys)

    def _mask(self, extent: Extent, width: int, n_keys: int) -> Mask:
        """Return what is added to the scores of positions, of silence from `width` on."""
        added = np.full(n_keys, MASKED, np.float32)
        biases = bias(self.meta.dims.n_audio_ctx)[extent.first :]
        first = width + extent.first
        added[first : first + len(biases)] = biases
        added[: extent.n] = 0
        return added


def open_built(folder: Path) -> BuiltModel:
    """Read a built model's description and check that its files are complete.

    Raises `ModelError` if it is no built model, one of another version, or damaged.
    """
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=Meta)
    except OSError as error:
        raise ModelError(f"{folder}: no Core ML model ({error.strerror or error})") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{folder / META}: damaged ({error}); {BUILD_AGAIN}") from error
    if meta.version not in _READABLE:
        raise ModelError(f"{folder}: layout {meta.version}, not {VERSION}; {BUILD_AGAIN}")
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
