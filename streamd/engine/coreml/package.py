"""What a model built for Core ML consists of: packages, functions, tensors, as plain data.

A built model is a folder::

    meta.json                    `Meta`: which model, which contexts, forms and compression
    embedding.npy                (n_vocab, n_state) float16, to be mapped; tokens are looked up here
    positions.npy                (n_text_ctx, n_state) float16, to be mapped
    golden.npz                   `GOLDEN`: a short decode as the float32 reference computes it
                                 with the weights that the packages hold
    encoder.mlpackage            or encoder_1of4.mlpackage ...: an encoder's layers, 8 in each part
    cross.mlpackage              cross-attention keys and values of what the encoder returned
    decoder_state.mlpackage      the decoder with its caches in Core ML's memory
    decoder_mix.mlpackage        the decoder with its self-attention cache in the host's memory
    io_*.mlpackage               the same for macOS 13 and 14, one function in each

Everything follows from `Meta`: `layout.functions` lists what each package can do. The builder makes
just that, the engine asks for a function with `Built.find` (``built.py``), lint and tests compare
the saved packages with it. All tensors are float16 on the Core ML side; its Python binding takes
and gives float32.

**Widths.** Every axis over audio positions is padded to a multiple of 32, 64 bytes: what the Neural
Engine wants of a last axis, and demands of a state's. 1500 positions are 1504. A mask hides what is
padding, in the encoder too: so a window of any `n_ctx` gives on the next larger context what it
would give on one of its own, if the columns of its log-mel behind ``2 * n_ctx`` are zeros (what
Whisper's convolution itself pads with). The text is the CPU engine's, and few contexts suffice.

**One decoder for all contexts.** The caches of cross-attention have room for the longest context
(`Meta.n_keys`), whatever a window's own is; ``cross_mask`` hides the rest. A cache for each context
would save a short window the reading of masked keys (by its dimensions, a step of `small` reads 278
MB of weights, and 55 MB of such a cache where 14 would do at 384 positions). But each would have
another shape, hence functions of its own: three times as many to compile and to hold in memory; and
one ``MLState`` can serve all functions of a package only if its shapes are the same in all of them.

**Caches** are (n_layer, n_head, d_head, positions): keys and values alike, positions last. So the
decoder's attention is two matrix products without a transposed copy of the cache, and the host
writes a token's new keys as one column.
"""

import math
from dataclasses import dataclass
from typing import Literal

import msgspec

from streamd.engine import ModelDimensions
from streamd.engine.model import Heads

Form = Literal["state", "mix", "io"]
"""Where the decoder's caches lie.

``state``: all four are Core ML states that the graph itself writes; for the GPU. ``mix``: those of
cross-attention are states, which the host fills (``write_state``) and the graph only reads; those
of self-attention are inputs, and new columns come back as outputs; for the Neural Engine, which is
said to refuse graphs that write states. ``io``: all four are inputs; no states, so it runs on macOS
13 and 14, where a package can have only one function.
"""
FORMS: tuple[Form, ...] = ("state", "mix", "io")

Kind = Literal["encode", "cross", "load", "step", "align"]
"""What a function does.

``encode``: a part of the encoder. ``cross``: keys and values for cross-attention, as outputs.
``load``: the same into the states, and empties the self-attention cache. ``step``: k tokens through
the decoder. ``align``: the same without logits, for a prompt of which none are wanted.
"""

Bits = Literal[16, 8, 6, 4]
"""Of a weight: 16 is float16, fewer are palettes of 256, 64 or 16 values for each tensor."""

META, EMBEDDING, POSITIONS, GOLDEN = "meta.json", "embedding.npy", "positions.npy", "golden.npz"
"""Names of the files beside the packages.

`GOLDEN` holds ``mel`` (n_mels, 2 * n_ctx) float32, ``tokens`` (n,) int64, ``logits`` (n, n_vocab)
and ``alignment`` (n, n_heads, n_ctx) float32: each token attends to itself and those before it, at
positions 0 to n - 1.
"""
VERSION = 1
"""Of this layout; a folder of another version is not read."""

MASKED = -40_000.0
"""What a mask adds to hide a position; the Neural Engine's softmax cannot take -inf."""
STEPS = (1, 8, 32)
"""Tokens that a ``step`` takes at once; an ``align`` takes the most."""
LONGEST_AXIS = 16_384
"""The Neural Engine takes no longer axis, so logits come in chunks."""

