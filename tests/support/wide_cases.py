"""Random operators on 16-bit values: views with planes, contents with extremes, and their results in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from support.configurations import every
from support.op_cases import draw, random_source, random_view, whole
from weft.compiler.ir.graph import DeviceOp, DeviceSegment
from weft.compiler.ir.views import View
from weft.compiler.kernel.evaluate import _value
from weft.compiler.kernel.expressions import Expression, Rows
from weft.compiler.operators.record import operator_of
from weft.hdl.isa.config import PRESETS, Config

Rng = np.random.Generator
Shape = tuple[int, int, int, int]
LIMITS = {False: (-128, 127), True: (-32768, 32767)}
"""Least and largest value of 8 bits, and of 16."""
_TINY = PRESETS["tiny"]
CUT = {
    "no room": _TINY.replace(scratchpad_depth=64, accumulator_depth=16),
    "wide bus": _TINY.replace(bus_bytes=32, lanes=1),
    "few sums": PRESETS["small"].replace(accumulator_banks=2, accumulator_depth=16, bus_bytes=16, lanes=8),
    "few vectors": PRESETS["small"].replace(scratchpad_banks=2, scratchpad_depth=128, mantissa_bits=16),
}
"""Small memories, wide buses, and lanes from one to all."""
CONFIGS: dict[str, Config] = {
    name: config.replace(kernel=64, lookup_tables=max(2, config.lookup_tables))
    for name, config in {**every(), **CUT}.items()
    if config.n <= 32 and "7 bits" not in name
}
"""All configurations, with kernels."""


def planes(values: np.ndarray, *, wide: bool = True) -> np.ndarray:
    """Return integers (n, ...) as a buffer stores them: int8, of 16 bits the upper bytes, then the lower ones."""
    if not wide:
        return values.astype(np.int8)
    return np.concatenate([values >> 8, (values & 255) - 128]).astype(np.int8)


def join_planes(contents: np.ndarray, *, wide: bool = True) -> np.ndarray:
    """The inverse of `planes`."""
    if not wide:
        return contents.astype(np.int64)
    upper, lower = np.split(contents.astype(np.int64), 2)
    return np.asarray(upper * 256 + lower + 128)


def with_planes(view: View, *, wide: bool) -> View:
    """Return the plane of upper bytes of a view, if elements have 16 bits."""
    n, h, w, c = view.buffer.shape
    if not wide:
        return view
    return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, shape=(2 * n, h, w, c)))


def source(rng: Rng, name: str, shape: Shape, *, wide: bool) -> View:
    """Draw a whole input, a part, a view with steps, or one that repeats a row or a column."""
    return with_planes(random_source(rng, name, shape), wide=wide)


def target(rng: Rng, shape: Shape, *, wide: bool) -> View:
    """Draw a whole output, or a part, perhaps with steps."""
    return with_planes(random_view(rng, "y", shape, "output"), wide=wide)


def plain(name: str, shape: Shape, kind: str, *, wide: bool) -> View:
    """Return a view of a whole buffer."""
    return with_planes(whole(name, shape, kind), wide=wide)


def zero(rng: Rng, *, wide: bool) -> int:
    """Draw a zero point: at either end, in the middle, or anywhere."""
    low, high = LIMITS[wide]
    return int(rng.choice([low, high, 0, draw(rng, low, high), draw(rng, low, high)]))


def clamp(rng: Rng, *, wide: bool) -> dict[str, Any]:
    """Draw the zero point of results, and sometimes a range to clamp them to."""
    low, high = LIMITS[wide]
    found: dict[str, Any] = {"y_zero": zero(rng, wide=wide)}
    if rng.random() < 0.3:
        found["clamp"] = draw(rng, low, 0), draw(rng, 0, high)
    return found


def contents(rng: Rng, shape: Shape, *, wide: bool) -> np.ndarray:
    """Draw elements of any value; all the least or the largest; alternating; or near each other."""
    low, high = LIMITS[wide]
    kind = int(rng.integers(8))
    if kind < 2:
        return np.full(shape, (low, high)[kind])
    if kind == 2:
        return np.resize([low, high], shape)
    if kind == 3:
        return np.asarray(rng.choice([low, low + 1, -1, 0, 1, high], shape))
    if kind == 4:
        middle = draw(rng, low, high)
        return np.clip(np.rint(rng.normal(middle, (high - low) / 200, shape)), low, high).astype(np.int64)
    return np.asarray(rng.integers(low, high + 1, shape))


def run(op: DeviceOp, values: list[np.ndarray], *, wide: bool) -> np.ndarray:
    """Return an operator's result for the planes of its sources."""
    return join_planes(operator_of(op).evaluate(op, tuple(values), 24), wide=wide)


def saturate(values: np.ndarray, zero: int, clamp: tuple[int, int], *, wide: bool) -> np.ndarray:
    """Round and clamp float64 results to integers."""
    low, high = LIMITS[wide]
    return np.clip(np.rint(values) + zero, max(low, clamp[0]), min(high, clamp[1]))


def buffers(rng: Rng, op: DeviceOp) -> dict[str, np.ndarray]:
    """Draw contents of an operator's inputs: any bytes, or extremes."""
    found = {view.buffer.name: view.buffer.shape for view in op.sources}
    return {name: contents(rng, shape, wide=False).astype(np.int8) for name, shape in found.items()}


def segment(op: DeviceOp) -> DeviceSegment:
    operator_of(op).verify(op)
    return DeviceSegment(op.name, (op,))


def check_ranges(rows: Rows, tensors: list[np.ndarray]) -> None:
    """Check that every expression of a kernel lies within its range, for contents as `evaluate` takes them."""
    seen: dict[int, np.ndarray] = {}

    def value(item: Expression) -> np.ndarray:
        if id(item) not in seen:
            found = _value(item, [value(operand) for operand in item.operands], tensors)
            where = (
                f"{item.kind} of {item.where}: {found.min()} to {found.max()}, not {item.low} to {item.high}"
            )
            assert item.low <= found.min() <= found.max() <= item.high, where
            assert -(1 << 31) <= item.low <= item.high < 1 << 31, where
            seen[id(item)] = found
        return seen[id(item)]

    for result in rows.result:
        value(result)
