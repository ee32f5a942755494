"""Depth-first execution: chains of operators run strip by strip, so that results too large for the chip stay on chip.

A strip is some rows of a chain's last result, with all rows of earlier results that they need. Only these rows exist
at a time, and they stay on chip as in `weft.compiler.passes.keep_resident`. Strips cost the array the rows that
neighbouring strips both need, and the bus the weights, which are loaded for each strip. They save the bus the results
between operators. Estimates select chains and strip heights: closed forms among all disjoint chains first, then plans
of the selected chains.

This is the "depth-first" or "patch-based" order of L. Mei et al., "DeFiNES" (arXiv:2212.05344), and J. Lin et al.,
"MCUNetV2" (arXiv:2110.15352), with strips of full width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pool
from weft.compiler.ir.windows import ONE
from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.passes.groups import best_disjoint
from weft.compiler.passes.keep_resident import Chip, keep_resident
from weft.compiler.passes.strips import (
    Part,
    StripLayout,
    as_images,
    lay_out_strips,
    parts_of,
    replace_chains,
    rows_read,
)
from weft.compiler.plan.conv_plan import unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa import PARAMETER_VECTORS, WORD_BYTES

_LONGEST = 12
"""Most operators of a chain."""
_GAIN = 1.0
"""Most cycles of a chain in strips, as a fraction of its cycles without."""
_TRAFFIC = 0.1
"""Value of a bus cycle that becomes free, in cycles."""
_PLANNED = 48
"""Most rounds of planning per segment."""
_INSTRUCTIONS = 8
"""Typical number of instructions of an operator in a strip."""


class _Candidate(NamedTuple):
    """Chain of operators `first` to `last` in strips of `height` rows, and the cycles that it saves by estimate."""

    first: int
    last: int
    height: int
    saved: float

    @property
    def stop(self) -> int:
        return self.last + 1


def depth_first(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Run chains of operators strip by strip, with the results between them on chip, where that is faster.

    Estimates compare it with results that stay on chip whole or go to memory.
    """
    images = dataclasses.replace(segment, ops=as_images(segment.ops))
    laid = _Chains(images, planner).choose()
    return replace_chains(images, laid, planner) if laid else segment


class _Work:
    """Costs of an operator: array and vector cycles per row of results, and bus cycles of weights and parameters."""

    def __init__(self, op: DeviceOp, planner: Planner) -> None:
        config, (n, _, w, c) = planner.config, op.dst.shape
        pool = getattr(op, "window" if isinstance(op, Pool) else "pool", None) or ONE
        reads, tiles = math.prod(pool.kernel) * config.groups, ceil_div(c, config.n)
        self.array, weights = 0.0, 0.0
        if isinstance(op, Conv):
            shape = ConvShape(op, planner.site(op))
            _, width = op.window.output(*op.src.shape[1:3])
            self.array = n * pool.stride[0] * (width + shape.lead_rows) * shape.steps
            weights, tiles = shape.weight_bytes, len(shape.tiles)
            reads += 0 if op.epilogue is None else config.groups
        self.vector = n * w * tiles * (reads + (len(op.sources) > 1))
        params = ceil_div(c, config.n) * PARAMETER_VECTORS * config.n
        self.bus = planner.target.transfer_cycles(weights + params + _INSTRUCTIONS * WORD_BYTES)

    def cost(self, rows: int, moved: int, target: Target) -> Cost:
        """Return the estimate for `rows` rows of results, which move `moved` bytes in addition to weights."""
        array, vector, bus = rows * self.array, rows * self.vector, self.bus + target.transfer_cycles(moved)
        near = 0.1 * max(bus, vector) + 0.05 * bus  # as `weft.compiler.plan.conv_parts.room_penalty`
        return Cost(max(array, vector, bus) + near + 2 * overheads.RAMP_CYCLES, bus)


