"""The Neural Engine's rules, as far as a saved program shows whether it keeps them.

Each has a source. Short names: *coreai* is Apple's ``coreai-models``, skills/model-authoring/
references/neural_engine_rules.md; *ANE transformers* is Apple's article of that name and
apple/ml-ane-transformers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from streamd.engine.coreml.interpreter.saved import Function, Program
from streamd.engine.coreml.lint import operations, tensors, weights
from streamd.engine.coreml.lint.places import Place
from streamd.engine.coreml.package import LONGEST_AXIS

Severity = Literal["error", "warning"]


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
    "coreai, critical checklist; mobius #77: ANECCompile -14",
    "return what is new and let the host write it",
    operations.writes,
)

RULES = (
    Rule("at most 5 axes", "error", "coreai", "merge axes", tensors.too_many_axes),
    Rule(
        "4 axes",
        "warning",
        "coreai; ANE transformers",
        "make it (1, C, 1, S)",
        tensors.not_four_axes,
    ),
    Rule(
        "half precision",
        "error",
        "coreai; whisper_ane; FluidAudio",
        "make it float16",
        tensors.not_half,
    ),
    Rule(
        "static shapes",
        "error",
        "coreai; coremltools #1909; speech-swift #282",
        "make a function for each shape",
        tensors.dynamic,
    ),
    Rule(
        "longest axis",
        "error",
        "whisper.cpp convert-whisper-to-coreml.py; RobertRiachi",
        f"cut it into chunks of {LONGEST_AXIS}",
        tensors.long_axis,
    ),
    Rule(
        "64 bytes",
        "warning",
        "coreai",
        "pad it to a multiple of 32, or lay it out so",
        tensors.odd_width,
    ),
    Rule(
        "state of 64 bytes",
        "error",
        "coremltools #2631",
        "pad it to a multiple of 32",
        tensors.odd_state,
    ),
    Rule(
        "convolutions",
        "error",
        "coreai; ANE transformers",
        "make it a 1x1 convolution",
        operations.linear,
    ),
    Rule(
        "softmax over channels",
        "warning",
        "coreai; ANE transformers; WhisperKit does as you do",
        "put the keys along axis 1",
        operations.other_softmax,
    ),
    Rule("finite masks", "error", "coreai", "mask with -40000", tensors.not_finite),
    Rule(
        "layer norm",
        "warning",
        "coreai: prefer high-level operations; squares overflow at 256",
        "use layer_norm over axis 1",
        operations.other_layer_norm,
    ),
    Rule(
        "operations",
        "error",
        "hollance/neural-engine; FluidAudio",
        "express it by others: masks, one-hot products, tables on the host",
        operations.unknown,
    ),
    READ_ONLY,
    Rule(
        "constant indices",
        "error",
        "coreai-torch #6: crashes the compiler",
        "use masks and one-hot products",
        operations.indexed_at_run_time,
    ),
    Rule("file size", "error", "coremltools #1807", "split the package", weights.too_large),
    Rule("package size", "warning", "ANEMLL; whisper.coreml", "split the package", weights.large),
    Rule(
        "number of operations",
        "warning",
        "KataGo #1202: the compiler's memory grows with it",
        "split the function, or attend with all heads at once",
        operations.many_operations,
    ),
    Rule(
        "palettes without scales",
        "error",
        "coremltools #2688: fails to load on macOS 26",
        "multiply the palette by the scale",
        weights.decoded_twice,
    ),
    Rule("no blocks", "warning", "ane-book: goes to the GPU", "use palettes", weights.blocks),
    Rule(
        "palettes and states",
        "warning",
        "coremltools #2716: crashes after 100 predictions",
        "use 6 or 8 bits",
        weights.small_palette_and_states,
    ),
)
"""What a package does not show is not here: whether a device gains from it, or falls back."""
