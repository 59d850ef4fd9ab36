"""Makes a Core ML package of functions that are described as data."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import coremltools as ct
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Function as MilFunction
from coremltools.converters.mil.mil import Program, Var, types

from streamd.engine import Weights
from streamd.engine.coreml.decoder import cross, load, step
from streamd.engine.coreml.encoder import encode
from streamd.engine.coreml.layers import Layers, named
from streamd.engine.coreml.package import Function, Kind, Meta

Graph = Callable[[Function, Meta, Layers, Mapping[str, Var]], dict[str, Var]]

_GRAPHS: Mapping[Kind, Graph] = {
    "encode": encode,
    "cross": cross,
    "load": load,
    "step": step,
    "align": step,
}

_PASSES = (
    "common::const_elimination",
    "common::cast_optimization",
    "common::dead_code_elimination",
    "common::const_deduplication",
    "common::dedup_op_and_var_names",
)
"""What coremltools does to the graphs. All of its ninety passes, which tidy up after other
frameworks, change nothing more in graphs that were written for Core ML, and take five times as
long."""


def save_package(path: Path, functions: Sequence[Function], meta: Meta, weights: Weights) -> None:
    """Write one package with these functions, which share their weights.

    Those of the form "io" run from macOS 13 on and must be alone; all others from macOS 15 on.

    Raises
    ------
    ModelError
        A weight is beyond float16.
    OSError
        It cannot be written.
    """
    legacy = functions[0].name == "main"
    target = ct.target.iOS16 if legacy else ct.target.iOS18
    layers = Layers(meta.dims, weights, meta.bits, packed=legacy)
    program = Program()
    for function in functions:
        program.add_function(function.name, mil_function(function, meta, layers, target))
    program.default_function_name = functions[0].name
    program.export_as_multifunction = not legacy
    # its progress bars are not ours, nor that it leaves its folder to the garbage collector
    with redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=target,
            compute_precision=ct.precision.FLOAT32,  # as it stands: all is float16 already
            pass_pipeline=ct.PassPipeline(list(_PASSES), "cleaning"),
            skip_model_load=True,
            package_dir=str(path),  # or else it leaves a copy in the temporary folder
        )


def mil_function(function: Function, meta: Meta, layers: Layers, target: ct.target) -> MilFunction:
    """A function as coremltools has it, not yet in a program."""
    inputs = {t.name: mb.placeholder(t.shape, dtype=types.fp16) for t in function.inputs}
    inputs |= {
        t.name: mb.state_tensor_placeholder(t.shape, dtype=types.fp16) for t in function.states
    }
    with MilFunction(inputs, opset_version=target) as made:
        outputs = _GRAPHS[function.kind](function, meta, layers, made.inputs)
        made.set_outputs(named(outputs))
    return made