class _Chains:
    """Chains of a segment, and the savings of each."""

    def __init__(self, segment: DeviceSegment, planner: Planner) -> None:
        self.segment, self.planner, self.ops = segment, planner, segment.ops
        self.work: dict[int, _Work] = {}
        self.writers = segment.index.writers
        self.readers = {name: [at for at, _ in reads] for name, reads in segment.index.reads.items()}

    @cached_property
    def usual(self) -> DeviceSegment:
        """Segment without strips."""
        return keep_resident(self.segment, self.planner)

    @cached_property
    def costs(self) -> list[Cost]:
        """Cost of each operator without strips; zero if unknown."""
        costs = (self.chip.cost(range(at, at + 1)) for at in range(len(self.ops)))
        return [cost or Cost(0.0, 0.0) for cost in costs]

    @cached_property
    def chip(self) -> Chip:
        """Scratchpad contents without strips."""
        return Chip(self.usual, self.planner)

    def _savings(self, first: int, last: int, cost: Cost) -> float:
        """Return what a chain of this cost saves; 0 if it is not worthwhile."""
        usual = self.costs[first : last + 1]
        lost = self._displaced_traffic(first, last)
        cycles = sum(item.cycles for item in usual) - cost.cycles - lost
        traffic = sum(item.traffic for item in usual) - cost.traffic - lost
        slower = cost.cycles + lost > _GAIN * sum(item.cycles for item in usual)
        return 0.0 if slower or traffic <= 0 else cycles + _TRAFFIC * traffic

    def choose(self) -> dict[tuple[int, int], StripLayout]:
        """Return the layouts of the chains to run in strips, by their first and last operators."""
        open_: dict[tuple[int, int], list[_Candidate]] = {}
        for item in self._candidates():
            open_.setdefault((item.first, item.last), []).append(item)
        plans: dict[tuple[int, int], tuple[_Candidate, StripLayout] | None] = {}
        for _ in range(_PLANNED):
            every = [item[0] for item in plans.values() if item] + [
                max(items, key=lambda item: item.saved) for items in open_.values()
            ]
            # Plan only chains that the current best choice contains; their estimates then become exact.
            best = best_disjoint(every, len(self.ops))
            unknown = [item for item in best if (item.first, item.last) in open_]
            if not unknown:
                break
            for item in unknown:
                self._plan(item, open_, plans)
        known = [item[0] for item in plans.values() if item]
        return {
            (item.first, item.last): plans[item.first, item.last][1]  # type: ignore[index]
            for item in best_disjoint(known, len(self.ops))
        }

    def _plan(
        self,
        item: _Candidate,
        open_: dict[tuple[int, int], list[_Candidate]],
        plans: dict[tuple[int, int], tuple[_Candidate, StripLayout] | None],
    ) -> None:
        """Plan the candidates for a chain, best first, until one saves cycles."""
        key = item.first, item.last
        best: tuple[_Candidate, StripLayout] | None = None
        for other in open_.pop(key):
            laid = lay_out_strips(self._chain(item.first, item.last), other.height, self.planner)
            if laid is None:
                continue
            saved = self._savings(item.first, item.last, laid.cost)
            if saved > 0:
                best = other._replace(saved=saved), laid
                break
        plans[key] = best

    # --- candidates

    def _candidates(self) -> list[_Candidate]:
        candidates = []
        for first in range(len(self.ops)):
            for last in range(first + 1, min(first + _LONGEST, len(self.ops))):
                if not all(operator_of(self.ops[end]).resident for end in (first, last)):
                    break
                if self._is_closed(first, last) and self._needs_memory(first, last):
                    candidates += self._heights(first, last)
        return candidates

    def _chain(self, first: int, last: int) -> Sequence[DeviceOp]:
        return self.ops[first : last + 1]

    def _is_closed(self, first: int, last: int) -> bool:
        """True if all results of a chain but the last are read whole and only within it, and the last is read only
        outside."""
        inner = {self.ops[at].dst.buffer.name for at in range(first, last)}
        for at in range(first, last):
            dst = self.ops[at].dst
            name = dst.buffer.name
            reads = self.readers.get(name, [])
            if dst.buffer.kind != "temp" or not dst.contiguous or self.writers[name] != [at] or not reads:
                return False
            if not all(at < reader <= last for reader in reads):
                return False
            views = [
                view for reader in reads for view in self.ops[reader].sources if view.buffer.name == name
            ]
            if not all(view == dst for view in views):
                return False
        end = self.ops[last].dst.buffer.name
        outside = {view.buffer.name for op in self.ops[first : last + 1] for view in op.sources} - inner
        return end not in inner | outside

    def _needs_memory(self, first: int, last: int) -> bool:
        """Return whether a result between the chain's operators goes to memory without strips."""
        return any(self.ops[at].dst.buffer.name not in self.usual.resident for at in range(first, last))

    def _heights(self, first: int, last: int) -> list[_Candidate]:
        """Return the best strip heights by closed forms."""
        chain = self._chain(first, last)
        height, candidates = chain[-1].dst.shape[1], list[_Candidate]()
        count = 2
        while count <= height:
            rows = ceil_div(height, count)
            cost = self._estimate(first, chain, rows)
            saved = 0.0 if cost is None else self._savings(first, last, cost)
            if saved > 0:
                candidates.append(_Candidate(first, last, rows, saved))
            # Next count with smaller strips, and at least 30 % more of them.
            count = max(count + 1, ceil_div(height, max(rows - 1, 1)), int(count * 1.3))
        return sorted(candidates, key=lambda item: -item.saved)[:2]

    def _estimate(self, first: int, chain: Sequence[DeviceOp], rows: int) -> Cost | None:
        """Return a closed-form estimate of a chain in strips of `rows` rows; None if strips do not fit."""
        height = chain[-1].dst.shape[1]
        # A strip in the middle stands for all: those at the edges read less.
        start = min(height // rows // 2 * rows, height - rows)
        parts = parts_of(chain, (start, start + rows))
        if parts is None or not self._fits(chain, parts):
            return None
        inner = {op.dst.buffer.name for op in chain[:-1]}
        total = traffic = 0.0
        for at, (op, part) in enumerate(zip(chain, parts, strict=True)):
            moved = [
                (stop - start) * view.shape[0] * view.shape[2] * view.shape[3]
                for view, (start, stop) in (*rows_read(op, part), (op.dst, part.computed))
                if view.buffer.name not in inner
            ]
            cost = self._work(first + at).cost(
                part.computed[1] - part.computed[0], sum(moved), self.planner.target
            )
            total, traffic = total + cost.cycles, traffic + cost.traffic
        count = ceil_div(height, rows)
        return Cost(total * count, traffic * count)

    def _work(self, index: int) -> _Work:
        if index not in self.work:
            self.work[index] = _Work(self.ops[index], self.planner)
        return self.work[index]

    def _fits(self, chain: Sequence[DeviceOp], parts: Sequence[Part]) -> bool:
        """Return whether results between a strip's operators fit on chip, beside the operators' own minimum."""
        config = self.planner.config
        size = unit(config)
        ends = {view.buffer.name: at for at, op in enumerate(chain) for view in op.sources}
        alive: dict[str, int] = {}
        for at, (op, part) in enumerate(zip(chain, parts, strict=True)):
            if at < len(chain) - 1:
                n, _, w, c = op.dst.shape
                vectors = n * (part.computed[1] - part.computed[0]) * w * ceil_div(c, config.n)
                alive[op.dst.buffer.name] = ceil_div(vectors, size)
            # Units of scratchpad for inputs, weights and outputs that are not already on chip.
            least = 3 - (op.sources[0].buffer.name in alive) - (not isinstance(op, Conv))
            if sum(alive.values()) + least > config.scratchpad_size // size:
                return False
            alive = {name: units for name, units in alive.items() if ends[name] > at}
        return True

    def _displaced_traffic(self, first: int, last: int) -> float:
        """Return bus cycles for other results that cannot stay on chip while the chain runs."""
        inner = {self.ops[at].dst.buffer.name for at in range(first, last)}
        total = 0
        for name in self.chip.residents.occupied_ranges(range(first, last + 1)).keys() - inner:
            (writer,) = self.writers[name]
            total += math.prod(self.ops[writer].dst.shape) * (1 + len(self.readers[name]))
        return float(self.planner.target.transfer_cycles(total))
