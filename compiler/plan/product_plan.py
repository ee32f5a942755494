"""Planning of matrix products of activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from weft.compiler.ir.products import Counts, Product
from weft.compiler.ir.scales import negative_parts
from weft.compiler.ir.views import View
from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import Target
from weft.hdl.isa import PARAMETER_VECTORS, WORD_BYTES
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import rmw_latency

CONSTANTS = 2
"""Vectors that stand for a zero point of B."""
_MOST = 512
"""Most rows and columns of a tile: more hide nothing more."""

Zone = tuple[int, int, int]
"""First address, size of a slot, slots."""


@dataclass(frozen=True)
class ProductPlan:
    """Tiling of one product: `rows` x `columns` results, `depth` elements of the contraction at a time.

    `columns` and `depth` are whole vectors. `a`, `b` and `out` are zones of the scratchpad for tiles of operands and
    result, `sums` is a zone of the accumulator; `params` and `constants` are first vectors. `cycles`, and `traffic`
    (cycles of the bus), are estimates.
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


def plan(op: Product, target: Target) -> ProductPlan | None:
    """Return the fastest plan by estimate; None if not even the smallest tile fits."""
    config = target.config
    n = config.n
    plans = (
        _candidate(op, target, rows, columns, depth)
        for depth in _sizes(op.depth, n, config.scratchpad_size * n)
        for columns in _sizes(op.columns, n, _MOST)
        for rows in _sizes(op.rows, 1, _MOST)
    )
    return min((item for item in plans if item is not None), key=lambda item: item.cycles, default=None)


def _sizes(size: int, unit: int, most: int) -> Iterator[int]:
    """Yield `size` in whole units, and successive halves of it, at most `most`."""
    units = ceil_div(size, unit)
    while True:
        if units * unit <= most:
            yield units * unit
        if units == 1:
            return
        units = ceil_div(units, 2)


def _candidate(op: Product, target: Target, rows: int, columns: int, depth: int) -> ProductPlan | None:
    """Return the plan for one tile size; None if it does not fit."""
    config = target.config
    n = config.n
    vectors, groups = depth // n, columns // n
    chunks, down = ceil_div(op.depth, depth), ceil_div(op.rows, rows)
    sums = _accumulator(config, rows * groups)
    # LOAD transposes N rows at a time.
    lines = ceil_div(rows, n) * n if op.a_transposed else rows
    zones = _scratchpad(config, lines * vectors, columns * vectors, rows * groups, (chunks * down, chunks))
    if sums is None or zones is None:
        return None
    a, b, out, params = zones
    compute = _compute(op, config, (rows, columns), zones)
    traffic, vector = _bus_and_vector(op, target, (rows, columns, depth), (a[2], b[2]))
    # A zone with a single slot is filled and used in turn.
    turns = compute + (vector if sums[2] == 1 else 0)
    if 1 in (a[2], b[2]):
        tiles = prod(op.counts) * chunks * down * ceil_div(op.columns, columns)
        turns += traffic + (overheads.SLOT_REFILL_CYCLES + overheads.BLOCK_SWITCH_CYCLES + 2 * n) * tiles
    first = target.run(depth * (rows + columns)) + overheads.STANDALONE_CYCLES
    return ProductPlan(
        rows, columns, depth, a, b, out, sums, params, params + PARAMETER_VECTORS,
        max(turns, traffic, vector) + 0.05 * (compute + traffic + vector) + first, traffic,
    )  # fmt: skip


def count_passes(op: Product, config: Config) -> int:
    """Return the number of products per tile; zero points that the array does not subtract need further products."""
    return 1 + len(a_parts(op, config)) + len(b_parts(op))


def a_parts(op: Product, config: Config) -> list[int]:
    """Return padding values whose products subtract A's zero point, if the array does not subtract it."""
    return [] if config.wide_activations else negative_parts(op.a_zero)


def b_parts(op: Product) -> list[int]:
    """Return values of B whose products subtract B's zero point."""
    return negative_parts(op.b_zero)


def _compute(
    op: Product, config: Config, tile: tuple[int, int], zones: tuple[Zone, Zone, Zone, int]
) -> float:
    """Return the array's cycles for all matrices; rows and weights in one bank are read in turn."""
    n, (rows, _), (a, b, _, params) = config.n, tile, zones
    last = (a[1] * a[2] - 1) // config.scratchpad_depth
    full, edge_rows = divmod(op.rows, rows)
    total = 0
    for times, weights in (
        (1, b[0]),
        (len(a_parts(op, config)), None),
        (len(b_parts(op)), params + PARAMETER_VECTORS),
    ):
        # Rows of A and weights in one bank: the array reads them one after the other.
        together = weights is not None and weights // config.scratchpad_depth <= last
        steps = [
            max(count + n if together else max(count, n), rmw_latency(config)) for count in (rows, edge_rows)
        ]
        total += times * (full * steps[0] + (steps[1] if edge_rows else 0))
    return float(prod(op.counts) * ceil_div(op.depth, n) * ceil_div(op.columns, n) * total)


