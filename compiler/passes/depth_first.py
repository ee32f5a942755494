"""Chains of convolutions strip by strip: what lies between them stays on chip though it does not fit there whole.

A strip is some rows of the last result of a chain, with all that these need of the results ahead of it. These are as
large as a strip, and stay on chip as `weft.compiler.passes.keep_resident` has it. It costs the array the rows that
neighbouring strips both need, and the bus the weights, which come again for each strip; and it saves the bus all results
but the last. The estimate decides which chains run so, and how high their strips are: first by closed forms, among all
disjoint chains, then by plans of those that were chosen.

This is the "depth-first" or "patch-based" order of L. Mei et al., "DeFiNES" (arXiv:2212.05344), and J. Lin et al.,
"MCUNetV2" (arXiv:2110.15352), with strips of full width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Region
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.passes.keep_resident import cost_of, keep_resident, with_resident
from weft.compiler.passes.strips import in_strips, strip_of
from weft.compiler.plan.conv_plan import unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa import PARAMETER_VECTORS, WORD_BYTES

_LONGEST = 12
"""Operators of a chain at most."""
_GAIN = 0.97
"""Share of the cycles at which a chain runs in strips."""
_PLANNED = 48
"""Chains of a segment that are planned at most."""
_INSTRUCTIONS = 8
"""Of an operator of a strip, about."""


class _Strips(NamedTuple):
    """A chain, operators `first` to `last`, in strips of so many rows, and the cycles that this saves by estimate."""

    first: int
    last: int
    height: int
    saved: float


class _Laid(NamedTuple):
    """The operators of all strips of a chain, with what stays on chip and what is left of the scratchpad for each."""

    ops: tuple[Conv, ...]
    resident: Mapping[str, int]
    regions: tuple[Region, ...]
    cycles: float


def depth_first(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Chains of convolutions run strip by strip, and what is between them stays on chip, where that takes less time.

    That is by estimate, against results that stay on chip whole or go to memory.
    """
    chains = _Chains(segment, planner)
    laid = chains.chosen()
    if not laid:
        return segment
    made = _replaced(segment, laid, planner)
    return made


def _replaced(segment: DeviceSegment, laid: Mapping[tuple[int, int], _Laid], planner: Planner) -> DeviceSegment:
    """The segment with strips in the place of chains, by their first and last operators."""
    ops: list[DeviceOp] = []
    regions, strips = list[Region](), list[tuple[int, int]]()
    resident, at = dict(segment.resident), 0
    whole = (0, planner.config.scratchpad_size)
    for (first, last), item in sorted(laid.items()):
        ops += segment.ops[at:first]
        regions += segment.regions[at:first] or [whole] * (first - at)
        strips.append((len(ops), len(ops) + len(item.ops)))
        ops += item.ops
        regions += item.regions
        resident |= item.resident
        at = last + 1
    ops += segment.ops[at:]
    regions += segment.regions[at:] or [whole] * (len(segment.ops) - at)
    return dataclasses.replace(
        segment, ops=tuple(ops), resident=resident, regions=tuple(regions), strips=tuple(strips)
    )


class _Work:
    """What an operator takes for each row of its results: cycles of array and vector unit; and of the bus for its
    weights and parameters."""

    def __init__(self, op: Conv, planner: Planner) -> None:
        shape, target = ConvShape(op, planner.site(op)), planner.target
        n, _, w, c = op.dst.shape
        pool = (1, 1) if op.pool is None else op.pool.stride
        pooled = 1 if op.pool is None else math.prod(op.pool.kernel)
        _, width = op.window.output(*op.src.shape[1:3])
        self.array = n * pool[0] * (width + shape.more) * shape.steps
        reads = pooled * planner.config.groups
        if op.epilogue is not None:
            reads += planner.config.groups + (len(op.epilogue.sources) > 1)
        self.vector = n * w * len(shape.tiles) * reads
        params = ceil_div(c, planner.config.n) * PARAMETER_VECTORS * planner.config.n
        self.bus = target.moved(shape.weight_bytes + params + _INSTRUCTIONS * WORD_BYTES)


