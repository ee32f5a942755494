"""Choosing the tiles of products of two activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from weft.compiler.ir.product import Product
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import bus_cycles, ceil_div
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config

CONSTANTS = 2
"""Vectors that stand for a zero point of B."""
_MOST = 512
"""Rows and columns of a tile at most: more of them hide nothing more."""

Zone = tuple[int, int, int]
"""First address, size of a slot, slots."""


@dataclass(frozen=True)
class ProductPlan:
    """Tiles of `rows` x `columns` results, of `depth` elements of the contraction at a time.

    `columns` and `depth` are whole vectors. `a`, `b` and `out` are zones of the scratchpad for tiles of the operands
    and of the result, `sums` is one of the accumulator; `params` and `constants` are first vectors. Estimates:
    `cycles`, and `traffic`, those of the bus.
    """

    rows: int
    columns: int
    depth: int
    a: Zone
    b: Zone
    out: Zone
    sums: Zone
    params: int
    constants: int
    cycles: float
    traffic: float


def plan(op: Product, config: Config) -> ProductPlan | None:
    """The quickest plan by estimate, or None if not even the smallest tile fits."""
    n = config.n
    found = (
        _candidate(op, config, rows, columns, depth)
        for depth in _sizes(op.depth, n, config.scratchpad_size * n)
        for columns in _sizes(op.columns, n, _MOST)
        for rows in _sizes(op.rows, 1, _MOST)
    )
    return min((item for item in found if item is not None), key=lambda item: item.cycles, default=None)


def _sizes(size: int, unit: int, most: int) -> Iterator[int]:
    """`size` in whole units, and halves of it, none of them above `most`."""
    units = ceil_div(size, unit)
    while True:
        if units * unit <= most:
            yield units * unit
        if units == 1:
            return
        units = ceil_div(units, 2)


def _candidate(op: Product, config: Config, rows: int, columns: int, depth: int) -> ProductPlan | None:
    """The plan for one size of tiles; None if it does not fit."""
    n = config.n
    vectors, groups = depth // n, columns // n
    chunks, down, across = (
        ceil_div(all_, part) for all_, part in ((op.depth, depth), (op.rows, rows), (op.columns, columns))
    )
    sums = _accumulator(config, rows * groups)
    zones = _scratchpad(config, rows * vectors, columns * vectors, rows * groups, (chunks * down, chunks))
    if sums is None or zones is None:
        return None
    a, b, out, params = zones
    a_times = 1 if a[2] >= chunks * down else across
    b_times = 1 if b[2] >= chunks else down
    compute, traffic, vector = _cycles(op, config, (rows, columns, depth), (a_times, b_times))
    slow = (a[2] == 1) + (b[2] == 1) + (sums[2] == 1)  # units that wait for each other
    parts = sorted((compute, traffic, vector), reverse=True)
    first = bus_cycles(config, 1, depth * (rows + columns)) + overheads.ALONE
    return ProductPlan(
        rows, columns, depth, a, b, out, sums, params, params + PARAMETER_VECTORS,
        parts[0] + sum(parts[1:]) * slow / 3 + 0.05 * sum(parts[1:]) + first, traffic,
    )  # fmt: skip


def passes(op: Product, config: Config) -> int:
    """Products of the array for each tile: zero points that it does not subtract take further ones."""
    return 1 + len(a_parts(op, config)) + len(b_parts(op))


def a_parts(op: Product, config: Config) -> list[int]:
    """Values that stand, in rows of the padding, for minus the zero point of A, if the array does not subtract it."""
    if config.wide_activations or not op.a_zero:
        return []
    return [-op.a_zero] if op.a_zero > -128 else [64, 64]


def b_parts(op: Product) -> list[int]:
    """Values of B that stand for minus its zero point."""
    if not op.b_zero:
        return []
    return [-op.b_zero] if op.b_zero > -128 else [64, 64]


def _cycles(
    op: Product, config: Config, tile: tuple[int, int, int], times: tuple[int, int]
) -> tuple[float, float, float]:
    """What all matrices take the array, the bus and the vector unit."""
    n, (rows, columns, depth), count = config.n, tile, prod(op.counts)
    vectors, groups = ceil_div(op.depth, n), ceil_div(op.columns, n)
    down, across = ceil_div(op.rows, rows), ceil_div(op.columns, columns)
    full, rest = divmod(op.rows, rows)
    compute = passes(op, config) * vectors * groups * (full * max(rows, n) + (max(rest, n) if rest else 0))
    run = min(depth, op.depth)
    chunks = ceil_div(op.depth, depth)
    a = bus_cycles(config, op.rows * chunks, run) * times[0]
    b = (
        bus_cycles(config, op.columns * chunks, run)
        if op.transposed
        else bus_cycles(config, op.depth * groups, min(n, op.columns))
    ) * times[1]
    out = bus_cycles(config, op.rows * across, min(columns, op.columns))
    vector = groups * op.rows * config.groups + down * across * overheads.vec_start(config)
    return count * compute, float(count * (a + b + out)), count * vector


def _accumulator(config: Config, size: int) -> Zone | None:
    """Two tiles of sums in banks of their own, or one; None if it does not fit."""
    depth = config.accumulator_depth
    apart = ceil_div(size, depth) * depth
    if 2 * apart <= config.accumulator_size:
        return 0, apart, 2
    return (0, size, 1) if size <= config.accumulator_size else None


def _scratchpad(
    config: Config, a: int, b: int, out: int, wanted: tuple[int, int]
) -> tuple[Zone, Zone, Zone, int] | None:
    """Zones of A, B and the result for slots of these sizes, and the first vector of parameters; None if it does not
    fit. `wanted` are the slots of A and B with which nothing is loaded twice.

    In banks of their own, if there are enough: what the array reads as rows in every cycle, what the vector unit and
    STORE use, and B, which has what is left.
    """
    size, fixed = config.scratchpad_size, PARAMETER_VECTORS + CONSTANTS
    for slots in (2, 1):
        for unit in (config.scratchpad_depth, 1):
            for a_slots in dict.fromkeys((max(wanted[0], slots), slots)):
                params = ceil_div(a_slots * a, unit) * unit
                at = params + fixed
                start = ceil_div(at + slots * out, unit) * unit
                b_slots = min((size - start) // b, 2 * max(wanted[1], slots))
                if b_slots >= slots:
                    return (0, a, a_slots), (start, b, b_slots), (at, out, slots), params
    return None
