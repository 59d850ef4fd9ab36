"""One call of each function of a built model, with what must come out of it.

The reference computes that (`engines/reference.py`), so a function that is wrong is found by its
name, on any machine that can run it: with the interpreter anywhere, with Core ML on a Mac. What the
masks hide is filled with noise; what nobody reads may come out as it likes, if it is a number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.golden import golden_vectors
from streamd.engines.coreml.package import MASKED, BuiltModel, Function, TensorSpec, padded
from streamd.engines.coreml.rounding import held_reference
from streamd.engines.reference import Notice, ReferenceEngine, ReferenceFeatures, linear
from streamd.models.model import Model
from streamd.models.silence import MARGIN, STRIDE, extend, longest_extent
from streamd.types import Mel
from tests.coreml.verify.tree import Tree
from tests.support.coreml_runs import silence_of

Array = NDArray[np.float32]
Arrays = dict[str, Array]

_N_MISSING = 9
"""Positions by which a window is shorter than the context that it runs on, or than the sound that
fits there."""
_N_KNOWN = 5 * STRIDE
"""Positions that a window has from the one before it."""
_N_UNUSED = 3
"""Rows of a pass that it does not use."""


@dataclass(frozen=True, slots=True)
class Call:
    """What goes into a function and what must come out; NaN stands where any number will do.

    `state` are the states before, `after` those behind the call.
    """

    function: Function
    inputs: Arrays
    state: Arrays
    outputs: Arrays
    after: Arrays


class Calls:
    """Makes calls of one built model."""

    def __init__(self, built: BuiltModel, model: Model, mel: Mel) -> None:
        """`mel`: the log-mel of a recording, (n_mels, 2 * n_audio_ctx).

        Raises
        ------
        ModelError
            The model's golden vectors are damaged.
        """
        self._built, self._mel = built, mel
        self._model = model
        self._tokens = golden_vectors(built)[0].tokens
        self._windows: dict[int, _Window] = {}

    def call(self, function: Function) -> Call:
        """A call of this function."""
        makers: Mapping[str, Callable[[Function], Call]] = {
            "encode": self._encode,
            "resume": self._resume,
            "cross": self._cross,
            "step": self._pass,
            "align": self._pass,
        }
        return makers[function.kind](function)

    def _window(self, n_ctx: int) -> "_Window":
        """What the reference makes of a window that is a little shorter than a context."""
        if n_ctx not in self._windows:
            self._windows[n_ctx] = self._new_window(n_ctx)
        return self._windows[n_ctx]

    def _new_window(self, n_ctx: int) -> "_Window":
        meta = self._built.meta
        has_silence = meta.silence and MARGIN + _N_MISSING < n_ctx < meta.dims.n_audio_ctx
        n = max(1, n_ctx - _N_MISSING - has_silence * MARGIN)
        if has_silence:
            n = min(n, longest_extent(meta.dims) - MARGIN)
        return self._encoded(n, padded(n_ctx), audio_ctx=0 if has_silence else n)

    def _encoded(
        self,
        n: int,
        width: int,
        audio_ctx: int = 0,
        previous: "_Window | None" = None,
        known: int = 0,
    ) -> "_Window":
        """The first `n` positions; in the package, the states of silence begin after `width`."""
        mel, extent = extend(
            self._mel[:, : 2 * n],
            self._built.meta.dims,
            has_silence=not audio_ctx,
            audio_ctx=audio_ctx,
        )
        hidden = {}

        def notice(where: str, values: Array) -> None:
            layer = where.removeprefix("encoder.blocks.")
            if layer.isdecimal():
                hidden[int(layer)] = values

        features = self._reference(notice).encode(
            self._mel[:, : 2 * n],
            audio_ctx=audio_ctx,
            previous=previous.features if previous else None,
            n_reused=known,
        )
        n_silent = len(features.bias) - extent.n
        first = width + extent.first
        columns = np.concatenate([np.arange(extent.n), np.arange(first, first + n_silent)])
        return _Window(mel, columns, hidden, features)

    def _reference(self, notice: Notice = lambda where, values: None) -> ReferenceEngine:
        """What the packages hold; the states of silence are those of the checkpoint's own files."""
        meta = self._built.meta
        return held_reference(meta, self._model.weights, silence_of(self._built), notice=notice)

    def _resume(self, function: Function) -> Call:
        """A window of which more positions are known than the call needs."""
        meta, parts, k = self._built.meta, self._built.meta.layers, function.k
        begin = 4 * STRIDE
        skipped = _N_KNOWN - begin
        n = k + begin - MARGIN
        before = self._encoded(n - STRIDE, k)
        window = self._encoded(n, meta.n_kept + k, previous=before, known=_N_KNOWN)
        inputs, outputs = _noise(function.inputs), _anything(function.outputs)
        if function.part == 0:
            inputs["mel"][0, :, 0] = window.mel[:, 2 * begin :]
            table = self._built.encoder_positions[begin : begin + k]
            inputs["positions"][0, :, 0] = table.T
        else:
            rows = window.hidden[parts[function.part - 1][-1]]
            inputs["hidden"][0, :, 0, skipped:] = rows.T
        biases = window.features.bias
        inputs["mask"][...] = MASKED
        inputs["mask"][0, :_N_KNOWN, 0, 0] = 0
        inputs["mask"][0, meta.n_kept + skipped : meta.n_kept + k, 0, 0] = 0
        silent = window.columns[window.columns >= meta.n_kept + k]
        inputs["mask"][0, silent, 0, 0] = biases[begin + k :]
        weights = self._reference().weights
        for i, layer in enumerate(parts[function.part]):
            states = window.features.states[layer][: begin + k]
            for name in ("key", "value"):
                values = linear(states, weights, f"encoder.blocks.{layer}.attn.{name}")
                old, new = (f"{each}_{name[0]}" for each in ("kept", "new"))
                _rows(inputs[old], i, name)[:_N_KNOWN] = values[:_N_KNOWN]
                _rows(outputs[new], i, name)[skipped:] = values[_N_KNOWN:]
        if function.part + 1 == len(parts):
            wanted = window.features.states[-1][_N_KNOWN : begin + k]
        else:
            wanted = window.hidden[parts[function.part][-1]]
        outputs["encoded"][0, :, 0, skipped:] = wanted.T
        return Call(function, inputs, {}, outputs, {})

    def _encode(self, function: Function) -> Call:
        window, parts = self._window(function.n_ctx), self._built.meta.layers
        inputs = _zeros(function.inputs)
        if function.part == 0:
            inputs["mel"][0, :, 0, : window.mel.shape[1]] = window.mel
        else:
            before = window.hidden[parts[function.part - 1][-1]]
            inputs["hidden"][0, :, 0, : len(before)] = before.T
        inputs["mask"][...] = MASKED
        inputs["mask"][0, window.columns, 0, 0] = window.features.bias
        outputs = _anything(function.outputs)
        if function.part + 1 == len(parts):
            outputs["encoded"][0][:, 0, window.columns] = window.features.states[-1].T
        else:
            wanted = window.hidden[parts[function.part][-1]]
            outputs["encoded"][0, :, 0, : len(wanted)] = wanted.T
        if "new_k" in outputs:
            weights = self._reference().weights
            for i, layer in enumerate(parts[function.part]):
                for name in ("key", "value"):
                    states = window.features.states[layer]
                    values = linear(states, weights, f"encoder.blocks.{layer}.attn.{name}")
                    place = _rows(outputs[f"new_{name[0]}"], i, name)
                    n = min(len(place), window.mel.shape[1] // 2)
                    place[:n] = values[:n]
        return Call(function, inputs, {}, outputs, {})

    def _cross(self, function: Function) -> Call:
        window, outputs = (
            self._window(function.n_ctx or self._built.meta.contexts[0]),
            _anything(function.outputs),
        )
        columns = np.arange(function.k) if function.k else window.columns
        inputs = _zeros(function.inputs)
        inputs["encoded"][0][:, 0, columns] = window.features.states[-1][: len(columns)].T
        _put_cross(outputs, window, columns)
        return Call(function, inputs, {}, outputs, {})

    def _pass(self, function: Function) -> Call:
        """A pass over a tree of tokens behind a few that are in the cache, in slots in no order."""
        window = self._window(self._built.meta.contexts[0])
        tree = Tree.grown(self._tokens, n=max(1, function.k - _N_UNUSED), n_slots=function.n_slots)
        decoder = self._reference().decoder(window.features, function.n_slots)
        tree.feed(decoder, tree.before)
        given = _noise((*function.inputs, *function.states))
        _put_cross(given, window, window.columns)
        _put_self(given, decoder.keys, decoder.values, tree.slots[tree.before])
        logits, alignment = tree.feed(decoder, tree.passed)
        given |= tree.inputs(function, self._built)
        given["cross_mask"][...] = MASKED
        given["cross_mask"][..., window.columns] = window.features.bias
        states = {state.name for state in function.states}
        after = {name: given[name].copy() for name in states}
        if "put" in given:
            _put_self(after, decoder.keys, decoder.values, tree.slots[tree.passed])
        outputs = _anything(function.outputs)
        _put_logits(outputs, function.logits, logits)
        outputs["alignment"][0][:, : tree.n, window.columns] = alignment.swapaxes(0, 1)
        if "new_k" in outputs:
            slots = tree.slots[tree.passed]
            for name, cache in (("new_k", decoder.keys), ("new_v", decoder.values)):
                new = outputs[name]
                new[..., : tree.n] = _columns(cache[:, slots], new)
        inputs = {name: array for name, array in given.items() if name not in states}
        return Call(function, inputs, {name: given[name] for name in states}, outputs, after)


@dataclass(frozen=True, slots=True)
class _Window:
    """What the reference made of a window.

    `mel` is that of the positions to compute, `columns` are where a package has the positions that
    attention sees, `hidden` is what left each layer, (n, n_state).
    """

    mel: Mel
    columns: NDArray[np.int64]
    hidden: Mapping[int, Array]
    features: ReferenceFeatures


def _zeros(tensors: Sequence[TensorSpec]) -> Arrays:
    return {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in tensors}


def _anything(tensors: Sequence[TensorSpec]) -> Arrays:
    return {tensor.name: np.full(tensor.shape, np.nan, np.float32) for tensor in tensors}


def _noise(tensors: Sequence[TensorSpec]) -> Arrays:
    """Numbers of half precision: what there is of a window that is over."""
    random = np.random.default_rng(7)
    return {
        tensor.name: random.standard_normal(tensor.shape).astype(np.float16).astype(np.float32)
        for tensor in tensors
    }


def _rows(array: Array, i: int, which: str) -> Array:
    """Keys (n_layer, n, 1, n_state) or values (n_layer, n_state, 1, n) of a layer: (n, n_state)."""
    return array[i, :, 0] if which == "key" else array[i, :, 0].T


def _put_cross(arrays: Arrays, window: _Window, columns: NDArray[np.int64]) -> None:
    features, n = window.features, len(columns)
    for name, cache in (("cross_k", features.keys), ("cross_v", features.values)):
        if name in arrays:
            arrays[name][..., columns] = _columns(cache[:, :n], arrays[name])


def _put_self(arrays: Arrays, keys: Array, values: Array, slots: NDArray[np.int64]) -> None:
    for name, cache in (("self_k", keys), ("self_v", values)):
        if name in arrays:
            arrays[name][..., slots] = _columns(cache[:, slots], arrays[name])


def _columns(cache: Array, like: Array) -> Array:
    """The reference's cache (L, n, n_state) in the layout of Core ML's, (L, H, d, n)."""
    n_layer, n_head, d_head, _ = like.shape
    return cache.reshape(n_layer, -1, n_head, d_head).transpose(0, 2, 3, 1)


def _put_logits(outputs: Arrays, names: Sequence[str], logits: Array) -> None:
    """Each token's logits, cut into the chunks in which they come."""
    start = 0
    for name in names:
        chunk = logits[:, start : start + outputs[name].shape[3]]
        outputs[name][0, : len(chunk), 0, : chunk.shape[1]] = chunk
        start += outputs[name].shape[3]
