"""What of large-v3-turbo is in memory at once, by arithmetic: benchmarks/RESULTS.md says it."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from weakref import finalize

import pytest

from streamd.engines.coreml.package import BuiltModel, Function, Meta
from streamd.engines.coreml.runtime.programs import PLACEMENTS, Programs, needed
from streamd.models.catalog import dimensions
from streamd.models.model import parameter_shapes

DIMS = dimensions("large-v3-turbo")
SHAPES = parameter_shapes(DIMS)
TURBO = BuiltModel(
    Path("turbo"),
    Meta(
        name="turbo",
        coremltools="",
        dims=DIMS,
        alignment_heads=((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)),
        contexts=(1024, 1500),
        norms={},
        silence=True,
        n_resumed=192,
    ),
)
PAGE = (Path(__file__).parents[3] / "benchmarks/RESULTS.md").read_text()
ON_GPU_ALONE = PLACEMENTS["gpu"][0]
ALL_ON_NEURAL_ENGINE = PLACEMENTS["ane"][1]
IN_ONE_FUNCTION = PLACEMENTS["gpu"][2]


def parameters(function: Function) -> Iterator[str]:
    """What a function computes with, but for the states of silence, which are a hundredth of it."""
    parts = TURBO.meta.layers
    for name in SHAPES:
        side, *path = name.split(".")
        block = int(path[1]) if path[0] == "blocks" else None
        is_cross = "cross_attn.key" in name or "cross_attn.value" in name
        if function.kind in ("encode", "resume"):
            outside = function.part == (len(parts) - 1 if path[0] == "ln_post" else 0)
            inside = block in parts[function.part] if block is not None else outside
            found = side == "encoder" and inside
        elif function.kind == "cross":
            found = is_cross
        else:
            outside = path[0] != "positional_embedding" and bool(function.logits)
            found = side == "decoder" and not is_cross and (block is not None or outside)
        if found:
            yield name


def n_bytes(*functions: Function) -> int:
    """Of the float16 weights of functions that share them."""
    return sum(
        2 * prod(SHAPES[name]) for name in {name for f in functions for name in parameters(f)}
    )


class Loaded:
    """A function that is loaded, and its state."""

    def make_state(self) -> "Loaded":
        return self

    def write_state(self, name, value): ...


class Counting:
    """A library whose functions weigh something, each by itself, until they are dropped."""

    def __init__(self) -> None:
        self.n_bytes = self.peak = 0

    def compile(self, built, functions, on_progress): ...

    def load(self, function: Function, unit: str) -> Loaded:
        self._add(n_bytes(function))
        self.peak = max(self.peak, self.n_bytes)
        loaded = Loaded()
        finalize(loaded, self._add, -n_bytes(function))
        return loaded

    def _add(self, n: int) -> None:
        self.n_bytes += n


def said(n: int) -> str:
    return f"{n / 1e9:.2g} GB"


@pytest.mark.parametrize("placement", [ON_GPU_ALONE, ALL_ON_NEURAL_ENGINE], ids=str)
def test_one_function_is_in_memory_while_core_ml_compiles(placement):
    library = Counting()
    programs = Programs(TURBO, placement, library, lambda text: None)
    programs.load(needed(TURBO, placement), keep=False)
    assert library.peak == max(map(n_bytes, TURBO.functions))
    assert library.n_bytes == 0
    assert f"at most {said(library.peak)}" in PAGE


def test_what_serves_is_in_memory_as_a_whole():
    apart, shared = [], []
    for placement in (ON_GPU_ALONE, ALL_ON_NEURAL_ENGINE, IN_ONE_FUNCTION):
        functions, library = needed(TURBO, placement), Counting()
        programs = Programs(TURBO, placement, library, lambda text: None)
        programs.load(functions, keep=True)
        assert library.n_bytes == library.peak == sum(map(n_bytes, functions))
        apart.append(library.peak)
        shared.append(n_bytes(*functions))
    assert f"{said(shared[0])} of weights if Core ML shares them" in PAGE
    assert f"{said(apart[0])} (on the GPU) or {said(apart[1])}" in PAGE
    assert f"{said(apart[2])} with a decoder in one function" in PAGE


def test_what_is_kept_of_a_window_takes_memory_too():
    numbers = [4 * prod(t.shape) for f in TURBO.functions for t in f.inputs if "kept" in t.name]
    assert f"another {sum(numbers) / 1e6:.0f} MB for each window in use" in PAGE
