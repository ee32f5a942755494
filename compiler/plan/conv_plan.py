"""Choosing the block sizes of a convolution: how SRAM is divided, and what stays resident.

Every candidate is scored with a closed-form estimate of its cycles; the best one is taken, unless a `Tiling` says
which. The scratchpad, or what other layers leave of it, is divided by banks into three zones, so that the units do not
meet in a bank: A (inputs; empty if they are on chip already), B (weights), O (parameters and outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.compiler.ir.graph import Region
from weft.compiler.machine.emit import Box
from weft.compiler.plan.conv_parts import Zone
from weft.compiler.plan.conv_search import Found, Search
from weft.compiler.plan.conv_shape import ConvShape
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config

_CANDIDATES = 512
SLOW = 2.0
"""Cycles of a beat above which room for weights counts more than that no unit waits for another one in a bank."""
_ROOM = 1.05
"""What plans may take by estimate, in parts of the best ones, to leave more room for what comes next."""
BLOCKS, EPILOGUES = 34, 2
"""Parameter blocks that a plan leaves room for if it can, so that those of the next operators come early; and how many
of them are those of epilogues."""


@dataclass(frozen=True)
class Zones:
    """First address and size in vectors of the three zones."""

    a: tuple[int, int]
    b: tuple[int, int]
    o: tuple[int, int]


def unit(config: Config) -> int:
    """What the scratchpad is divided by: vectors of a bank, or a quarter, if it has fewer than four."""
    return config.scratchpad_size // max(config.scratchpad_banks, 4)


def zones(
    config: Config, region: Region | None = None, *, inputs: bool = True, tail: int = 0
) -> tuple[Zones, ...]:
    """All ways to divide the scratchpad, or a part of it; without `inputs` zone A is empty. With a `tail` zone O is
    only so many vectors, at the end of the last bank of B."""
    size = unit(config)
    first, last = region or (0, config.scratchpad_size)
    units = (last - first) // size
    found = []
    for a in range(1, units - (tail == 0)) if inputs else (0,):
        for b in (units - a,) if tail else range(1, units - a):
            starts = (first, first + a * size, last - tail if tail else first + (a + b) * size, last)
            found.append(Zones(*((start, stop - start) for start, stop in pairwise(starts))))
    return tuple(found)


@dataclass(frozen=True)
class Tiling:
    """What is free in a `ConvPlan`; the rest of it follows. `zones` are the first vectors of zones B and O."""

    tile: tuple[int, int]
    zones: tuple[int, int]
    block: int
    chunk: int
    group: int
    chunked: bool


@dataclass(frozen=True)
class ConvPlan:
    """Blocks of one convolution.

    `tile` is (rows, columns) of final outputs, `block` how many output tiles are summed up together, chunk by chunk;
    `a_slot`, `b_slot`, `o_slot`, `c_slot` are sizes of ring slots and `a_count`.. their numbers, with a second operand
    as many more like those of outputs, or instead of them if outputs stay on chip; `params` slots of the parameter
    ring; `group` the output tiles for which a block of weights stays while the spatial tiles pass; `store` the output
    tiles that leave in one STORE; `chunked` whether inputs are loaded per chunk of the contraction; `b_limit` the
    largest chunk in vectors of weights of a tile. Estimates: `cycles`, and `traffic`, those of the bus for data.
    """

    zones: Zones
    tile: tuple[int, int]
    block: int
    a_slot: int
    a_count: int
    b_limit: int
    b_slot: int
    b_count: int
    o_slot: int
    o_count: int
    c_slot: int
    c_count: int
    params: int
    group: int
    store: int
    chunked: bool
    cycles: float
    traffic: float

    @property
    def tiling(self) -> Tiling:
        zones = (self.zones.b[0], self.zones.o[0])
        return Tiling(self.tile, zones, self.block, self.b_limit, self.group, self.chunked)


Chooser = Callable[[ConvShape], ConvPlan | None]
"""Gives the plan to compile a convolution by, or None if not even the smallest tile fits."""


def plan(shape: ConvShape) -> ConvPlan | None:
    """The best plan by estimate, or None if not even the smallest tile fits.

    One that has its parameters beside the weights is preferred: it leaves more room for weights, also for those of the
    next operators, which come earlier for it.
    """
    found, other = _best(shape, _divided(shape)), _best(shape, _beside(shape))
    if found is None or (other is not None and other.cycles <= _ROOM * found.cycles):
        return other
    return found


def plan_apart(shape: ConvShape) -> ConvPlan | None:
    """The same with parameters in a bank of their own, where no unit waits for another one."""
    return _best(shape, _divided(shape))


def candidates(shape: ConvShape) -> list[ConvPlan]:
    """Plans, the best by estimate first: at most 512, half of them the best, the others spread over all."""
    divided = _divided(shape) + _beside(shape)
    return [_plan(divided, found) for found in _search(shape, divided).all(_CANDIDATES)] if divided else []


def _best(shape: ConvShape, divided: tuple[Zones, ...]) -> ConvPlan | None:
    found = _search(shape, divided).best() if divided else None
    return None if found is None else _plan(divided, found)


def _divided(shape: ConvShape) -> tuple[Zones, ...]:
    return zones(shape.config, shape.region, inputs=shape.src.resident is None)


def _beside(shape: ConvShape) -> tuple[Zones, ...]:
    """The zones behind a slow memory, which is what most operators wait for, if all that zone O holds are parameters:
    the vector unit seldom reads them, so they need no bank of their own."""
    if shape.slots or shape.target.beat <= SLOW:
        return ()
    tail = min(unit(shape.config), PARAMETER_VECTORS * max(BLOCKS, 2 * len(shape.tiles) + EPILOGUES))
    return zones(shape.config, shape.region, inputs=shape.src.resident is None, tail=tail)


def _search(shape: ConvShape, divided: Sequence[Zones]) -> Search:
    return Search(shape, [Zone(z.a[1], z.b[1], z.o[1], shared(z, shape.config)) for z in divided])


def shared(zones: Zones, config: Config) -> float:
    """The share of zone B that lies in a bank of zone A."""
    end = zones.a[0] + zones.a[1]
    bank = -(-end // config.scratchpad_depth) * config.scratchpad_depth
    return min(bank - end, zones.b[1]) / zones.b[1] if zones.a[1] and zones.b[1] else 0.0


def _plan(divided: Sequence[Zones], found: Found) -> ConvPlan:
    return ConvPlan(
        divided[found.zone], found.tile, found.block, *found.a, found.chunk, *found.b, found.o[0], found.o[1],
        *found.c, found.params, found.group, found.store, found.chunked, found.cycles, found.traffic,
    )  # fmt: skip


def boxes(shape: ConvShape, tile: tuple[int, int]) -> list[Box]:
    """The final output, cut into tiles in row-major order, evenly."""
    h, w = shape.outputs
    return [
        Box(y, x, min(tile[0], h - y), min(tile[1], w - x))
        for y in range(0, h, tile[0])
        for x in range(0, w, tile[1])
    ]
