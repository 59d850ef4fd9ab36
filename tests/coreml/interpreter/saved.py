"""A saved ML program (``.mlpackage``) as plain values: functions, operations, types, constants.

It reads the files that Core ML will read, with coremltools' protobuf classes and none of its
converters: what is checked is what was saved. Knows nothing of what an operation computes. Formats:
apple/coremltools ``mlmodel/format/{Model,MIL}.proto`` and ``modelpackage``.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.coreml.interpreter.blobs import Blobs

Value = NDArray[Any] | str
"""A constant, in the type in which it is stored."""

_Message = Any
"""Of protobuf, which has no types to offer."""

DYNAMIC = -1
"""The size of an axis that is known only at run time."""


_PROTO = "coremltools_proto"
SPECIFICATION, OPSET = 9, "CoreML8"
"""Of iOS 18 and macOS 15: the first with states and with several functions; their operations."""
_WEIGHTS = "weights/weight.bin"
"""Beside the program."""


def _proto(name: str) -> ModuleType:
    """One of coremltools' protobuf modules.

    Importing coremltools takes two seconds, which every worker on the stand-in would spend; its
    protobuf modules need nothing else of it, so they are imported as a package of their own.
    """
    if _PROTO not in sys.modules:
        found = find_spec("coremltools")
        folder = Path(found.submodule_search_locations[0]) / "proto"
        spec = spec_from_file_location(
            _PROTO, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[_PROTO] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[_PROTO])
    return import_module(f"{_PROTO}.{name}")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named value of the program; `dtype` is MIL's name in lower case: ``float16``, ``int32``."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; its inputs are names of constants or earlier values."""

    kind: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: tuple[Tensor, ...]

    @property
    def name(self) -> str:
        """What it is called: as its first output."""
        return self.outputs[0].name


@dataclass(frozen=True, slots=True)
class Function:
    """One function: `operations` are in order and without constants, ``constexpr_*`` included.

    They are those of the set `opset`.
    """

    name: str
    opset: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    constants: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Program:
    """A package: equal constants of several functions are the same arrays.

    `default` is the function that is meant where none is named, `n_weight_bytes` the size of the
    file of weights, `specification` the version of the format.
    """

    path: Path
    functions: Mapping[str, Function]
    default: str
    n_weight_bytes: int
    specification: int


def read_program(package: Path) -> Program:
    """Read a package; what is damaged raises anything."""
    manifest = json.loads((package / "Manifest.json").read_bytes())
    root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
    file = package / "Data" / root
    model = _proto("Model_pb2").Model.FromString(file.read_bytes())
    weights = file.parent / _WEIGHTS
    blobs = Blobs(weights) if weights.exists() else None
    functions = {
        name: _Reader(name, blobs).function(function)
        for name, function in sorted(model.mlProgram.functions.items())
    }
    default = model.description.defaultFunctionName or "main"
    n_bytes, version = weights.stat().st_size if blobs else 0, model.specificationVersion
    return Program(package, functions, default, n_bytes, version)


@dataclass(slots=True)
class _Reader:
    """Reads one function."""

    name: str
    blobs: Blobs | None

    def function(self, function: _Message) -> Function:
        block = function.block_specializations[function.opset]
        constants: dict[str, Value] = {}
        operations = []
        for each in block.operations:
            if each.type == "const":
                constants[each.outputs[0].name] = self._value(each.attributes["val"])
            else:
                operations.append(self._operation(each, constants))
        return Function(
            name=self.name,
            opset=function.opset,
            inputs=tuple(self._tensor(each) for each in function.inputs),
            outputs=tuple(block.outputs),
            operations=tuple(operations),
            constants=constants,
        )

    def _operation(self, operation: _Message, constants: dict[str, Value]) -> Operation:
        """Values that stand in the operation itself become constants."""
        label = operation.outputs[0].name
        inputs = {}
        for parameter, argument in operation.inputs.items():
            names = []
            for i, each in enumerate(argument.arguments):
                names.append(each.name or f"{label}.{parameter}.{i}")
                if each.HasField("value"):
                    constants[names[-1]] = self._value(each.value)
            inputs[parameter] = tuple(names)
        for parameter, value in operation.attributes.items():
            if parameter != "name":
                inputs[parameter] = (f"{label}.{parameter}",)
                constants[inputs[parameter][0]] = self._value(value)
        outputs = tuple(self._tensor(output) for output in operation.outputs)
        return Operation(operation.type, inputs, outputs)

    def _tensor(self, named: _Message) -> Tensor:
        kind = named.type.tensorType
        return Tensor(named.name, _dtype(kind), _shape(kind))

    def _value(self, value: _Message) -> Value:
        kind = value.type.tensorType
        dtype, shape = _dtype(kind), _shape(kind)
        if value.HasField("blobFileValue"):
            assert self.blobs is not None
            return self.blobs.array(value.blobFileValue.offset, dtype, shape)
        tensor = value.immediateValue.tensor
        field = tensor.WhichOneof("value")
        values = getattr(tensor, field).values
        if field == "strings":
            return str(values[0])
        if field == "bytes":
            return np.frombuffer(values, dtype).reshape(shape)
        return np.array(values, dtype).reshape(shape)


def _dtype(tensor: _Message) -> str:
    return str(_proto("MIL_pb2").DataType.Name(tensor.dataType)).lower()


def _shape(tensor: _Message) -> tuple[int, ...]:
    return tuple(
        axis.constant.size if axis.HasField("constant") else DYNAMIC for axis in tensor.dimensions
    )
