"""Serialises ONNX graphs: the few messages of ``onnx.proto`` that a graph without data needs.

This module replaces the ``onnx`` package, which takes 24 MB; the tests read its output with that
package's checker. Field numbers: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (proto2);
wire format: https://protobuf.dev/programming-guides/encoding/.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

IR_VERSION = 10

Shape = Sequence[int | str]
"""Sizes of the axes; a string names a size that is known only at run time."""
Attributes = Mapping[str, int | float | str | Sequence[int]]


class ElementType(IntEnum):
    """``TensorProto.DataType``, under numpy's names."""

    FLOAT32 = 1
    UINT8 = 2
    INT8 = 3
    INT32 = 6
    INT64 = 7
    FLOAT16 = 10


_VARINT, _BYTES, _FIXED32 = 0, 2, 5
"""Wire types."""
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_STRING, _ATTRIBUTE_INTS = 1, 2, 3, 7
_EXTERNAL = 1
"""``TensorProto.DataLocation``."""


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are written as two's complement of 64 bits
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """Encode one field of a message; a nested message is passed as its bytes."""
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _fields(number: int, values: Iterable[int | str | bytes]) -> bytes:
    """Encode a repeated field, not packed."""
    return b"".join(_field(number, value) for value in values)


def model(
    nodes: Sequence[bytes],
    *,
    inputs: Sequence[bytes],
    outputs: Sequence[bytes],
    initializers: Sequence[bytes],
    opsets: Mapping[str, int],
) -> bytes:
    """Encode a ``ModelProto`` of one graph; `opsets` maps a domain of operators to its version."""
    graph = (
        _fields(1, nodes)
        + _field(2, "whisper")
        + _fields(5, initializers)
        + _fields(11, inputs)
        + _fields(12, outputs)
    )
    versions = (_field(1, domain) + _field(2, version) for domain, version in opsets.items())
    return _field(1, IR_VERSION) + _field(7, graph) + _fields(8, versions)


def node(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    name: str,
    domain: str = "",
    attributes: Attributes | None = None,
) -> bytes:
    """Encode a ``NodeProto``; an empty name among `inputs` omits an optional input."""
    encoded = _fields(1, inputs) + _fields(2, outputs) + _field(3, name) + _field(4, kind)
    settings = (_attribute(key, value) for key, value in (attributes or {}).items())
    return encoded + _fields(5, settings) + _field(7, domain)


def _attribute(name: str, value: int | float | str | Sequence[int]) -> bytes:
    encoded = _field(1, name)
    if isinstance(value, str):
        return encoded + _field(4, value) + _field(20, _ATTRIBUTE_STRING)
    if isinstance(value, float):
        return encoded + _field(2, value) + _field(20, _ATTRIBUTE_FLOAT)
    if isinstance(value, int):
        return encoded + _field(3, value) + _field(20, _ATTRIBUTE_INT)
    return encoded + _fields(8, value) + _field(20, _ATTRIBUTE_INTS)


def value_info(name: str, element: ElementType, shape: Shape) -> bytes:
    """Encode a ``ValueInfoProto``: an input or an output of the graph."""
    sizes = (_field(2 if isinstance(size, str) else 1, size) for size in shape)
    tensor = _field(1, element) + _field(2, _fields(1, sizes))
    return _field(1, name) + _field(2, _field(1, tensor))


def constant(name: str, values: NDArray[Any]) -> bytes:
    """Encode a ``TensorProto`` with its values."""
    little_endian = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return _tensor(name, values) + _field(9, little_endian.tobytes())


def external(name: str, values: NDArray[Any], file: str, offset: int) -> bytes:
    """Encode a ``TensorProto`` whose values are in a file beside the graph's, from `offset` on.

    The runtime does not look there if it gets them when it loads the graph.
    """
    place = {"location": file, "offset": f"{offset}", "length": f"{values.nbytes}"}
    entries = (_field(13, _field(1, key) + _field(2, text)) for key, text in place.items())
    return _tensor(name, values) + b"".join(entries) + _field(14, _EXTERNAL)


def _tensor(name: str, values: NDArray[Any]) -> bytes:
    element = ElementType[values.dtype.name.upper()]
    return _fields(1, values.shape) + _field(2, element) + _field(8, name)
