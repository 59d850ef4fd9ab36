"""The layers that Whisper is made of, as operations of coremltools' MIL builder.

Tensors are (1, channels, 1, positions), as the Neural Engine wants them: a linear layer is a 1x1
convolution. Weights are float16, or palettes; functions of a package that use the same parameter
share one copy of it on disk. Operations are called after their parameters, for whoever reads a plan
or a complaint of Core ML.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813 (everybody calls it so)
from coremltools.converters.mil.mil import Var, types
from numpy.typing import NDArray

from streamd.engine import ModelDimensions, Weights
from streamd.engine.coreml.compress import is_worth_it, packed, palette
from streamd.engine.coreml.package import Bits
from streamd.errors import ModelError

Half = NDArray[np.float16]

_EPSILON = np.float16(1e-5)


class Layers:
    """A model's layers, for the functions of one package."""

    def __init__(
        self, dims: ModelDimensions, weights: Weights, bits: Bits = 16, *, packed: bool = False
    ) -> None:
        """`packed`: the indices of palettes lie in bytes without gaps, as macOS 13 has them."""
        self.dims = dims
        self._weights = weights
        self._bits = bits
        self._packed = packed
        self._halves: dict[str, Half] = {}
        self._palettes: dict[str, dict[str, NDArray[Any]]] = {}

    def has(self, name: str) -> bool:
        """Whether the model has such a parameter."""
        return name in self._weights

    def parameter(self, name: str) -> NDArray[np.float32]:
        """A parameter as the model has it."""
        return self._weights[name]

    def constant(self, name: str, values: NDArray[Any]) -> Var:
        """A float16 tensor; in one package a `name` stands for the same values everywhere.

        Raises
        ------
        ModelError
            They are beyond what float16 holds.
        """
        return _shared(name, self._half(name, values))

    def weight(self, name: str, values: NDArray[Any]) -> Var:
        """The same for a large one, which is compressed if anything is."""
        if name not in self._palettes:
            half = self._half(name, values)
            if self._bits == 16 or not is_worth_it(half):
                return _shared(name, half)
            self._palettes[name] = self._palette(half)
            del self._halves[name]
        operands = self._palettes[name]
        shared = {each: _shared(f"{name}.{each}", operands[each]) for each in ("indices", "lut")}
        return mb.constexpr_lut_to_dense(**operands | shared)

    def linear(self, x: Var, name: str, *, scale: float = 1.0) -> Var:
        """``scale * (W @ x + b)``; the projections to keys have no bias."""
        weight = self.parameter(f"{name}.weight")[:, :, None, None]
        bias = f"{name}.bias"
        return mb.conv(
            x=x,
            weight=self.weight(f"{name}.weight", _scaled(weight, scale)),
            bias=self.constant(bias, _scaled(self.parameter(bias), scale))
            if self.has(bias)
            else None,
            pad_type="valid",
            name=_identifier(name),
        )

    def convolution(self, x: Var, name: str, *, stride: int) -> Var:
        """Convolve over positions with kernel 3 and one column of padding at both ends."""
        return mb.conv(
            x=x,
            weight=self.weight(f"{name}.weight", self.parameter(f"{name}.weight")[:, :, None, :]),
            bias=self.constant(f"{name}.bias", self.parameter(f"{name}.bias")),
            pad_type="custom",
            pad=[0, 0, 1, 1],
            strides=[1, stride],
            name=_identifier(name),
        )

    def layer_norm(self, x: Var, name: str) -> Var:
        """Normalise each position's channels."""
        return mb.layer_norm(
            x=x,
            axes=[1],
            gamma=self.constant(f"{name}.weight", self.parameter(f"{name}.weight")),
            beta=self.constant(f"{name}.bias", self.parameter(f"{name}.bias")),
            epsilon=_EPSILON,
            name=_identifier(name),
        )

    def feed_forward(self, x: Var, block: str) -> Var:
        """Two linear layers with an exact GELU between them, behind a layer norm."""
        y = self.linear(self.layer_norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0")
        return self.linear(gelu(y), f"{block}.mlp.2")

    def _palette(self, half: Half) -> dict[str, NDArray[Any]]:
        """A palette as the operation takes it, which is another one from macOS 15 on."""
        found = palette(half, self._bits)
        if self._packed:
            shape = np.array(half.shape, np.uint32)
            return {
                "indices": packed(found.indices, self._bits),
                "lut": found.colours,
                "shape": shape,
            }
        small = types.nptype_from_builtin(types.string_to_builtin(f"uint{self._bits}"))
        lut = found.colours.reshape(*[1] * half.ndim, -1, 1)
        return {"indices": found.indices.astype(small), "lut": lut}

    def _half(self, name: str, values: NDArray[Any]) -> Half:
        if name not in self._halves:
            with np.errstate(over="ignore"):
                half = np.ascontiguousarray(values, np.float16)
            if not np.isfinite(half).all():
                raise ModelError(f"{name} holds values beyond float16's: Core ML cannot run it")
            self._halves[name] = half
        return self._halves[name]


def gelu(x: Var) -> Var:
    """The exact GELU."""
    return mb.gelu(x=x, mode="EXACT")


def concat(values: Sequence[Var], axis: int) -> Var:
    """The tensors behind each other; one stays as it is."""
    return mb.concat(values=values, axis=axis) if len(values) > 1 else values[0]


def cut(x: Var, axis: int, start: int, stop: int) -> Var:
    """A part of an axis of a tensor of rank 4."""
    if (start, stop) == (0, x.shape[axis]):
        return x
    begin, end = [0] * 4, list(x.shape)
    begin[axis], end[axis] = start, stop
    return mb.slice_by_index(x=x, begin=begin, end=end)


def named(outputs: Mapping[str, Var]) -> list[Var]:
    """The outputs of a function, each made by an operation of its own, under their names."""
    for name, value in outputs.items():
        value.set_name(name)
    return list(outputs.values())


def _identifier(name: str) -> str:
    """A parameter's name as MIL allows it; coremltools does not see to that in such packages."""
    return name.replace(".", "_")


def _scaled(values: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
    return values if scale == 1.0 else values * np.float32(scale)


def _shared(name: str, values: NDArray[Any]) -> Var:
    """A constant; those of the same name in other functions of the package are stored once."""
    constant = mb.const(val=values)
    constant.op.weight_id = name
    return constant
