"""An MLIR function as plain data: operations in order, with values, types, attributes and line numbers."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import MAX_ELEMENTS

INTEGERS = {"i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "si8": "int8",
            "ui4": "uint4", "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64", "index": "int64",
            "i1": "bool"}  # fmt: skip
FLOATS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
DTYPES = INTEGERS | FLOATS
"""Element types that weft reads, and their names in networks."""
OPERATIONS = 20_000
"""Largest number of operations in a file: xDSL reads two or three thousand per second."""
WRITTEN_OUT = 50_000
"""Largest number of operations in a function after its calls are inlined."""
QUANTISED = ("int8", "uint8", "int16", "uint16", "int32")
"""Storage types of quantised elements."""
_STORAGE = re.compile(r"([iu])(\d+)(?:<(-?\d+):(-?\d+)>)?:(f32|f16|bf16)(?::(\d+))?,(.*)", re.DOTALL)
_STEP = re.compile(r"([-+.0-9eE]+)(?::(-?\d+))?")


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Affine quantisation: a stored number stands for ``(stored - zero) * scale``.

    There is one scale and zero point per tensor, or one pair for each index of `axis`. Stored numbers lie in [low,
    high]. `scales` are float32 and `zeros` int64, of shape (1,) or (size of the axis,).
    """

    scales: np.ndarray
    zeros: np.ndarray
    axis: int | None
    low: int
    high: int

    def same(self, other: Quantisation | None) -> bool:
        """Return whether equal stored numbers stand for equal real numbers."""
        return (
            other is not None
            and (self.axis, self.low, self.high) == (other.axis, other.low, other.high)
            and np.array_equal(self.scales, other.scales)
            and np.array_equal(self.zeros, other.zeros)
        )


@dataclass(frozen=True, eq=False)
class TensorType:
    """Type of a value: numpy's name of the (stored) element type, the shape, and the quantisation."""

    dtype: str
    shape: tuple[int, ...]
    quantisation: Quantisation | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype} of shape {'x'.join(map(str, self.shape)) or '()'}"


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a function; `name` is its name in the text, without the percent sign."""

    name: str
    type: TensorType


@dataclass(frozen=True, eq=False)
class Op:
    """An operation.

    Attributes are int, float, bool, str, arrays (constants), lists and dicts of these, or the raw text of an
    attribute that weft does not parse. `body` has the operations of its region, without the return.
    """

    name: str
    line: int
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    body: tuple[Op, ...] = ()

    @property
    def label(self) -> str:
        """The operation's name in messages."""
        return f"line {self.line}: {self.name}"

    def refuse(self, why: str) -> CompileError:
        """Return the error for an operation that cannot be read."""
        return CompileError(f"{self.label} {why}")


@dataclass(frozen=True, eq=False)
class Program:
    """A function whose calls are inlined.

    `argument_notes` and `result_notes` are the attributes of arguments and results in the text; names of those that
    weft writes begin with ``weft.``.
    """

    ops: tuple[Op, ...]
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    argument_notes: tuple[Mapping[str, Any], ...]
    result_notes: tuple[Mapping[str, Any], ...]


def quantised_type(text: str, shape: tuple[int, ...], place: str) -> TensorType:
    """Return the type for the text between the brackets of `!quant.uniform<...>`.

    Raises
    ------
    CompileError
        If weft does not read the type; `place` is the place in the text.
    """
    match = _STORAGE.fullmatch("".join(text.split()))
    if match is None:
        raise CompileError(
            f"{place}: !quant.uniform<{text[:80]}> is not a supported quantised type; examples are "
            "i8:f32, 0.5:3 and i8<-127:127>:f32:0, {0.1, 0.2}"
        )
    sign, bits, low, high, _, axis, steps = match.groups()
    dtype, width = f"{'u' if sign == 'u' else ''}int{bits}", int(bits)
    if dtype not in QUANTISED:
        raise CompileError(
            f"{place}: quantised elements are stored in {dtype}; weft reads {', '.join(QUANTISED)}"
        )
    pairs = _STEP.findall(steps)
    # findall skips text that it does not match: compare the numbers that were read with the text.
    read = "{" + ",".join(f"{scale}:{zero}" if zero else scale for scale, zero in pairs) + "}"
    if not pairs or read != (steps if axis is not None else "{" + steps + "}"):
        raise CompileError(f"{place}: {steps[:80]} are not scales with zero points, such as 0.5:3")
    scales = np.array([_number(scale, place) for scale, _ in pairs], np.float32)
    zeros = np.array([int(zero or 0) for _, zero in pairs], np.int64)
    limits = np.iinfo(dtype)
    bounds = (int(limits.min if low is None else low), int(limits.max if high is None else high))
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise CompileError(f"{place}: scales must be finite and above 0, not {float(scales.min()):g}")
    if zeros.min() < limits.min or zeros.max() > limits.max or (width > 16 and zeros.any()):
        raise CompileError(f"{place}: zero points must lie in {dtype}, and be 0 for 32 bits")
    if not limits.min <= bounds[0] < bounds[1] <= limits.max:
        raise CompileError(f"{place}: stored numbers in [{bounds[0]}, {bounds[1]}] do not fit {dtype}")
    along = None if axis is None else int(axis)
    if along is not None and (along >= len(shape) or shape[along] != len(scales)):
        raise CompileError(f"{place}: {len(scales)} scales along axis {along} of shape {shape}")
    return TensorType(dtype, shape, Quantisation(scales, zeros, along, *bounds))


def _number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CompileError(f"{place}: scale {text[:40]} is not a number") from None


def check_shape(shape: tuple[int, ...], place: str) -> tuple[int, ...]:
    """Return a shape that is static and small enough.

    Raises
    ------
    CompileError
        If a size is not known, or there are more elements than weft takes.
    """
    if any(size < 0 for size in shape):
        raise CompileError(
            f"{place}: a type has sizes that are not known before running; export the model with static shapes"
        )
    if math.prod(shape) > MAX_ELEMENTS:
        raise CompileError(
            f"{place}: a value has shape {'x'.join(map(str, shape))[:80]}; weft takes up to {MAX_ELEMENTS:,} elements"
        )
    return shape


HOW_TO_INSTALL = "pip install 'weft[mlir]'"


def import_with_xdsl(name: str) -> ModuleType:
    """Import a module of this package that uses xDSL.

    Raises
    ------
    CompileError
        If xDSL is not installed.
    """
    try:
        importlib.import_module("xdsl")
    except ImportError:
        raise CompileError(
            f"MLIR needs the Python package 'xdsl', which is not installed: {HOW_TO_INSTALL}"
        ) from None
    return importlib.import_module(f"weft.extras.mlir.{name}")
