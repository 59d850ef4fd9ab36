"""A built model in the worker: its functions loaded, run on numpy arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from streamd.engine.coreml.built import Built
from streamd.engine.coreml.package import MASKED, Function, Kind
from streamd.engine.coreml.runtime.caches import Seat
from streamd.engine.coreml.runtime.library import Array, Library, Loaded, State
from streamd.engine.coreml.runtime.messages import Step
from streamd.engine.coreml.runtime.passes import choose, fill, new_inputs
from streamd.engine.coreml.runtime.placement import Placement


@dataclass(frozen=True, slots=True)
class _Ready:
    """A loaded function with the arrays of its inputs, which live as long as the process."""

    model: Loaded
    inputs: dict[str, Array]


class Programs:
    """What a worker runs: windows in seats, passes over them."""

    def __init__(
        self, built: Built, placement: Placement, library: Library, told: Callable[[str], None]
    ) -> None:
        """Load everything that the placement needs; `told` hears what takes long.

        Raises
        ------
        OSError
            The model's files, or the compiled ones, cannot be read or written.
        RuntimeError
            Core ML refuses the model.
        """
        self._built, self._form = built, placement.form
        functions = [f for f in built.functions if placement.form in f.forms]
        library.compile(built, functions, told)
        self._ready: dict[Function, _Ready] = {}
        for function in functions:
            told(f"loading {function.package}, {function.name}")
            model = library.load(built.path(function), function.name, placement.unit(function))
            self._ready[function] = _Ready(model, new_inputs(function))
        self._passes = tuple(f for f in functions if f.kind in ("step", "align"))
        self._seats: dict[int, Seat] = {}

    def encode(self, seat: int, mel: Array, n_ctx: int) -> None:
        """Encode (n_mels, 2 * n_ctx) log-mel and give the seat to it."""
        built = self._built
        context = built.context(n_ctx)
        x = mel
        for function in built.encoder(self._form, context):
            inputs = self._ready[function].inputs
            (first, mask) = (inputs[tensor.name] for tensor in function.inputs)
            first[..., x.shape[-1] :] = 0
            first[..., : x.shape[-1]] = x.reshape(first.shape[1], 1, -1)
            mask[...] = MASKED
            mask[:, :n_ctx] = 0
            x = self._call(function, inputs)["encoded"]
        kind: Kind = "load" if self._form == "state" else "cross"
        function = built.find(kind, self._form, n_ctx=context)
        inputs = self._ready[function].inputs
        inputs["encoded"][...] = x
        self._seat(seat).take(n_ctx, lambda state: self._call(function, inputs, state))

    def step(self, step: Step) -> tuple[Array, Array]:
        """Run a pass: logits (m, n_vocab) of what it wants, alignment (k, n_heads, n_ctx)."""
        seat, function = self._seats[step.seat], choose(self._passes, step)
        inputs = self._ready[function].inputs
        x = self._built.embedding[step.tokens].astype(np.float32)
        fill(inputs, function, step, x + self._built.positions[step.positions])
        found = self._call(function, {**inputs, **seat.inputs(function)}, seat.state)
        seat.keep(found, step.places)
        alignment = found["alignment"][0, :, : len(step.tokens), : seat.n_ctx].swapaxes(0, 1)
        n_vocab = self._built.meta.dims.n_vocab
        if not len(step.want):
            return np.zeros((0, n_vocab), np.float32), alignment
        chunks = [found[name][0, :, 0] for name in function.logits]
        return np.concatenate(chunks, axis=-1)[step.want, :n_vocab], alignment

    def _seat(self, seat: int) -> Seat:
        if seat not in self._seats:
            decoder = self._ready[self._passes[0]].model
            self._seats[seat] = Seat(self._built.meta, self._form, decoder.make_state)
        return self._seats[seat]

    def _call(
        self, function: Function, inputs: Mapping[str, Array], state: State = None
    ) -> Mapping[str, Array]:
        return self._ready[function].model.predict(dict(inputs), state)
