"""An MLIR function as plain data: operations in order, with values, types and attributes, and the line of each."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.onnx.limits import ELEMENTS

INTEGERS = {"i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "si8": "int8",
            "ui4": "uint4", "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64", "index": "int64",
            "i1": "bool"}  # fmt: skip
FLOATS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
DTYPES = INTEGERS | FLOATS
"""Element types of MLIR that weft reads, and their names in networks."""
OPERATIONS = 20_000
"""Most operations of a file: xDSL reads two or three thousand in a second."""
WRITTEN_OUT = 50_000
"""Most operations of a function, with what it calls written out."""
QUANTISED = ("int8", "uint8", "int16", "uint16", "int32")
"""Types that quantised elements are stored in."""
_STORAGE = re.compile(r"([iu])(\d+)(?:<(-?\d+):(-?\d+)>)?:(f32|f16|bf16)(?::(\d+))?,(.*)", re.DOTALL)
_STEP = re.compile(r"([-+.0-9eE]+)(?::(-?\d+))?")


@dataclass(frozen=True, eq=False)
class Quantisation:
    """What quantised elements stand for: ``(stored - zero) * scale``, per tensor, or along `axis` one pair for each
    element; `stored` lies in [low, high].

    `scales` are float32 and `zeros` int64, of shape (1,) or (elements along the axis,).
    """

    scales: np.ndarray
    zeros: np.ndarray
    axis: int | None
    low: int
    high: int

    def same(self, other: Quantisation | None) -> bool:
        """Whether stored numbers mean the same."""
        return (
            other is not None
            and (self.axis, self.low, self.high) == (other.axis, other.low, other.high)
            and np.array_equal(self.scales, other.scales)
            and np.array_equal(self.zeros, other.zeros)
        )


@dataclass(frozen=True, eq=False)
class TensorType:
    """The type of a value: elements as numpy calls them, those that are stored for quantised ones, and sizes."""

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
    """A value of a function; `name` is how the text calls it, without the percent sign."""

    name: str
    type: TensorType


@dataclass(frozen=True, eq=False)
class Op:
    """An operation. Attributes are int, float, bool, str, arrays (constants), lists and dicts of these; the text of
    what weft does not parse. `body` has the operations of its region, if it has one, without what returns.
    """

    name: str
    line: int
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    body: tuple[Op, ...] = ()

    @property
    def label(self) -> str:
        """The operation in messages."""
        return f"line {self.line}: {self.name}"

    def refuse(self, why: str) -> CompileError:
        """The error for an operation that cannot be read."""
        return CompileError(f"{self.label} {why}")


@dataclass(frozen=True, eq=False)
class Program:
    """A whole function, with what it calls written out. `argument_notes` and `result_notes` are the attributes that the
    text gives arguments and results, of which the writer's begin with ``weft.``.
    """

    ops: tuple[Op, ...]
    arguments: tuple[Value, ...]
    results: tuple[Value, ...]
    argument_notes: tuple[Mapping[str, Any], ...]
    result_notes: tuple[Mapping[str, Any], ...]


def quantised_type(text: str, shape: tuple[int, ...], where: str) -> TensorType:
    """The type of quantised elements, of what `!quant.uniform<text>` has in its brackets.

    Raises
    ------
    CompileError
        For what weft does not read; `where` is the place in the text.
    """
    found = _STORAGE.fullmatch("".join(text.split()))
    if found is None:
        raise CompileError(
            f"{where}: !quant.uniform<{text[:80]}> is no quantised type that weft reads; those are as "
            "i8:f32, 0.5:3 or i8<-127:127>:f32:0, {0.1, 0.2}"
        )
    sign, bits, low, high, _, axis, steps = found.groups()
    dtype, width = f"{'u' if sign == 'u' else ''}int{bits}", int(bits)
    if dtype not in QUANTISED:
        raise CompileError(
            f"{where}: quantised elements are stored in {dtype}; weft reads {', '.join(QUANTISED)}"
        )
    pairs = _STEP.findall(steps)
    plain = "{" + ",".join(f"{scale}:{zero}" if zero else scale for scale, zero in pairs) + "}"
    if not pairs or plain != (steps if axis is not None else "{" + steps + "}"):
        raise CompileError(f"{where}: {steps[:80]} are no scales with zero points, as 0.5:3")
    scales = np.array([_number(scale, where) for scale, _ in pairs], np.float32)
    zeros = np.array([int(zero or 0) for _, zero in pairs], np.int64)
    limits = np.iinfo(dtype)
    given = (int(limits.min if low is None else low), int(limits.max if high is None else high))
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise CompileError(f"{where}: scales must be finite and above 0, not {float(scales.min()):g}")
    if zeros.min() < limits.min or zeros.max() > limits.max or (width > 16 and zeros.any()):
        raise CompileError(f"{where}: zero points must lie in {dtype}, and be 0 for 32 bits")
    if not limits.min <= given[0] < given[1] <= limits.max:
        raise CompileError(f"{where}: stored numbers in [{given[0]}, {given[1]}] do not fit {dtype}")
    along = None if axis is None else int(axis)
    if along is not None and (along >= len(shape) or shape[along] != len(scales)):
        raise CompileError(f"{where}: {len(scales)} scales along axis {along} of shape {shape}")
    return TensorType(dtype, shape, Quantisation(scales, zeros, along, *given))


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CompileError(f"{where}: scale {text[:40]} is no number") from None


def check_shape(shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    """The shape of a value.

    Raises
    ------
    CompileError
        If it is not known, or of more elements than weft takes.
    """
    if any(size < 0 for size in shape):
        raise CompileError(
            f"{where}: a type has sizes that are not known before running; export the model with static shapes"
        )
    if math.prod(shape) > ELEMENTS:
        raise CompileError(
            f"{where}: a value has shape {'x'.join(map(str, shape))[:80]}; weft takes up to {ELEMENTS:,} elements"
        )
    return shape


HOW_TO_INSTALL = "pip install 'weft[mlir]'"


def import_with_xdsl(name: str) -> ModuleType:
    """A module of this package that is made of xDSL's classes.

    Raises
    ------
    CompileError
        If xDSL is not installed: the sentence says how to install it.
    """
    try:
        importlib.import_module("xdsl")
    except ImportError:
        raise CompileError(
            f"MLIR needs the Python package 'xdsl', which is not installed: {HOW_TO_INSTALL}"
        ) from None
    return importlib.import_module(f"weft.extras.mlir.{name}")
