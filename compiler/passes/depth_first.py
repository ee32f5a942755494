"""Chains of operators strip by strip: what lies between them stays on chip though it does not fit there whole.

A strip is some rows of the last result of a chain, with all that these need of the results ahead of it. These are as
large as a strip, and stay on chip as `weft.compiler.passes.keep_resident` has it. It costs the array the rows that
neighbouring strips both need, and the bus the weights, which come again for each strip; it saves the bus what is
between operators. The estimate decides which chains run so, and how high their strips are: first by closed forms,
among all disjoint chains, then by plans of those that were chosen.

This is the "depth-first" or "patch-based" order of L. Mei et al., "DeFiNES" (arXiv:2212.05344), and J. Lin et al.,
"MCUNetV2" (arXiv:2110.15352), with strips of full width.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from weft.compiler.ir.graph import ONE, Conv, DeviceOp, DeviceSegment, Pool
from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost, operator_of
from weft.compiler.passes.keep_resident import Chip, keep_resident
from weft.compiler.passes.strips import Laid, Part, as_images, lay, parts_of, replaced, rows_read
from weft.compiler.plan.conv_plan import unit
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa import PARAMETER_VECTORS, WORD_BYTES

_LONGEST = 12
"""Operators of a chain at most."""
_GAIN = 1.0
"""Share of the cycles at which a chain runs in strips."""
_TRAFFIC = 0.1
"""What a cycle of the bus that others could use is worth."""
_PLANNED = 48
"""Chains of a segment that are planned at most."""
_INSTRUCTIONS = 8
"""Of an operator of a strip, about."""


class _Candidate(NamedTuple):
    """A chain, operators `first` to `last`, in strips of so many rows, and what this saves by estimate."""

    first: int
    last: int
    height: int
    saved: float


def depth_first(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Chains of operators run strip by strip, and what is between them stays on chip, where that takes less time.

    That is by estimate, against results that stay on chip whole or go to memory.
    """
    images = dataclasses.replace(segment, ops=as_images(segment.ops))
    laid = _Chains(images, planner).chosen()
    return replaced(images, laid, planner) if laid else segment


class _Work:
    """What an operator takes for each row of its results: cycles of array and vector unit; and of the bus for its
    weights and parameters."""

    def __init__(self, op: DeviceOp, planner: Planner) -> None:
        config, (n, _, w, c) = planner.config, op.dst.shape
        pool = getattr(op, "window" if isinstance(op, Pool) else "pool", None) or ONE
        reads, tiles = math.prod(pool.kernel) * config.groups, ceil_div(c, config.n)
        self.array, weights = 0.0, 0.0
        if isinstance(op, Conv):
            shape = ConvShape(op, planner.site(op))
            _, width = op.window.output(*op.src.shape[1:3])
            self.array = n * pool.stride[0] * (width + shape.more) * shape.steps
            weights, tiles = shape.weight_bytes, len(shape.tiles)
            reads += 0 if op.epilogue is None else config.groups
        self.vector = n * w * tiles * (reads + (len(op.sources) > 1))
        params = ceil_div(c, config.n) * PARAMETER_VECTORS * config.n
        self.bus = planner.target.moved(weights + params + _INSTRUCTIONS * WORD_BYTES)

    def cost(self, rows: int, moved: int, target: Target) -> Cost:
        """Estimates for so many rows of results, and bytes that are moved beside the weights."""
        array, vector, bus = rows * self.array, rows * self.vector, self.bus + target.moved(moved)
        near = 0.1 * max(bus, vector) + 0.05 * bus  # as `weft.compiler.plan.conv_parts.near`
        return Cost(max(array, vector, bus) + near + 2 * overheads.ENDS, bus)


