"""The Neural Engine's rules, as far as a saved program shows whether it keeps them.

What a package does not show is not here: whether a device gains from it, or falls back.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from streamd.engines.coreml.package import LONGEST_AXIS
from tests.coreml.interpreter.saved import Function, Program
from tests.coreml.lint import operations, tensors, weights
from tests.coreml.lint.places import Place

Severity = Literal["error", "warning"]

_APPLE = "apple/coreai-models, neural_engine_rules.md"
_TRANSFORMERS = "apple/ml-ane-transformers"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: who says so, what to do, and what in a function breaks it."""

    name: str
    severity: Severity
    source: str
    cure: str
    broken: Callable[[Program, Function], Iterator[Place]]


READ_ONLY = Rule(
    "read-only cache",
    "error",
    f"{_APPLE}; mobius #77",
    "return what is new and let the host write it",
    operations.writes,
)

RULES = (
    Rule("at most 5 axes", "error", _APPLE, "merge axes", tensors.too_many_axes),
    Rule("4 axes", "warning", _TRANSFORMERS, "make it (1, C, 1, S)", tensors.not_four_axes),
    Rule("half precision", "error", _APPLE, "make it float16", tensors.not_half),
    Rule(
        "static shapes",
        "error",
        f"{_APPLE}; coremltools #1909",
        "make a function for each shape",
        tensors.dynamic,
    ),
    Rule(
        "longest axis",
        "error",
        "ggml-org/whisper.cpp, convert-whisper-to-coreml.py",
        f"cut it into chunks of {LONGEST_AXIS}",
        tensors.long_axis,
    ),
    Rule(
        "64 bytes",
        "warning",
        _APPLE,
        "pad it to a multiple of 32, or put a longer axis last",
        tensors.odd_width,
    ),
    Rule(
        "state of 64 bytes",
        "error",
        "coremltools #2631",
        "pad it to a multiple of 32",
        tensors.odd_state,
    ),
    Rule("convolutions", "error", _TRANSFORMERS, "make it a 1x1 convolution", operations.linear),
    Rule(
        "softmax over channels",
        "warning",
        f"{_APPLE}; argmaxinc/WhisperKit ships it like this",
        "put the keys along axis 1",
        operations.other_softmax,
    ),
    Rule("finite masks", "error", _APPLE, "mask with -40000", tensors.not_finite),
    Rule(
        "layer norm",
        "warning",
        f"{_APPLE}; squares beyond 256 overflow",
        "use layer_norm over axis 1",
        operations.other_layer_norm,
    ),
    Rule(
        "bounded squares",
        "error",
        "microsoft/onnxruntime #31626; FluidAudio #648",
        "multiply its input by a power of two, and epsilon by the square",
        operations.unscaled_layer_norm,
    ),
    Rule(
        "no subnormal constants",
        "error",
        "units may take them for zero; streamd",
        "scale what they are added to",
        tensors.subnormal,
    ),
    Rule(
        "cleared states",
        "error",
        "0 times NaN is NaN; streamd",
        "write zeros that owe nothing to the state",
        operations.cleared_by_zero,
    ),
    Rule(
        "states are no outputs",
        "error",
        "coremltools #2713",
        "return something else",
        operations.written_and_returned,
    ),
    Rule(
        "operations",
        "error",
        "hollance/neural-engine; FluidAudio, ANE_Profiler.md",
        "express it by others: masks, one-hot products, tables on the host",
        operations.unknown,
    ),
    READ_ONLY,
    Rule(
        "constant indices",
        "error",
        "apple/coreai-torch #6",
        "use masks and one-hot products",
        operations.indexed_at_run_time,
    ),
    Rule("file size", "error", "coremltools #1807", "split the package", weights.too_large),
    Rule("package size", "warning", "ANEMLL; whisper.coreml", "split the package", weights.large),
    Rule(
        "number of operations",
        "warning",
        "KataGo #1202",
        "split the function, or attend with all heads at once",
        operations.many_operations,
    ),
    Rule(
        "decoded once",
        "error",
        "coremltools #2688",
        "put the scale into the palette",
        weights.decoded_twice,
    ),
    Rule("no blocks", "warning", "ane-book", "use palettes", weights.blocks),
    Rule(
        "palettes and states",
        "warning",
        "coremltools #2716",
        "use 6 or 8 bits",
        weights.small_palette_and_states,
    ),
)
