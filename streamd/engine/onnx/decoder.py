"""The decoder of one window on ONNX Runtime, with its cache of slots.

The graph reads and writes the cache in place, in memory that this module owns. It writes the keys
and values of a pass into consecutive slots and reads none after them, which is what greedy search
and draft verification need. Any other pass is written after all slots that were ever used, and then
moved to the slots that it belongs in.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, IOBinding, OrtValue

from streamd.engine import ModelDimensions
from streamd.engine.onnx.sessions import RUNTIME_FAILURES, engine_error

_POOL_STEP = 64
"""Slots by which the memory grows: most windows need no second step."""
_LEAST_ROWS = 2
"""A single token is run as two rows, of which the second is ignored.

ONNX Runtime multiplies a single row in another order than several rows. The difference in the last
bit grows with the next rounding to int8. With two rows, a token's logits are bit for bit those of a
pass of many tokens, so a verified draft is the text that decoding step by step would have given.
"""


class OnnxDecoder:
    """A `Decoder` (streamd/search/__init__.py) on ONNX Runtime."""

    def __init__(
        self,
        session: InferenceSession,
        dims: ModelDimensions,
        *,
        cross: dict[str, OrtValue],
        n_slots: int,
    ) -> None:
        """`cross`: the encoder's outputs by name. `session` may serve other decoders too."""
        self.n_vocab = dims.n_vocab
        self.n_text_ctx = dims.n_text_ctx
        self.n_slots = n_slots
        self._session = session
        self._io: IOBinding = session.io_binding()
        for name, value in cross.items():
            self._io.bind_ortvalue_input(name, value)
        self._n_heads = session.get_outputs()[1].shape[1]
        self._n_ctx = cross["cross_key_0"].shape()[-1]
        self._n_used = 0
        d_head = dims.n_text_state // dims.n_text_head
        self._pool = np.zeros((dims.n_text_layer, 2, 1, dims.n_text_head, 0, d_head), np.float32)

    def step(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        visible: NDArray[np.bool_],
        want: NDArray[np.int64],
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Run k tokens in one pass, as the protocol says.

        Raises `EngineError` if ONNX Runtime failed.
        """
        # The graph writes the pass at `first` and after: see the module's docstring.
        k, first = len(slots), int(slots[0])
        rows = max(k, _LEAST_ROWS)
        n_used = max(self._n_used, int(slots.max()) + 1)
        in_place = bool((np.diff(slots) == 1).all()) and not visible[:, first + k :].any()
        if not in_place:
            first = n_used  # scratch slots after all others; moved below
        self._grow(max(n_used, first + rows))
        self._n_used = n_used
        seen = np.zeros((rows, first + rows), np.bool_)
        seen[:k, :first] = visible[:, :first]
        if not in_place:
            # `visible` speaks of the slots after this pass, but until its rows are moved there they
            # still hold old keys. The new ones are read from the scratch slots instead.
            seen[:, slots] = False
        seen[:k, first : first + k] = visible[:, slots]
        # The row that is ignored must see something: a softmax over nothing would be NaN.
        seen[k:, first + k :] = True
        # It also writes a slot, which may be in use: keep what is there.
        overwritten = self._pool[..., first + k : first + rows, :].copy()
        inputs: dict[str, NDArray[Any]] = {
            "tokens": np.resize(tokens, rows),
            "positions": np.resize(positions, rows),
            "want": np.ascontiguousarray(want, np.int64),
            "last": np.array([first + rows - 1], np.int32),
            "n_total": np.array([first + rows], np.int32),
            "mask": np.where(seen, np.float32(0), np.float32(-np.inf))[None, None],
        }
        logits = np.empty((len(want), self.n_vocab), np.float32)
        alignment = np.empty((rows, self._n_heads, self._n_ctx), np.float32)
        self._run(inputs, {"logits": logits, "alignment": alignment})
        self._pool[..., first + k : first + rows, :] = overwritten
        if not in_place:
            self._pool[..., slots, :] = self._pool[..., first : first + k, :]
        return logits, alignment[:k]

    def _run(
        self, inputs: dict[str, NDArray[Any]], outputs: dict[str, NDArray[np.float32]]
    ) -> None:
        for name, array in inputs.items():
            self._io.bind_cpu_input(name, array)
        for name, result in outputs.items():
            self._io.bind_output(name, "cpu", 0, np.float32, result.shape, result.ctypes.data)
        try:
            self._session.run_with_iobinding(self._io)
        except RUNTIME_FAILURES as error:
            raise engine_error(error) from error

    def _grow(self, n_slots: int) -> None:
        """Make the memory large enough for the first `n_slots` slots."""
        n_pool = self._pool.shape[-2]
        if n_slots <= n_pool:
            return
        more = -(-n_slots // _POOL_STEP) * _POOL_STEP - n_pool
        self._pool = np.concatenate(
            [
                self._pool,
                np.zeros((*self._pool.shape[:-2], more, self._pool.shape[-1]), np.float32),
            ],
            axis=-2,
        )
        for layer, (keys, values) in enumerate(self._pool):
            for name, array in ((f"key_{layer}", keys), (f"value_{layer}", values)):
                shared = OrtValue.ortvalue_from_numpy(array)  # shares our memory
                self._io.bind_ortvalue_input(name, shared)
                self._io.bind_ortvalue_output(f"new_{name}", shared)
