"""Planning of convolutions: division of the scratchpad, block sizes, and what stays resident.

Each candidate is scored by a closed-form estimate of its cycles; the best is taken, unless a `Tiling` says which. The
scratchpad, or the part that other layers leave, is divided by banks into three zones, so that units do not conflict
in a bank: A (inputs; empty if they are resident), B (weights), O (parameters and outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.compiler.ir.graph import Region
from weft.compiler.machine.emit import Box
from weft.compiler.plan.conv_parts import Zone
from weft.compiler.plan.conv_search import ScoredPlan, Search
from weft.compiler.plan.conv_shape import ConvShape
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config

_CANDIDATES = 512
SLOW = 2.0
"""Cycles per beat above which room for weights matters more than freedom from bank conflicts."""
_ROOM = 1.05
"""Most cycles of a plan with parameters beside the weights, relative to the best plan: it leaves more room."""
PARAMETER_BLOCKS = 34
"""Parameter blocks that a plan leaves room for if it can, so that the next operators' blocks come early."""
EPILOGUE_BLOCKS = 2
"""Blocks among `PARAMETER_BLOCKS` that are for epilogues."""


@dataclass(frozen=True)
class Zones:
    """First address and size in vectors of the three zones."""

    a: tuple[int, int]
    b: tuple[int, int]
    o: tuple[int, int]


def unit(config: Config) -> int:
    """Return the unit in which the scratchpad is divided, in vectors: a bank, or a quarter if there are fewer than
    four."""
    return config.scratchpad_size // max(config.scratchpad_banks, 4)


def zones(
    config: Config, region: Region | None = None, *, inputs: bool = True, tail: int = 0
) -> tuple[Zones, ...]:
    """Return all divisions of the scratchpad, or of a region; without `inputs` zone A is empty.

    With a `tail` zone O is only that many vectors, at the end of B's last bank.
    """
    size = unit(config)
    first, last = region or (0, config.scratchpad_size)
    units = (last - first) // size
    divisions = []
    for a in range(1, units - (tail == 0)) if inputs else (0,):
        for b in (units - a,) if tail else range(1, units - a):
            starts = (first, first + a * size, last - tail if tail else first + (a + b) * size, last)
            divisions.append(Zones(*((start, stop - start) for start, stop in pairwise(starts))))
    return tuple(divisions)


@dataclass(frozen=True)
class Tiling:
    """The free choices in a `ConvPlan`, which determine it; `zones` are the first vectors of zones B and O."""

    tile: tuple[int, int]
    zones: tuple[int, int]
    block: int
    chunk: int
    group: int
    chunked: bool


@dataclass(frozen=True)
class ConvPlan:
    """Tiling of one convolution.

    Attributes
    ----------
    zones : Zones
    tile : tuple of int
        Rows and columns of final outputs.
    block : int
        Output tiles that are accumulated together, chunk by chunk.
    a_slot, a_count, b_slot, b_count, c_slot, c_count : int
        Slot sizes and slots of the rings of inputs, weights and sums.
    o_slot, o_count : int
        Slot size and slots of outputs. A residual has as many slots in addition, or instead if outputs are resident.
    b_limit : int
        Largest chunk, in vectors of a tile's weights.
    params : int
        Slots of the parameter ring.
    group : int
        Output tiles whose weights stay on chip while all spatial tiles pass.
    store : int
        Output tiles per STORE.
    chunked : bool
        Whether inputs are loaded per chunk of the contraction.
    cycles, traffic : float
        Estimated cycles, and cycles of the bus for data.
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
"""Function that returns the plan for a convolution, or None if not even the smallest tile fits."""


def plan(shape: ConvShape) -> ConvPlan | None:
    """Return the best plan by estimate; None if not even the smallest tile fits.

    Plans with parameters beside the weights are preferred: they leave more room for weights, also for the next
    operators' weights, which then come earlier.
    """
    apart, beside_weights = _best(shape, _separate_zones(shape)), _best(shape, _zones_with_tail(shape))
    if apart is None or (beside_weights is not None and beside_weights.cycles <= _ROOM * apart.cycles):
        return beside_weights
    return apart


def plan_apart(shape: ConvShape) -> ConvPlan | None:
    """Return the best plan with parameters in a bank of their own, where no unit waits for another."""
    return _best(shape, _separate_zones(shape))


def candidates(shape: ConvShape) -> list[ConvPlan]:
    """Return at most 512 plans, best first: half are the best by estimate, the others are spread over all."""
    divided = _separate_zones(shape) + _zones_with_tail(shape)
    return [_plan(divided, choice) for choice in _search(shape, divided).all(_CANDIDATES)] if divided else []


def _best(shape: ConvShape, divided: tuple[Zones, ...]) -> ConvPlan | None:
    choice = _search(shape, divided).best() if divided else None
    return None if choice is None else _plan(divided, choice)


def _separate_zones(shape: ConvShape) -> tuple[Zones, ...]:
    return zones(shape.config, shape.region, inputs=shape.src.resident is None)


def _zones_with_tail(shape: ConvShape) -> tuple[Zones, ...]:
    """Return divisions with parameters beside the weights, for slow memories, if zone O holds only parameters.

    The vector unit seldom reads parameters, so that they need no bank of their own.
    """
    if shape.slots or shape.target.beat <= SLOW:
        return ()
    tail = min(
        unit(shape.config), PARAMETER_VECTORS * max(PARAMETER_BLOCKS, 2 * len(shape.tiles) + EPILOGUE_BLOCKS)
    )
    return zones(shape.config, shape.region, inputs=shape.src.resident is None, tail=tail)


def _search(shape: ConvShape, divided: Sequence[Zones]) -> Search:
    return Search(shape, [Zone(z.a[1], z.b[1], z.o[1], shared_fraction(z, shape.config)) for z in divided])


def shared_fraction(zones: Zones, config: Config) -> float:
    """Return the fraction of zone B that lies in a bank of zone A."""
    end = zones.a[0] + zones.a[1]
    bank = -(-end // config.scratchpad_depth) * config.scratchpad_depth
    return min(bank - end, zones.b[1]) / zones.b[1] if zones.a[1] and zones.b[1] else 0.0


def _plan(divided: Sequence[Zones], choice: ScoredPlan) -> ConvPlan:
    return ConvPlan(
        divided[choice.zone], choice.tile, choice.block, *choice.a, choice.chunk, *choice.b, choice.o[0], choice.o[1],
        *choice.c, choice.params, choice.group, choice.store, choice.chunked, choice.cycles, choice.traffic,
    )  # fmt: skip


def boxes(shape: ConvShape, tile: tuple[int, int]) -> list[Box]:
    """Cut the final output into tiles, evenly, in row-major order."""
    h, w = shape.outputs
    return [
        Box(y, x, min(tile[0], h - y), min(tile[1], w - x))
        for y in range(0, h, tile[0])
        for x in range(0, w, tile[1])
    ]
