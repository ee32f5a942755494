"""What rules call functions: requantisation, clamp and table of an operator, and the weights that go with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, Multiply, Pool, Rescale, Window
from weft.compiler.passes.fuse import composed, rising

KINDS = ("conv", "depth", "func", "add", "mul", "max")
"""Operators of rules that are operators of the device."""


@dataclass(frozen=True)
class Function:
    """The parameters of an operator that are no weights, by their names, and its table, 256 bytes, if it has one."""

    values: tuple[tuple[str, float | int], ...]
    table: bytes | None = None

    @property
    def lookup(self) -> np.ndarray | None:
        return None if self.table is None else np.frombuffer(self.table, np.int8)

    @property
    def rises(self) -> bool:
        """Whether it never falls."""
        known = dict(self.values)
        table = self.lookup
        return known.get("scale", 1.0) >= 0 and (table is None or rising(table))

    def then(self, table: np.ndarray) -> Function:
        """It, and then the bytes (256,) that another one makes of all bytes."""
        both = composed(self.lookup, table)
        assert both is not None
        return Function(self.values, both.astype(np.int8).tobytes())

    @property
    def swapped(self) -> Function:
        """That of an addition whose operands are exchanged."""
        other = {"a_scale": "b_scale", "b_scale": "a_scale", "a_zero": "b_zero", "b_zero": "a_zero"}
        return Function(
            tuple(sorted((other.get(name, name), value) for name, value in self.values)), self.table
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights (o, h, w, i), and for each output the bias and the scale. They are equal if they are the same."""

    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.weight is other.weight and self.scale is other.scale

    def __hash__(self) -> int:
        return hash((id(self.weight), id(self.scale)))

    def behind(self, other: Weights) -> Weights:
        """The outputs of both."""
        weight, bias, scale = (
            np.concatenate([one, two])
            for one, two in ((self.weight, other.weight), (self.bias, other.bias), (self.scale, other.scale))
        )
        return Weights(weight, bias, scale)

    def part(self, first: int, count: int) -> Weights:
        """Some of the outputs."""
        chosen = slice(first, first + count)
        return Weights(self.weight[chosen], self.bias[chosen], self.scale[chosen])


_TOLD = {
    "conv": ("x_zero", "y_zero", "low", "high"),
    "depth": ("x_zero", "y_zero", "low", "high"),
    "func": ("scale", "x_zero", "y_zero", "low", "high"),
    "add": ("a_scale", "b_scale", "a_zero", "b_zero", "y_zero", "low", "high"),
    "mul": ("scale", "a_zero", "b_zero", "y_zero", "low", "high"),
}


def kind_of(op: DeviceOp) -> str | None:
    """What rules call an operator; None if they know it not."""
    if isinstance(op, Conv):
        if op.pool is not None or op.epilogue is not None:
            return None
        if op.groups == 1:
            return "conv"
        return "depth" if op.groups == len(op.weight) == op.src.shape[3] else None
    if isinstance(op, Pool):
        same = op.kind == "max" and op.scale == 1.0 and op.x_zero == op.y_zero and op.lookup is None
        return "max" if same and (op.low, op.high) == (-128, 127) and op.window.dilation == (1, 1) else None
    if isinstance(op, Multiply):
        # Rules exchange the operands of a product, but not their zero points.
        return "mul" if op.a_zero == op.b_zero else None
    return {Rescale: "func", Add: "add"}.get(type(op))


def function_of(op: DeviceOp) -> Function:
    """The function of an operator that rules know."""
    told = _TOLD[kind_of(op) or ""]
    table = None if op.lookup is None else op.lookup.astype(np.int8).tobytes()
    return Function(tuple(sorted((name, getattr(op, name)) for name in told)), table)


def weights_of(op: Conv) -> Weights:
    """The weights of a convolution."""
    return Weights(op.weight, op.bias, op.scale)


def rises(function: Function, weights: Weights | None) -> bool:
    """Whether what an operator makes of sums never falls."""
    return function.rises and (weights is None or bool((weights.scale >= 0).all()))


def window_of(op: DeviceOp) -> Window | None:
    """The window of an operator, if it has one."""
    return op.window if isinstance(op, Conv | Pool) else None