_ALIGN = 32
_WHOLE_LAYERS, _PART_LAYERS = 12, 8
"""An encoder of more layers is split: compile times grow faster than the number of layers."""
_SHORT_SLOTS = 128
"""A second, shorter cache for ``mix``: all of it goes in with each call."""
_CONTEXTS = (256, 384, 768)
"""Contexts to build besides the full one; most windows of ``--length 5000`` need 384."""


def padded(n: int) -> int:
    """The multiple of 32 that holds `n`."""
    return math.ceil(n / _ALIGN) * _ALIGN


def default_contexts(dims: ModelDimensions, min_audio_ctx: int) -> tuple[int, ...]:
    """Encoder contexts for a model that is usable from `min_audio_ctx` positions on."""
    full = dims.n_audio_ctx
    return (*(c for c in _CONTEXTS if min_audio_ctx <= c < full), full)


def logit_chunks(n_vocab: int) -> tuple[int, int]:
    """How many outputs the logits come in, and how many tokens are in each.

    They are equally long, a multiple of 32; the last one ends with tokens that do not exist.
    """
    n = math.ceil(n_vocab / LONGEST_AXIS)
    return n, padded(math.ceil(n_vocab / n))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A float16 tensor that goes in, comes out or stays."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """One function of one package.

    Attributes
    ----------
    package : the package's file name in the folder
    name : the function's name in it; "main" if it has only one (then Core ML wants no name)
    kind : what it does
    forms : the forms of the decoder that need it
    n_ctx : for "encode", "cross" and "load" the context, in positions before padding, else 0
    part : which part of the encoder it is, from 0
    k : tokens at once, for "step" and "align"
    n_slots : slots of the self-attention cache; 0 where there is none
    inputs, outputs, states : its tensors, in the order in which the package declares them

    With w = padded(n_ctx), L, H, d = layers, heads and size of a head of the decoder, T = n_slots,
    S = `Meta.n_keys`, A alignment heads, the tensors are

    mel (1, n_mels, 1, 2w) : input of the first "encode"
    hidden (1, n_state, 1, w) : input of the later parts, the output of the part before
    mask (1, w, 1, 1) : for "encode", 0 or `MASKED` for each position
    encoded (1, n_state, 1, w) : output of each "encode", input of "cross" and "load"
    cross_k, cross_v (L, H, d, w) : outputs of "cross"; elsewhere (L, H, d, S)
    loaded (1, 1, 1, 32) : output of "load", of no use
    x (1, n_state, 1, k) : sums of rows of `EMBEDDING` and `POSITIONS`
    put (1, 1, k, T) : "state" only: a 1 in the slot into which each token goes; a row of zeros goes
        nowhere
    mask (1, 1, k, T) : "state": 0 or `MASKED`, which slots each token sees, its own included
    mask (1, 1, k, T + 32) : "mix", "io": the same for what is in the cache; behind it the tokens of
        this call themselves, which lie in no slot yet; the last 32 - k columns are never seen
    cross_mask (1, 1, 1, S) : which of the audio's positions there are
    self_k, self_v (L, H, d, T) : states in "state", else inputs
    logits0, logits1, ... (1, k, 1, v) : `logit_chunks`, to be joined and cut to n_vocab
    alignment (1, A, k, S) : scores of the alignment heads, scaled, before mask and softmax, sorted
        by layer and head; only the window's own positions mean anything
    new_k, new_v (L, H, d, k) : "mix", "io": the columns for the host to write into its cache

    A row of x that is not needed must still see something: a mask row of zeros will do.
    """

    package: str
    name: str
    kind: Kind
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
        """The outputs that hold the logits, in the order in which they are to be joined."""
        return tuple(t.name for t in self.outputs if t.name.startswith("logits"))


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What was built, and of what.

    `name` is the model's, `weights` a SHA-256 of all its parameters, `coremltools` the version that
    wrote the packages. `alignment_heads` are sorted (decoder layer, head) pairs, `contexts` sorted
    numbers of encoder positions. `sizes` are those of all files but ``meta.json``, in bytes.
    """

    version: int = VERSION
    name: str
    weights: str
    coremltools: str
    dims: ModelDimensions
    alignment_heads: Heads
    contexts: tuple[int, ...]
    forms: tuple[Form, ...]
    bits: Bits = 16
    sizes: dict[str, int] = {}

    @property
    def n_keys(self) -> int:
        """Audio positions for which the decoder's caches have room."""
        return padded(self.contexts[-1])

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
        """Sizes of the self-attention cache for which there are functions, the longest first."""
        longest = padded(self.dims.n_text_ctx)
        return (longest, _SHORT_SLOTS) if form == "mix" and longest > _SHORT_SLOTS else (longest,)
