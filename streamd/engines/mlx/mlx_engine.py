"""Whisper's encoder and decoder on MLX, in this process.

An array of MLX is never changed: what writes into one makes another, in the same memory if nobody
else refers to that. So keys and values of an earlier window are reused by reference, and a decoder
that takes over the slots of another one copies them when it first writes. (A Python object is a
name for an array, which ``x[i] = y`` changes for all that have the object.)

Each call ends with `mx.eval` of all that it keeps and returns, so any thread may call, and go on
with a decoder of another one; one call computes at a time. Only windows of recordings are encoded
in a stream of their own, beside passes of the decoder: `mx.async_eval` begins that.

On a GPU, arrays are padded to few sizes (`device`), since MLX's CUDA back end makes a plan for each
shape, and each new shape takes new memory on Apple's GPUs. What pads them is not attended to.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from threading import Lock

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from streamd.engines.mlx import device
from streamd.engines.mlx.arithmetic import AUTO, Arithmetic, Bits
from streamd.engines.mlx.layers import (
    TransformerBlock,
    WeightsOnDevice,
    attend,
    by_head,
    evaluated,
    gelu,
    joined,
)
from streamd.engines.supervised.remote import Figures
from streamd.errors import EngineError
from streamd.models import ModelDimensions
from streamd.models.model import OUTPUT, Model
from streamd.models.silence import Extent, SilenceStates, bias, extend
from streamd.types import Mel
from streamd.whisper.engine import Answer, Decoder, Pass, Reuse, Together

N_TOGETHER = 16
"""Windows in one pass of the decoder for several."""


@dataclass(frozen=True, slots=True)
class MlxFeatures:
    """Keys and values of a window, (2, n_head, n, d_head) of each layer.

    `sound` are those of the encoder's blocks at the window's own positions, for the window after
    it; without any, that one reuses nothing. The decoder attends to `cross`: `n_silence` states of
    silence, then the window's own `n` positions, then what pads them. `added`, (1, n_keys), is
    added to the scores.
    """

    sound: list[mx.array]
    cross: list[mx.array]
    added: mx.array
    n_silence: int
    n: int


class MlxEngine(Together[MlxFeatures]):
    """A Whisper model on MLX; an `Engine` and a `BatchEngine` (streamd/whisper/engine.py)."""

    def __init__(self, model: Model, arithmetic: Arithmetic = AUTO) -> None:
        """Move the weights to the GPU, or to the CPU if there is none, one at a time.

        Raises `EngineError` if MLX fails, as it does without memory for them.
        """
        self.dims = dims = model.dims
        self.n_together = N_TOGETHER
        self.n_cheap = device.n_cheap(str(mx.device_info()["architecture"]))
        on_gpu = mx.default_device().type == mx.gpu
        self.pads = on_gpu if arithmetic.pads is None else arithmetic.pads
        floats = arithmetic.floats or ("float16" if on_gpu else "float32")
        self.dtype = mx.float16 if floats == "float16" else mx.float32
        self._lock, self._graph_s = Lock(), 0.0
        self._beside = mx.new_thread_local_stream(mx.default_device())
        with self.computing():
            moved = WeightsOnDevice(model.weights, self.dtype)
            self._encoder = _EncoderLayers(dims, moved, model.silence)
            self._decoder = _DecoderLayers(dims, moved, model.alignment_heads, arithmetic.bits)
            self._silent_cross = self._decoder.cross_of(self._encoder.silent)
            mx.eval(self._silent_cross)
            # What stands for the window before where there is none: nothing of it is reused.
            nothing = self._encoder.silence, self._silent_cross, self._silent_cross[0]
            self._nothing = MlxFeatures(*nothing, n_silence=0, n=0)
            device.limit_memory(mx.get_active_memory())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute alone; raise what MLX raises as an `EngineError` of one line."""
        try:
            with self._lock:
                yield
        except (RuntimeError, ValueError, MemoryError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise EngineError(f"MLX failed: {reason}") from error

    def encode(
        self,
        mel: Mel,
        reuse: Reuse[MlxFeatures] | None = None,
        *,
        audio_ctx: int = 0,
        begins: bool = False,
    ) -> MlxFeatures:
        """Encode log-mel as `Engine.encode` says, or only begin to."""
        mel, extent = extend(
            mel, self.dims, has_silence=len(self._encoder.silent) > 0, audio_ctx=audio_ctx
        )
        if reuse is None or not reuse.features.sound or not len(self._encoder.silent):
            reuse = Reuse(self._nothing)
        n_new = extent.n - reuse.n
        if self.pads:
            n_new = device.padded(n_new, device.POSITIONS)
        with self.computing():
            begun_s = time.perf_counter()
            added, n_silence = mask = self._mask(extent)
            before = [each[:, :, : reuse.n] for each in reuse.features.sound]
            x, sound = self._encoder(mel, before, n_new, added, n_silence)
            features = replace(self._features(x, extent.n, mask, reuse), sound=sound)
            self._graph_s += time.perf_counter() - begun_s
            (mx.async_eval if begins else mx.eval)(sound, features.cross, features.added)
        return features

    def encode_alone(self, mel: Mel) -> MlxFeatures:
        """Begin to encode a window beside what else is computed; the first pass waits for it."""
        with mx.stream(self._beside):
            return replace(self.encode(mel, begins=True), sound=[])

    def project(
        self,
        encoded: NDArray[np.float16],
        extent: Extent,
        *,
        reuse: Reuse[MlxFeatures] | None = None,
    ) -> MlxFeatures:
        reuse = reuse or Reuse(self._nothing)
        n_new = extent.n - reuse.n
        if self.pads:
            n_new = device.padded(n_new, device.POSITIONS)
            encoded = np.pad(encoded, ((0, n_new - len(encoded)), (0, 0)))
        with self.computing():
            x = mx.array(encoded).astype(self.dtype)
            features = self._features(x, extent.n, self._mask(extent), reuse)
            mx.eval(features.cross, features.added)
        return features

    def _mask(self, extent: Extent) -> tuple[mx.array, int]:
        """Return what is added to the scores of a window's keys, and how many are of silence."""
        n_silence = max(0, len(self._encoder.silent) - extent.first)
        n_keys = n_silence + extent.n
        if self.pads:
            n_keys = device.padded(n_keys, device.KEYS)
        scores = np.zeros((1, n_keys), np.float32)
        scores[:, n_silence + extent.n :] = -np.inf
        scores[:, :n_silence] = bias(self.dims.n_audio_ctx)[extent.first :]
        return mx.array(scores).astype(self.dtype), n_silence

    def _features(
        self, x: mx.array, n: int, mask: tuple[mx.array, int], reuse: Reuse[MlxFeatures]
    ) -> MlxFeatures:
        """Return what the decoder attends to, for the encoder's output, which is not computed yet.

        The first of the window's `n` positions are those that are reused.
        """
        (added, n_silence), previous = mask, reuse.features
        known = slice(previous.n_silence, previous.n_silence + reuse.n)
        n_kept = len(self._encoder.silent)
        parts = zip(self._silent_cross, previous.cross, self._decoder.cross_of(x), strict=True)
        cross = [
            joined([silent[:, :, n_kept - n_silence :], old[:, :, known], new], added.shape[1])
            for silent, old, new in parts
        ]
        return MlxFeatures([], cross, added, n_silence, n)

    def figures(self) -> Figures:
        """Return the device, the bytes that a GPU has, that are in use, and that are cached."""
        info = mx.device_info()
        memory = info.get("max_recommended_working_set_size", info.get("memory_size", 0))
        return {
            "device": str(info["device_name"]),
            "library": f"MLX {version('mlx')}",
            "memory": int(memory),
            "active": mx.get_active_memory(),
            "cached": mx.get_cache_memory(),
            "graph_s": self._graph_s,
        }

    def decoder(self, features: MlxFeatures, n_slots: int) -> "MlxDecoder":
        return MlxDecoder(self, features, n_slots)

    def together(self, is_alone: Callable[[], bool]) -> Together[MlxFeatures]:
        return self

    def run(self, passes: Sequence[Pass]) -> list[Answer]:
        """Run passes, each of another decoder: all rows in one product, attention by the window.

        Raises `EngineError` if MLX fails.
        """
        with self.computing():
            begun_s = time.perf_counter()
            placed = [_PlacedPass(each, pads=self.pads) for each in passes]
            logits, scores = self._decoder(placed)
            self._graph_s += time.perf_counter() - begun_s
            mx.eval(logits, scores, [one.decoder.pool for one in placed])
            return [
                (np.array(ours), one.sound_first(np.array(its_scores)))
                for one, ours, its_scores in zip(placed, logits, scores, strict=True)
            ]


class _EncoderLayers:
    def __init__(
        self, dims: ModelDimensions, weights: WeightsOnDevice, silence: SilenceStates | None
    ) -> None:
        self._positions = weights.array("encoder.positional_embedding")
        names = [f"encoder.conv{i}" for i in (1, 2)]
        swapped = [weights.array(f"{name}.weight").swapaxes(1, 2) for name in names]
        self._kernels = [evaluated(mx.contiguous(kernel)) for kernel in swapped]
        self._constants = [weights.array(f"{name}.bias") for name in names]
        self._blocks = [
            TransformerBlock(weights, f"encoder.blocks.{i}", dims.n_audio_head)
            for i in range(dims.n_audio_layer)
        ]
        self._ln_post = weights.norm("encoder.ln_post")
        none = np.zeros((dims.n_audio_layer + 1, 0, dims.n_audio_state), np.float16)
        states = mx.array(none if silence is None else silence.states).astype(weights.dtype)
        *inputs, self.silent = states
        both = zip(self._blocks, inputs, strict=True)
        self.silence = [block.projected(each)[1:] for block, each in both]
        """Keys and values of silence in each block; `silent` is the output for it."""
        mx.eval(self.silent, self.silence)

    def __call__(
        self, mel: Mel, before: list[mx.array], n_new: int, added: mx.array, n_silence: int
    ) -> tuple[mx.array, list[mx.array]]:
        """Compute `n_new` positions after those of which `before` has keys and values.

        They may reach beyond `mel` (n_mels, 2 * n): that pads the result. Returns the output
        (n_new, n_state), and keys and values of each block with those before.
        """
        n_before = before[0].shape[2]
        # One position before the first that is computed, without what is before it: dropped.
        begin = max(0, n_before - 1)
        columns = np.zeros((2 * (n_before + n_new - begin), len(mel)), np.float32)
        given = mel.T[2 * begin :][: len(columns)]
        columns[: len(given)] = given
        x = mx.array(columns).astype(added.dtype)[None]
        for kernel, constant, stride in zip(self._kernels, self._constants, (1, 2), strict=True):
            x = gelu(mx.conv1d(x, kernel, stride=stride, padding=1) + constant)
        at = np.minimum(np.arange(n_before, n_before + n_new), len(self._positions) - 1)
        x = x[0, n_before - begin :] + self._positions[mx.array(at)]
        sound = []
        for i, block in enumerate(self._blocks):
            qkv = block.projected(block.attn_ln(x))
            sound.append(joined([before[i], qkv[1:]]))
            silent = self.silence[i][:, :, self.silence[i].shape[2] - n_silence :]
            both = joined([silent, sound[i]], added.shape[1])
            x = block.with_mlp(x + block.out(attend(qkv[0], both, added)))
        return self._ln_post(x), sound


class _DecoderLayers:
    def __init__(
        self,
        dims: ModelDimensions,
        weights: WeightsOnDevice,
        alignment_heads: Sequence[tuple[int, int]],
        bits: Bits | None,
    ) -> None:
        self._n_head, layers = dims.n_text_head, range(dims.n_text_layer)
        self._scale = (dims.n_text_state // dims.n_text_head) ** -0.5
        self._positions = weights.array("decoder.positional_embedding")
        self._embedding = weights.linear("decoder.token_embedding", bits=8 if bits else None)
        self._output = self._embedding
        if OUTPUT in weights.weights:
            name = OUTPUT.removesuffix(".weight")
            self._output = weights.linear(name, bits=8 if bits else None)
        names = [f"decoder.blocks.{i}" for i in layers]
        self._blocks = [TransformerBlock(weights, each, self._n_head, bits) for each in names]
        self._ln = weights.norm("decoder.ln")
        # Run once for a window, not for each token: not rounded.
        self._cross = [
            weights.linear(f"{name}.cross_attn.key", f"{name}.cross_attn.value") for name in names
        ]
        heads = ([head for at, head in sorted(alignment_heads) if at == i] for i in layers)
        self._heads = [evaluated(mx.array(each)) if each else None for each in heads]

    def cross_of(self, encoded: mx.array) -> list[mx.array]:
        """Return keys and values of the layers for the encoder's output (n, n_state)."""
        return [by_head(both(encoded), self._n_head, 2) for both in self._cross]

    def __call__(self, placed: "list[_PlacedPass]") -> tuple[list[mx.array], list[mx.array]]:
        """Run passes; return the logits and the scores of each, which are not computed yet.

        The logits are those that the pass asks for, the scores (k, n_heads, n_keys) of its tokens.
        """
        tokens, positions = mx.array(np.concatenate([one.inputs for one in placed], axis=1))
        begins = np.cumsum([0, *(one.n_rows for one in placed)]).tolist()
        pieces = [slice(*ends) for ends in pairwise(begins)]
        x = self._embedding.rows(tokens) + self._positions[positions]
        scores: list[list[mx.array]] = [[] for _ in placed]
        for i, block in enumerate(self._blocks):
            qkv = block.projected(block.attn_ln(x))
            attended = [
                attend(qkv[0][:, piece], one.write(i, qkv[1:, :, piece]), one.mask)
                for one, piece in zip(placed, pieces, strict=True)
            ]
            x = x + block.out(mx.concatenate(attended))
            query = block.cross_queries(x)
            attended = []
            for one, piece, found in zip(placed, pieces, scores, strict=True):
                features, q = one.decoder.features, query[:, piece]
                attended.append(attend(q, features.cross[i], features.added))
                if (heads := self._heads[i]) is not None:
                    keys = features.cross[i][0][heads]
                    found.append(q[heads, : one.n_tokens] * self._scale @ keys.swapaxes(1, 2))
            x = block.with_mlp(x + block.cross_out(mx.concatenate(attended)))
        wanted = [one.want + begin for one, begin in zip(placed, begins, strict=False)]
        rows = self._ln(x[mx.array(np.concatenate(wanted))])
        logits = self._output(rows).astype(mx.float32)
        ends = np.cumsum([0, *map(len, wanted)]).tolist()
        asked = [
            logits[begin:end] if one.among is None else logits[begin:end, mx.array(one.among)]
            for one, (begin, end) in zip(placed, pairwise(ends), strict=True)
        ]
        return asked, [mx.concatenate(each).swapaxes(0, 1).astype(mx.float32) for each in scores]


class MlxDecoder:
    """A `Decoder` (streamd/whisper/engine.py) on MLX.

    `pool` are keys and values of the slots, (2, n_head, n, d_head) of each layer.
    """

    def __init__(self, engine: MlxEngine, features: MlxFeatures, n_slots: int) -> None:
        dims = engine.dims
        self.n_vocab, self.n_text_ctx, self.n_slots = dims.n_vocab, dims.n_text_ctx, n_slots
        self.features, self._engine = features, engine
        d_head = dims.n_text_state // dims.n_text_head
        shape = (2, dims.n_text_head, device.SLOTS[0], d_head)
        with engine.computing():
            self.pool = [mx.zeros(shape, engine.dtype) for _ in range(dims.n_text_layer)]
            mx.eval(self.pool)

    def run(self, asked: Pass) -> Answer:
        (answer,) = self._engine.run([asked])
        return answer

    def adopt(self, before: Decoder, n: int) -> bool:
        """Take the first `n` slots of another window's decoder; nobody sees the others."""
        if not isinstance(before, MlxDecoder) or before._engine is not self._engine:
            return False
        with self._engine.computing():
            self.pool = [each[:] for each in before.pool]  # new objects: see the module's docstring
            mx.eval(self.pool)
        return True


class _PlacedPass:
    """A pass with room for it in its decoder's pool, padded to `n_rows`."""

    def __init__(self, asked: Pass, *, pads: bool) -> None:
        decoder, tokens, positions, slots, visible, self.want, self.among = asked
        self._slots = mx.array(slots)
        assert isinstance(decoder, MlxDecoder)
        self.decoder, self.n_tokens = decoder, len(tokens)
        self.n_rows = device.padded(self.n_tokens, device.ROWS) if pads else self.n_tokens
        self.inputs = np.zeros((2, self.n_rows), np.int64)
        self.inputs[:, : self.n_tokens] = tokens, positions
        n = device.padded(int(slots.max()) + 1, device.SLOTS)
        if n > decoder.pool[0].shape[2]:
            decoder.pool = [joined([each], n) for each in decoder.pool]
        n = decoder.pool[0].shape[2]
        # Rows that pad the pass see everything: a softmax over nothing would be NaN.
        mask = np.zeros((self.n_rows, n), np.float32)
        mask[: self.n_tokens] = -np.inf
        seen = visible[:, :n]
        mask[: self.n_tokens, : seen.shape[1]][seen] = 0
        self.mask = mx.array(mask).astype(decoder.features.added.dtype)

    def write(self, layer: int, both: mx.array) -> mx.array:
        """Write keys and values of the tokens into their slots; return those of all slots."""
        pool = self.decoder.pool[layer]
        pool[:, :, self._slots] = both[:, :, : self.n_tokens]
        return pool

    def sound_first(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Put scores of states of silence behind the others; leave out what pads them."""
        features = self.decoder.features
        own = scores[..., features.n_silence :][..., : features.n]
        return np.concatenate([own, scores[..., : features.n_silence]], axis=-1)