def _bus_and_vector(
    op: Product, target: Target, tile: tuple[int, int, int], slots: tuple[int, int]
) -> tuple[float, float]:
    """Return the cycles for all matrices of the bus, with instructions, and of the vector unit."""
    config, (rows, columns, depth), matrices = target.config, tile, prod(op.counts)
    n = config.n
    groups = ceil_div(op.columns, n)
    down, across, chunks = ceil_div(op.rows, rows), ceil_div(op.columns, columns), ceil_div(op.depth, depth)
    a_times = _times(op, op.a_counts, down * chunks, across, slots[0])
    b_times = _times(op, op.b_counts, chunks, down, slots[1], across)
    split = min(depth, op.depth)
    if op.a_transposed:
        a, a_loads = _load_transposed(target, op.a, (op.depth, split), (op.rows, min(rows, op.rows)))
    else:
        a, a_loads = _load(target, op.a, op.rows, rows, (op.depth, split)), down * chunks
    if op.transposed:
        b, b_loads = _load(target, op.b, op.columns, columns, (op.depth, split)), across * chunks
    else:
        b, b_loads = _load_transposed(target, op.b, (op.depth, split), (op.columns, min(columns, op.columns)))
    a, b = a * a_times, b * b_times
    out = _runs(target, op.dst, op.rows, rows, (op.columns, min(columns, op.columns)))
    vector = groups * op.rows * config.groups + down * across * target.vec_start(early=True)
    instructions = matrices * down * across * (count_passes(op, config) * chunks + 2)
    instructions += a_times * a_loads + b_times * b_loads
    reads, writes = a + b + target.transfer_cycles(instructions * WORD_BYTES), float(matrices * out)
    # Reads and writes have separate AXI channels, but one memory: only their bytes take turns.
    every = reads + target.transfer_cycles(matrices * op.rows * op.columns)
    return max(every, writes), matrices * vector


def _load_transposed(
    target: Target, view: View, depth: tuple[int, int], width: tuple[int, int]
) -> tuple[float, int]:
    """Return the cycles to LOAD and transpose a matrix, and the number of LOADs.

    `depth` is (rows, rows at a time), `width` is (elements, elements at a time).
    """
    config, (rows, split), (elements, step) = target.config, depth, width
    n = config.n
    part = min(config.transposed_vectors * n, step)
    chunks = ceil_div(rows, split)
    bus = _runs(target, view, rows, split, (elements, part))
    written = ceil_div(elements, n) * chunks * ceil_div(split, n) * n
    return max(bus, written), ceil_div(elements, step) * ceil_div(step, part) * chunks


def _times(op: Product, counts: Counts, parts: int, again: int, slots: int, others: int = 1) -> int:
    """Return the number of loads of a whole operand matrix, over all matrices.

    A tile of the result takes `parts` slots, is used `again` times afterwards, and `others` tiles follow.
    """
    images, heads = op.counts
    if slots < parts:
        return images * heads * again
    if others > 1 and slots < parts * others:
        return images * heads
    return counts[1] * (counts[0] if counts[1] == 1 or slots >= parts * others * counts[1] else images)


def _load(target: Target, view: View, count: int, step: int, sizes: tuple[int, int]) -> float:
    """Return the cycles to LOAD `count` rows of a matrix, `step` at a time: limited by the bus or by unpacking."""
    size, part = sizes
    vectors = ceil_div(size, part) * ceil_div(part, target.config.n)
    return max(_runs(target, view, count, step, sizes), count * vectors)


def _runs(target: Target, view: View, count: int, step: int, sizes: tuple[int, int]) -> float:
    """Return the bus cycles for `count` rows of a matrix, `step` rows and a part of each at a time.

    Rows that fill all channels are one run.
    """
    size, part = sizes
    if part == view.buffer.shape[3] and view.step[1] == 1:
        full, remainder = divmod(count, step)
        return full * target.run(step * size) + (target.run(remainder * size) if remainder else 0)
    return count * ceil_div(size, part) * target.run(part)


def _accumulator(config: Config, size: int) -> Zone | None:
    """Return a zone for two tiles of sums in separate banks, or for one; None if it does not fit."""
    depth = config.accumulator_depth
    apart = ceil_div(size, depth) * depth
    if 2 * apart <= config.accumulator_size:
        return 0, apart, 2
    return (0, size, 1) if size <= config.accumulator_size else None


def _scratchpad(
    config: Config, a: int, b: int, out: int, wanted: tuple[int, int]
) -> tuple[Zone, Zone, Zone, int] | None:
    """Return zones of A, B and the result for slots of these sizes, and the first vector of parameters; None if none
    fit.

    `wanted` are slots of A and B with which nothing is loaded twice. If there are enough banks, they are separate for
    rows that the array reads in every cycle; for what the vector unit and STORE use; and for B, which gets the rest.
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
