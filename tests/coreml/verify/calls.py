"""One call of each function of a built encoder, with what must come out of it.

The reference computes that (`engines/reference.py`), so a function that is wrong is found by its
name, on any machine that can run it: with the interpreter anywhere, with Core ML on a Mac. What the
masks hide is filled with noise; what nobody reads may come out as it likes, if it is a number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamd.engines.coreml.package import MASKED, POSITIONS, BuiltModel, Function, Shapes
from streamd.engines.reference import Notice, linear
from streamd.models.model import Model
from streamd.models.silence import MARGIN, STRIDE, bias, extend, longest_extent
from streamd.types import Mel
from tests.support.coreml_runs import held_reference

Array = NDArray[np.float32]
Arrays = dict[str, Array]

_N_MISSING = 9
"""Positions by which a window is shorter than what fits."""
_N_KNOWN = 5 * STRIDE
"""Positions that a window has from the one before it."""


@dataclass(frozen=True, slots=True)
class Call:
    """What goes into a function and what must come out; NaN stands where any number will do."""

    function: Function
    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True, slots=True)
class _Window:
    """What the reference made of a window.

    `mel` is that of the positions to compute, `columns` are where a package has the positions that
    attention sees, `added` what is added to their scores, `hidden` what left each layer, and
    `states` as of `ReferenceFeatures`.
    """

    mel: Mel
    columns: NDArray[np.int64]
    added: Array
    hidden: Mapping[int, Array]
    states: Array


class Calls:
    """Makes calls of one built encoder."""

    def __init__(self, built: BuiltModel, model: Model, mel: Mel) -> None:
        """`mel`: the log-mel of a recording, (n_mels, 2 * n_audio_ctx)."""
        self._built, self._mel = built, mel
        self._positions = np.load(built.folder / POSITIONS)
        self._model = model

    def call(self, function: Function) -> Call:
        """A call of this function."""
        return self._encode(function) if function.n_ctx else self._resume(function)

    def _encoded(
        self, n: int, width: int, audio_ctx: int = 0, known: Array | None = None
    ) -> _Window:
        """The first `n` positions; in the package, the states of silence begin after `width`."""
        dims = self._built.meta.dims
        mel, extent = extend(
            self._mel[:, : 2 * n], dims, has_silence=not audio_ctx, audio_ctx=audio_ctx
        )
        hidden = {}

        def notice(where: str, values: Array) -> None:
            layer = where.removeprefix("encoder.blocks.")
            if layer.isdecimal():
                hidden[int(layer)] = values

        states = self._reference(notice).states(mel, extent, known)
        biases = bias(dims.n_audio_ctx)[extent.first :]
        first = width + extent.first
        columns = np.concatenate([np.arange(extent.n), np.arange(first, first + len(biases))])
        added = np.concatenate([np.zeros(extent.n, np.float32), biases])
        return _Window(mel, columns, added, hidden, states)

    def _reference(self, notice: Notice = lambda where, values: None):
        return held_reference(self._built, self._model, notice=notice)

    def _encode(self, function: Function) -> Call:
        """A window that is a little shorter than what fits."""
        dims = self._built.meta.dims
        if function.n_ctx == dims.n_audio_ctx:
            n = dims.n_audio_ctx - _N_MISSING
            window = self._encoded(n, function.width, audio_ctx=n)
        else:
            n = longest_extent(dims) - MARGIN - _N_MISSING
            window = self._encoded(n, function.width)
        inputs, outputs = _filled(function.inputs, 0), _filled(function.outputs, np.nan)
        if function.part == 0:
            inputs["mel"][0, :, 0, : window.mel.shape[1]] = window.mel
            places = self._positions[: function.width]
            inputs["positions"][0, :, 0, : len(places)] = places.T
        else:
            before = self._left(window, function.part - 1)
            inputs["hidden"][0, :, 0, : len(before)] = before.T
        inputs["mask"][...] = MASKED
        inputs["mask"][0, window.columns, 0, 0] = window.added
        n = window.mel.shape[1] // 2
        outputs["encoded"][0, :, 0, :n] = self._left(window, function.part)[:n].T
        if "new_k" in outputs:
            self._put_new(outputs, window, function.part, 0, 0)
        return Call(function, inputs, outputs)

    def _resume(self, function: Function) -> Call:
        """A window of which more positions are known than the call needs."""
        meta, k = self._built.meta, function.width
        begin = 4 * STRIDE
        skipped = _N_KNOWN - begin
        n = k + begin - MARGIN
        before = self._encoded(n - STRIDE, k).states[:, :_N_KNOWN]
        window = self._encoded(n, meta.n_kept + k, known=before)
        inputs, outputs = _noise(function.inputs), _filled(function.outputs, np.nan)
        if function.part == 0:
            inputs["mel"][0, :, 0] = window.mel[:, 2 * begin :]
            table = self._positions[begin : begin + k]
            inputs["positions"][0, :, 0] = table.T
        else:
            inputs["hidden"][0, :, 0, skipped:] = self._left(window, function.part - 1).T
        inputs["mask"][...] = MASKED
        inputs["mask"][0, :_N_KNOWN, 0, 0] = 0
        inputs["mask"][0, meta.n_kept + skipped : meta.n_kept + k, 0, 0] = 0
        silent = window.columns[window.columns >= meta.n_kept + k]
        inputs["mask"][0, silent, 0, 0] = window.added[begin + k :]
        for array, values in self._keys_values(inputs, "kept", window, function.part):
            array[:_N_KNOWN] = values[:_N_KNOWN]
        self._put_new(outputs, window, function.part, _N_KNOWN, skipped)
        wanted = self._left(window, function.part)
        is_last = function.part + 1 == len(meta.layers)
        wanted = wanted[_N_KNOWN : begin + k] if is_last else wanted
        outputs["encoded"][0, :, 0, skipped:] = wanted.T
        return Call(function, inputs, outputs)

    def _left(self, window: _Window, part: int) -> Array:
        """What leaves a part of the encoder, of the last with silence: (n, n_state)."""
        layers = self._built.meta.layers
        if part + 1 == len(layers):
            return window.states[-1]
        return window.hidden[layers[part][-1]]

    def _put_new(self, outputs: Arrays, window: _Window, part: int, first: int, place: int) -> None:
        """Positions from `first` on are wanted from `place` on, as many as are computed."""
        n = window.mel.shape[1] // 2
        for array, values in self._keys_values(outputs, "new", window, part):
            rows = values[first:n][: len(array) - place]
            array[place : place + len(rows)] = rows

    def _keys_values(self, arrays: Arrays, which: str, window: _Window, part: int):
        """Of each layer of a part, rows of an array (n, n_state), and the states' projections."""
        weights = self._reference().weights
        for i, layer in enumerate(self._built.meta.layers[part]):
            for name in ("key", "value"):
                array = arrays[f"{which}_{name[0]}"]
                rows = array[i, :, 0] if name == "key" else array[i, :, 0].T
                attn = f"encoder.blocks.{layer}.attn.{name}"
                yield rows, linear(window.states[layer], weights, attn)


def _filled(shapes: Shapes, value: float) -> Arrays:
    return {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}


def _noise(shapes: Shapes) -> Arrays:
    """Numbers of half precision: what there is of a window that is over."""
    random = np.random.default_rng(7)
    return {
        name: random.standard_normal(shape).astype(np.float16).astype(np.float32)
        for name, shape in shapes.items()
    }