class _Chains:
    """The chains of a segment, and what each of them saves."""

    def __init__(self, segment: DeviceSegment, planner: Planner) -> None:
        self.segment, self.planner, self.ops = segment, planner, segment.ops
        self.work: dict[int, _Work] = {}
        self.writers = segment.index.writers
        self.readers = {name: [at for at, _ in reads] for name, reads in segment.index.reads.items()}

    @cached_property
    def usual(self) -> DeviceSegment:
        """The segment without strips."""
        return keep_resident(self.segment, self.planner)

    @cached_property
    def costs(self) -> list[Cost]:
        """What each operator takes without strips; nothing where that is not known."""
        found = (self.chip.cost(range(at, at + 1)) for at in range(len(self.ops)))
        return [cost or Cost(0.0, 0.0) for cost in found]

    @cached_property
    def chip(self) -> Chip:
        """What is on chip without strips."""
        return Chip(self.usual, self.planner)

    def _saved(self, first: int, last: int, cost: Cost) -> float:
        """What a chain saves that takes so much; 0 if that is not worth it."""
        usual = self.costs[first : last + 1]
        lost = self._lost(first, last)
        cycles = sum(item.cycles for item in usual) - cost.cycles - lost
        traffic = sum(item.traffic for item in usual) - cost.traffic - lost
        slower = cost.cycles + lost > _GAIN * sum(item.cycles for item in usual)
        return 0.0 if slower or traffic <= 0 else cycles + _TRAFFIC * traffic

    def chosen(self) -> dict[tuple[int, int], Laid]:
        """The chains that run in strips, by their first and last operators, as they are then."""
        open_: dict[tuple[int, int], list[_Candidate]] = {}
        for item in self._candidates():
            open_.setdefault((item.first, item.last), []).append(item)
        found: dict[tuple[int, int], tuple[_Candidate, Laid] | None] = {}
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
        item: _Candidate,
        open_: dict[tuple[int, int], list[_Candidate]],
        found: dict[tuple[int, int], tuple[_Candidate, Laid] | None],
    ) -> None:
        """Plan the candidates for a chain, best first, until one saves something."""
        key = item.first, item.last
        best: tuple[_Candidate, Laid] | None = None
        for other in open_.pop(key):
            laid = lay(self._chain(item.first, item.last), other.height, self.planner)
            if laid is None:
                continue
            saved = self._saved(item.first, item.last, laid.cost)
            if saved > 0:
                best = other._replace(saved=saved), laid
                break
        found[key] = best

    # What there is to choose from.

    def _candidates(self) -> list[_Candidate]:
        found = []
        for first in range(len(self.ops)):
            for last in range(first + 1, min(first + _LONGEST, len(self.ops))):
                if not all(operator_of(self.ops[end]).resident for end in (first, last)):
                    break
                if self._closed(first, last) and self._moved(first, last):
                    found += self._heights(first, last)
        return found

    def _chain(self, first: int, last: int) -> Sequence[DeviceOp]:
        return self.ops[first : last + 1]

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
            views = [
                view for reader in reads for view in self.ops[reader].sources if view.buffer.name == name
            ]
            if not all(view == dst for view in views):
                return False
        end = self.ops[last].dst.buffer.name
        outside = {view.buffer.name for op in self.ops[first : last + 1] for view in op.sources} - inner
        return end not in inner | outside

    def _moved(self, first: int, last: int) -> bool:
        """Whether something between the operators of a chain goes to memory without strips."""
        return any(self.ops[at].dst.buffer.name not in self.usual.resident for at in range(first, last))

    def _heights(self, first: int, last: int) -> list[_Candidate]:
        """The best heights of strips by closed forms."""
        chain = self._chain(first, last)
        height, found = chain[-1].dst.shape[1], list[_Candidate]()
        count = 2
        while count <= height:
            rows = ceil_div(height, count)
            cost = self._roughly(first, chain, rows)
            saved = 0.0 if cost is None else self._saved(first, last, cost)
            if saved > 0:
                found.append(_Candidate(first, last, rows, saved))
            count = max(count + 1, ceil_div(height, max(rows - 1, 1)), int(count * 1.3))
        return sorted(found, key=lambda item: -item.saved)[:2]

    def _roughly(self, first: int, chain: Sequence[DeviceOp], rows: int) -> Cost | None:
        """Estimates for a chain in strips of so many rows; None if they do not fit."""
        height = chain[-1].dst.shape[1]
        start = min(height // rows // 2 * rows, height - rows)
        parts = parts_of(chain, (start, start + rows))
        if parts is None or not self._room(chain, parts):
            return None
        inner = {op.dst.buffer.name for op in chain[:-1]}
        total = traffic = 0.0
        for at, (op, part) in enumerate(zip(chain, parts, strict=True)):
            moved = [
                (stop - start) * view.shape[0] * view.shape[2] * view.shape[3]
                for view, (start, stop) in (*rows_read(op, part), (op.dst, part.made))
                if view.buffer.name not in inner
            ]
            cost = self._work(first + at).cost(part.made[1] - part.made[0], sum(moved), self.planner.target)
            total, traffic = total + cost.cycles, traffic + cost.traffic
        count = ceil_div(height, rows)
        return Cost(total * count, traffic * count)

    def _work(self, index: int) -> _Work:
        if index not in self.work:
            self.work[index] = _Work(self.ops[index], self.planner)
        return self.work[index]

    def _room(self, chain: Sequence[DeviceOp], parts: Sequence[Part]) -> bool:
        """Whether what is between the operators of a strip fits on chip beside the least that they need."""
        config = self.planner.config
        size = unit(config)
        ends = {view.buffer.name: at for at, op in enumerate(chain) for view in op.sources}
        alive: dict[str, int] = {}
        for at, (op, part) in enumerate(zip(chain, parts, strict=True)):
            if at < len(chain) - 1:
                n, _, w, c = op.dst.shape
                vectors = n * (part.made[1] - part.made[0]) * w * ceil_div(c, config.n)
                alive[op.dst.buffer.name] = ceil_div(vectors, size)
            least = 3 - (op.sources[0].buffer.name in alive) - (not isinstance(op, Conv))
            if sum(alive.values()) + least > config.scratchpad_size // size:
                return False
            alive = {name: units for name, units in alive.items() if ends[name] > at}
        return True

    def _lost(self, first: int, last: int) -> float:
        """What the bus moves since other results cannot stay on chip while a chain runs."""
        inner = {self.ops[at].dst.buffer.name for at in range(first, last)}
        total = 0
        for name in self.chip.held.taken(range(first, last + 1)).keys() - inner:
            (writer,) = self.writers[name]
            total += math.prod(self.ops[writer].dst.shape) * (1 + len(self.readers[name]))
        return float(self.planner.target.moved(total))


def _disjoint(found: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """Of chains those that save most together; no operator is in two of them."""
    by_last: dict[int, list[_Candidate]] = {}
    for item in found:
        by_last.setdefault(item.last, []).append(item)
    saved, ending = [0.0], list[_Candidate | None]()
    for last in range(count):
        options: list[tuple[float, _Candidate | None]] = [(saved[-1], None)]
        options += [(saved[item.first] + item.saved, item) for item in by_last.get(last, ())]
        most, chosen = max(options, key=lambda option: option[0])
        saved.append(most)
        ending.append(chosen)
    best, last = list[_Candidate](), count - 1
    while last >= 0:
        chosen = ending[last]
        last = last - 1 if chosen is None else chosen.first - 1
        best += [] if chosen is None else [chosen]
    return best[::-1]
