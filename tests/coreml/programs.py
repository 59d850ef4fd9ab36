"""Small ML programs made for a test, and changes to saved ones."""

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Function, Program, types
from coremltools.proto.Model_pb2 import Model

Shapes = dict[str, tuple[int, ...]]
_HEADER = 64
"""Bytes before a blob's data."""


def saved(folder: Path, graph: Callable[..., Any], inputs: Shapes) -> Path:
    """A package of a function that is called with the inputs by name, of half precision."""
    given = {name: mb.placeholder(shape, dtype=types.fp16) for name, shape in inputs.items()}
    with Function(given, opset_version=ct.target.iOS18) as function:
        result = graph(**function.inputs)
        function.set_outputs([mb.identity(x=result, name="y")])
    program = Program()
    program.add_function("main", function)
    package = folder / "made.mlpackage"
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT32,
            skip_model_load=True,
            pass_pipeline=ct.PassPipeline.EMPTY,  # it would put right what is meant to be wrong
        ).save(str(package))
    return package


class Changed:
    """A copy of a package, to be changed and written back."""

    def __init__(self, package: Path, folder: Path) -> None:
        self.path = folder / package.name
        shutil.copytree(package, self.path)
        (self._file,) = self.path.rglob("*.mlmodel")
        self.model = Model.FromString(self._file.read_bytes())

    def write(self) -> Path:
        self._file.write_bytes(self.model.SerializeToString())
        return self.path

    def operations(self, function: str, kind: str) -> list[Any]:
        """A function's operations of a kind, in order."""
        found = self.model.mlProgram.functions[function]
        block = found.block_specializations[found.opset]
        return [each for each in block.operations if each.type == kind]

    def constant(self, function: str, operation: Any, parameter: str) -> Any:
        """The value behind a constant parameter of an operation."""
        (argument,) = operation.inputs[parameter].arguments
        (found,) = (
            each
            for each in self.operations(function, "const")
            if each.outputs[0].name == argument.name
        )
        return found.attributes["val"]

    @contextmanager
    def weights(self, value: Any) -> Iterator[np.ndarray]:
        """The float16 numbers of a constant in the file of weights, to be written to."""
        (file,) = self.path.rglob("weight.bin")
        shape = tuple(axis.constant.size for axis in value.type.tensorType.dimensions)
        start = value.blobFileValue.offset + _HEADER
        numbers = np.memmap(file, np.float16, "r+", start, shape)
        yield numbers
        numbers.flush()