class _Chains:
    """The chains of a segment, and what each of them saves."""

    def __init__(self, segment: DeviceSegment, planner: Planner) -> None:
        self.segment, self.planner, self.ops = segment, planner, segment.ops
        self.work: dict[int, _Work] = {}
        self.readers: dict[str, list[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for index, op in enumerate(self.ops):
            self.writers.setdefault(op.dst.buffer.name, []).append(index)
            for view in op.sources:
                self.readers.setdefault(view.buffer.name, []).append(index)

    @cached_property
    def usual(self) -> DeviceSegment:
        """The segment without strips."""
        return keep_resident(self.segment, self.planner)

    @cached_property
    def cycles(self) -> list[float]:
        """What each operator takes without strips; 0 where that is not known."""
        found = (cost_of(self.usual, range(at, at + 1), self.planner) for at in range(len(self.ops)))
        return [0.0 if cost is None else cost.cycles for cost in found]

    def chosen(self) -> dict[tuple[int, int], _Laid]:
        """The chains that run in strips, by their first and last operators, as they are then."""
        open_: dict[tuple[int, int], list[_Strips]] = {}
        for item in self._candidates():
            open_.setdefault((item.first, item.last), []).append(item)
        found: dict[tuple[int, int], tuple[_Strips, _Laid] | None] = {}
        for _ in range(_PLANNED):
            every = [item[0] for item in found.values() if item] + [
                max(items, key=lambda item: item.saved) for items in open_.values()
            ]
            best = _disjoint(every, len(self.ops))
            unknown = [item for item in best if (item.first, item.last) in open_]
            if not unknown:
                break
            for item in unknown:
                self._plan(item, open_, found)
        known = [item[0] for item in found.values() if item]
        return {
            (item.first, item.last): found[item.first, item.last][1]  # type: ignore[index]
            for item in _disjoint(known, len(self.ops))
        }

    def _plan(
        self,
        item: _Strips,
        open_: dict[tuple[int, int], list[_Strips]],
        found: dict[tuple[int, int], tuple[_Strips, _Laid] | None],
    ) -> None:
        """Plan all candidates for a chain, and keep the best."""
        key = item.first, item.last
        usual = sum(self.cycles[item.first : item.last + 1])
        best: tuple[_Strips, _Laid] | None = None
        for other in open_.pop(key):
            laid = self._laid(self.ops[item.first : item.last + 1], other.height)
            if laid is None:
                continue
            after = laid.cycles + self._lost(item.first, item.last)
            if after < _GAIN * usual and (best is None or usual - after > best[0].saved):
                best = other._replace(saved=usual - after), laid
        found[key] = best

    # What there is to choose from.

    def _candidates(self) -> list[_Strips]:
        found = []
        for first in range(len(self.ops)):
            for last in range(first + 1, min(first + _LONGEST, len(self.ops))):
                if type(self.ops[last]) is not Conv or type(self.ops[first]) is not Conv:
                    break
                if self._closed(first, last) and self._moved(first, last):
                    found += self._heights(first, last)
        return found

    def _closed(self, first: int, last: int) -> bool:
        """Whether results of a chain but the last are read in it alone, whole, and its last result by nobody in it."""
        inner = {self.ops[at].dst.buffer.name for at in range(first, last)}
        for at in range(first, last):
            dst = self.ops[at].dst
            name = dst.buffer.name
            reads = self.readers.get(name, [])
            if dst.buffer.kind != "temp" or not dst.contiguous or self.writers[name] != [at] or not reads:
                return False
            if not all(at < reader <= last for reader in reads):
                return False
            views = [view for reader in reads for view in self.ops[reader].sources if view.buffer.name == name]
            if not all(view == dst for view in views):
                return False
        end = self.ops[last].dst.buffer.name
        outside = {view.buffer.name for op in self.ops[first : last + 1] for view in op.sources} - inner
        return end not in inner | outside

    def _moved(self, first: int, last: int) -> bool:
        """Whether something between the operators of a chain goes to memory without strips."""
        return any(self.ops[at].dst.buffer.name not in self.usual.resident for at in range(first, last))

    def _heights(self, first: int, last: int) -> list[_Strips]:
        """The best heights of strips by closed forms."""
        chain, usual = self.ops[first : last + 1], sum(self.cycles[first : last + 1])
        height, found = chain[-1].dst.shape[1], list[_Strips]()
        count = 2
        while count <= height:
            rows = ceil_div(height, count)
            cycles = self._roughly(first, chain, rows)
            if cycles is not None and cycles + self._lost(first, last) < _GAIN * usual:
                found.append(_Strips(first, last, rows, usual - cycles - self._lost(first, last)))
            count = max(count + 1, ceil_div(height, max(rows - 1, 1)), int(count * 1.3))
        return sorted(found, key=lambda item: -item.saved)[:2]

    def _roughly(self, first: int, chain: Sequence[DeviceOp], rows: int) -> float | None:
        """Cycles of a chain in strips of so many rows; None if they do not fit."""
        height = chain[-1].dst.shape[1]
        start = min(height // rows // 2 * rows, height - rows)
        strip = strip_of(chain, (start, start + rows), 0)  # type: ignore[arg-type]
        if strip is None or not self._room(strip):
            return None
        target, total = self.planner.target, 0.0
        inner = {op.dst.buffer.name for op in strip[:-1]}
        for at, op in enumerate(strip):
            work = self.work.setdefault(first + at, _Work(chain[at], self.planner))  # type: ignore[arg-type]
            views = [view for view in {*op.sources, op.dst} if view.buffer.name not in inner]
            bus = work.bus + target.moved(sum(math.prod(view.shape) for view in views))
            total += max(op.dst.shape[1] * max(work.array, work.vector), bus) + 2 * overheads.ENDS
        return total * ceil_div(height, rows)

    def _room(self, strip: Sequence[Conv]) -> bool:
        """Whether what is between the operators of a strip fits on chip beside the least that they need."""
        config = self.planner.config
        size = unit(config)
        ends = {view.buffer.name: at for at, op in enumerate(strip) for view in op.sources}
        alive: dict[str, int] = {}
        for at, op in enumerate(strip):
            if at < len(strip) - 1:
                n, h, w, c = op.dst.buffer.shape
                alive[op.dst.buffer.name] = ceil_div(n * h * w * ceil_div(c, config.n), size)
            least = 2 if op.src.buffer.name in alive else 3
            if sum(alive.values()) + least > config.scratchpad_size // size:
                return False
            alive = {name: units for name, units in alive.items() if ends.get(name, at) > at}
        return True

    def _lost(self, first: int, last: int) -> float:
        """What the bus moves since other results cannot stay on chip while a chain runs."""
        inner = {self.ops[at].dst.buffer.name for at in range(first, last)}
        total = 0
        for name in self.usual.resident.keys() - inner:
            (writer,), reads = self.writers[name], self.readers[name]
            if writer <= last and first <= max(reads):
                total += math.prod(self.ops[writer].dst.shape) * (1 + len(reads))
        return float(self.planner.target.moved(total))

    # How a chain is in strips.

    def _laid(self, chain: Sequence[DeviceOp], height: int) -> _Laid | None:
        """A chain in strips; None if they do not fit."""
        strips = in_strips(chain, height)  # type: ignore[arg-type]
        if strips is None:
            return None
        known: dict[str, tuple[DeviceSegment, float] | None] = {}
        ops, resident, regions, cycles = list[Conv](), dict[str, int](), list[Region](), 0.0
        for strip in strips:
            kind = repr([(op.src.shape, op.window, op.pool, op.dst.shape, [view.y if view.buffer.kind == "temp" else 0 for view in op.sources]) for op in strip])
            if kind not in known:
                known[kind] = self._held(strip)
            held = known[kind]
            if held is None:
                return None
            ops += strip
            regions += held[0].regions
            for own, other in zip(strip[:-1], held[0].ops, strict=False):
                resident[own.dst.buffer.name] = held[0].resident[other.dst.buffer.name]
            cycles += held[1]
        return _Laid(tuple(ops), resident, tuple(regions), cycles)

    def _held(self, strip: tuple[Conv, ...]) -> tuple[DeviceSegment, float] | None:
        """One strip with all that is between its operators on chip, and its cycles; None if it does not fit."""
        segment = DeviceSegment("strip", strip)
        for index in range(len(strip) - 1):
            kept = with_resident(segment, index, self.planner)
            if kept is None:
                return None
            segment = kept
        cost = cost_of(segment, range(len(strip)), self.planner)
        return None if cost is None else (segment, cost.cycles)


def _disjoint(found: Sequence[_Strips], count: int) -> list[_Strips]:
    """Of chains those that save most together; no operator is in two of them."""
    by_last: dict[int, list[_Strips]] = {}
    for item in found:
        by_last.setdefault(item.last, []).append(item)
    best: list[tuple[float, tuple[_Strips, ...]]] = [(0.0, ())]
    for last in range(count):
        options = [best[-1]]
        for item in by_last.get(last, ()):
            saved, chosen = best[item.first]
            options.append((saved + item.saved, (*chosen, item)))
        best.append(max(options, key=lambda option: option[0]))
    return list(best[-1][1])
