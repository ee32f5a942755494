"""Functions and weights of operators, as rules name them: requantisation, clamp and table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, Multiply, Pool, Rescale, Window
from weft.compiler.passes.fuse import compose_tables, is_monotonic

KINDS = ("conv", "depth", "func", "add", "mul", "max")
"""Operators of rules that are also operators of the device."""


@dataclass(frozen=True)
class Function:
    """Parameters of an operator other than weights, by name, and its table of 256 bytes or None."""

    values: tuple[tuple[str, float | int], ...]
    table: bytes | None = None

    @property
    def lookup(self) -> np.ndarray | None:
        return None if self.table is None else np.frombuffer(self.table, np.int8)

    @property
    def is_monotone(self) -> bool:
        """True if the function is non-decreasing."""
        values_by_name = dict(self.values)
        table = self.lookup
        return values_by_name.get("scale", 1.0) >= 0 and (table is None or is_monotonic(table))

    def followed_by(self, table: np.ndarray) -> Function:
        """Return the function followed by a mapping of all bytes, (256,)."""
        combined = compose_tables(self.lookup, table)
        assert combined is not None
        return Function(self.values, combined.astype(np.int8).tobytes())

    @property
    def swapped(self) -> Function:
        """The function of an addition with exchanged operands."""
        exchanged = {"a_scale": "b_scale", "b_scale": "a_scale", "a_zero": "b_zero", "b_zero": "a_zero"}
        return Function(
            tuple(sorted((exchanged.get(name, name), value) for name, value in self.values)), self.table
        )


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights (o, h, w, i), with bias and scale for each output. They are equal only if they are the same arrays."""

    weight: np.ndarray
    bias: np.ndarray
    scale: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.weight is other.weight and self.scale is other.scale

    def __hash__(self) -> int:
        return hash((id(self.weight), id(self.scale)))

    def concatenate(self, other: Weights) -> Weights:
        """Return the outputs of both, one after the other."""
        weight, bias, scale = (
            np.concatenate([one, two])
            for one, two in ((self.weight, other.weight), (self.bias, other.bias), (self.scale, other.scale))
        )
        return Weights(weight, bias, scale)

    def select(self, first: int, count: int) -> Weights:
        """Return some of the outputs."""
        selected = slice(first, first + count)
        return Weights(self.weight[selected], self.bias[selected], self.scale[selected])


_PARAMETERS = {
    "conv": ("x_zero", "y_zero", "low", "high"),
    "depth": ("x_zero", "y_zero", "low", "high"),
    "func": ("scale", "x_zero", "y_zero", "low", "high"),
    "add": ("a_scale", "b_scale", "a_zero", "b_zero", "y_zero", "low", "high"),
    "mul": ("scale", "a_zero", "b_zero", "y_zero", "low", "high"),
}


def kind_of(op: DeviceOp) -> str | None:
    """Return the operator's name in rules, or None if rules do not know it."""
    if isinstance(op, Conv):
        if op.pool is not None or op.epilogue is not None:
            return None
        if op.groups == 1:
            return "conv"
        return "depth" if op.groups == len(op.weight) == op.src.shape[3] else None
    if isinstance(op, Pool):
        is_plain = op.kind == "max" and op.scale == 1.0 and op.x_zero == op.y_zero and op.lookup is None
        return (
            "max" if is_plain and (op.low, op.high) == (-128, 127) and op.window.dilation == (1, 1) else None
        )
    if isinstance(op, Multiply):
        # Rules exchange the operands of a product, but not their zero points.
        return "mul" if op.a_zero == op.b_zero else None
    return {Rescale: "func", Add: "add"}.get(type(op))


def function_of(op: DeviceOp) -> Function:
    """Return the function of an operator that rules know."""
    parameters = _PARAMETERS[kind_of(op) or ""]
    table = None if op.lookup is None else op.lookup.astype(np.int8).tobytes()
    return Function(tuple(sorted((name, getattr(op, name)) for name in parameters)), table)


def weights_of(op: Conv) -> Weights:
    """Return the weights of a convolution."""
    return Weights(op.weight, op.bias, op.scale)


def is_monotone(function: Function, weights: Weights | None) -> bool:
    """Return whether an operator's function of its sums is non-decreasing."""
    return function.is_monotone and (weights is None or bool((weights.scale >= 0).all()))


def window_of(op: DeviceOp) -> Window | None:
    """Return the window of an operator, or None."""
    return op.window if isinstance(op, Conv | Pool) else None
