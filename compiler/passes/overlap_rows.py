"""Operators of the kernel engine run beside the convolutions next to them: the array works while the engine does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Region
from weft.compiler.machine.emit import ceil_div
from weft.compiler.operators.record import operator_of
from weft.compiler.plan.conv_plan import boxes, unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner

_TILES = (8, 4, 2)
"""Parts of a convolution's pixels, at least, one behind the other: what of the kernel lies behind, or ahead of, all of
the convolution is one of them."""
_GAIN = 0.98
"""Share of the cycles at which it is done."""


class _Pair(NamedTuple):
    """Two operators with plans for disjoint regions, and the cycles that this saves by estimate."""

    ops: tuple[DeviceOp, DeviceOp]
    regions: tuple[Region, Region]
    saved: float


def overlap_rows(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """An operator of the kernel engine and a convolution next to it share the scratchpad and run at the same time, row
    by row, where that is quicker.

    That is by estimate; of neighbours those that save most.
    """
    ops, size = segment.ops, planner.config.scratchpad_size
    found = {
        index: pair for index in range(len(ops) - 1) if (pair := _pair(segment, index, planner)) is not None
    }
    chosen = _best(found, len(ops))
    regions, made = list(segment.regions or ((0, size),) * len(ops)), list(ops)
    for index in chosen:
        made[index : index + 2], regions[index : index + 2] = found[index].ops, found[index].regions
    if not chosen:
        return segment
    return dataclasses.replace(segment, ops=tuple(made), regions=tuple(regions), overlapped=chosen)


def _best(found: dict[int, _Pair], count: int) -> tuple[int, ...]:
    """Of pairs by the index of their first operator those that save most together; no operator is in two of them."""
    saved: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), (0.0, ())]
    for index in range(count - 1):
        best = saved[-1]
        if index in found:
            before, chosen = saved[-2]
            best = max(best, (before + found[index].saved, (*chosen, index)), key=lambda item: item[0])
        saved.append(best)
    return saved[-1][1]


def _pair(segment: DeviceSegment, index: int, planner: Planner) -> _Pair | None:
    """Two operators that follow each other as a pair; None if they are none, or that saves too little."""
    ops = segment.ops[index : index + 2]
    at = next((at for at, op in enumerate(ops) if isinstance(op, Conv)), None)
    if at is None or operator_of(ops[1 - at]).beside is None:
        return None
    conv, row = ops[at], ops[1 - at]
    assert isinstance(conv, Conv)
    whole = (0, planner.config.scratchpad_size)
    if segment.regions and {*segment.regions[index : index + 2]} != {whole}:  # beside what stays on chip
        return None
    product, alone = (operator_of(op).cost(op, op.plan, planner.target) for op in (conv, row))
    best: _Pair | None = None
    for planned, other, regions, tiles in _planned(conv, row, planner):
        array, vector = planned.plan, alone.cycles + _vector_cycles(planned, planner)
        together = max(array.cycles, vector, array.traffic + alone.traffic) + alone.cycles / tiles
        saved = product.cycles + alone.cycles - together
        if together < _GAIN * (together + saved) and (best is None or saved > best.saved):
            pair = (planned, other) if at == 0 else (other, planned)
            best = _Pair(pair, regions if at == 0 else regions[::-1], saved)
    return best


def _planned(
    conv: Conv, row: DeviceOp, planner: Planner
) -> Iterator[tuple[DeviceOp, DeviceOp, tuple[Region, Region], int]]:
    """Both with plans, the regions for them, and the parts of the convolution."""
    config, record = planner.config, operator_of(row)
    assert record.beside is not None
    step = unit(config)
    for banks in range(1, config.scratchpad_size // step - 1):
        region = (config.scratchpad_size - banks * step, config.scratchpad_size)
        plan = record.beside(row, planner.site(row, region=region))
        if plan is not None:
            break
    else:
        return
    rest = (0, region[0])
    for least in _TILES:
        shape = ConvShape(conv, planner.site(conv, region=rest), tiles_least=least)
        chosen = planner.convolution(shape)
        if chosen is not None:
            parts = len(boxes(shape, chosen.tile)) * shape.src.n
            yield conv.replace(plan=chosen), row.replace(plan=plan), (rest, region), parts


def _vector_cycles(conv: DeviceOp, planner: Planner) -> float:
    """What the vector unit takes for the results of a convolution."""
    n, h, w, c = conv.dst.shape
    return n * h * w * ceil_div(c, planner.config.n) * planner.config.groups
