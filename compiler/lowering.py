"""Lowering of a program's operators in order; equal operators share their tasks.

The steps of a recurrent network differ only in where their operands lie in memory. So an operator is lowered for
relocatable operands, and its tasks get their offsets afterwards. The tasks also depend on look-up tables, kernels and
parameters that earlier operators left on chip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from weft.compiler.ir.graph import DeviceOp, Region
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.memory import Allocation, Constants, Ends, Kernels, Ring
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import operator_of
from weft.compiler.plan.site import Site, resident_positions

_BITS = 40
"""Bits of an offset within an operand. Higher bits of a relocatable address are the operand's number, from 1 on."""
_IN_INSTRUCTIONS = ("pages", "table")
"""Kinds of buffers whose addresses are in instructions, so that operators that read them share no tasks."""


class _Part:
    """Part of the on-chip state that operators leave for later ones, with a history of numbered states.

    `now` is the state after the operators so far. The wrapped part itself may be in an older state, `_shown`, if
    operators since then had known tasks.
    """

    def __init__(self, part: Ring | Kernels | Ends) -> None:
        self._part = part
        self._numbers: dict[Hashable, int] = {}
        self._states: list[Any] = []
        self.note()

    def note(self) -> None:
        """Record that the part has changed."""
        state = self._part.state
        self.now = self._shown = self._numbers.setdefault(state, len(self._states))
        if self.now == len(self._states):
            self._states.append(state)

    def show(self) -> None:
        """Bring the part into the state `now`."""
        if self._shown != self.now:
            self._part.restore(self._states[self.now])
            self._shown = self.now


class _RelocatableTasks(NamedTuple):
    """Relocatable tasks, and the subsequent states of the parts that they depend on."""

    tasks: tuple[Task, ...]
    after: dict[str, int]


class Lowering:
    """Lowering of a program's operators, in order; `constants` are the program's."""

    def __init__(self, target: Target, allocation: Allocation) -> None:
        self.target, self.allocation, self.constants = target, allocation, Constants()
        self._tables = Ring(0, 1, target.config.lookup_tables)
        self._kernels, self._ends = Kernels(target.config.kernel), Ends()
        self._parts = {
            "tables": _Part(self._tables),
            "kernels": _Part(self._kernels),
            "ends": _Part(self._ends),
        }
        self._needs: dict[Hashable, tuple[str, ...]] = {}  # parts that operators of a form depend on
        self._known: dict[Hashable, _RelocatableTasks] = {}
        # The first operator of each form, with caches that later ones reuse.
        self._first: dict[Hashable, tuple[DeviceOp, Site]] = {}
        self._shared: dict[Hashable, Any] = {}

    def emitter(self, layer: int) -> Emitter:
        """Return an emitter for an operator's tasks."""
        return Emitter(self.target, self.constants, layer, self._tables, self._kernels, self._ends)

    def tasks(self, op: DeviceOp, layer: int, region: Region | None) -> Iterator[Task]:
        """Return the tasks of an operator, in sequential order."""
        views = (*op.sources, op.dst)
        if any(view.buffer.kind in _IN_INSTRUCTIONS for view in views):
            return iter(self._lower(op, layer, Site.of(op, self.allocation, self.target, region)).tasks)
        form = op.signature, resident_positions(op, self.allocation.resident), region
        known = self._known.get(self._key(form))
        if known is None:
            seen_before = form in self._first
            if not seen_before:
                self._first[form] = op, _relocatable(Site.of(op, self.allocation, self.target, region))
            op, site = self._first[form]
            size = self.constants.size
            before = {name: part.now for name, part in self._parts.items()}
            known = self._lower(op, layer, site, again=seen_before)
            if self.constants.size == size:  # else it added constants, and the next time its tasks differ
                self._needs[form] = tuple(known.after)
                self._known[form, tuple(before[name] for name in known.after)] = known
        for name, state in known.after.items():
            self._parts[name].now = state
        offsets = self.allocation.offsets
        starts = [0, *(offsets.get(view.buffer.name, 0) + view.offset for view in views)]
        return _relocate(known.tasks, layer, starts)

    def _key(self, form: Hashable) -> Hashable:
        return form, tuple(self._parts[name].now for name in self._needs.get(form, ()))

    def _lower(self, op: DeviceOp, layer: int, site: Site, *, again: bool = False) -> _RelocatableTasks:
        for part in self._parts.values():
            part.show()
        emit = self.emitter(layer)
        if again:
            emit.shared = self._shared
        tasks = tuple(operator_of(op).lower(op, site, emit))
        for name in emit.used:
            self._parts[name].note()
        return _RelocatableTasks(tasks, {name: self._parts[name].now for name in sorted(emit.used)})


def _relocate(tasks: Iterable[Task], layer: int, starts: Sequence[int]) -> Iterator[Task]:
    """Yield tasks with relocatable addresses resolved: operand number i begins at ``starts[i]``."""
    for instruction, _, cycles, dram_bytes, paces, addresses in tasks:
        # Only DRAM addresses are relocatable; on-chip and constant addresses have no operand number.
        if addresses and addresses[0] >> _BITS:
            operand, at = divmod(addresses[0], 1 << _BITS)
            addresses = starts[operand] + at, *addresses[1:]
        yield Task(instruction, layer, cycles, dram_bytes, paces, addresses)


def _relocatable(site: Site) -> Site:
    """Return a site with relocatable operands: their offsets are their numbers."""
    tensors = [
        dataclasses.replace(item, offset=number << _BITS)
        for number, item in enumerate((*site.sources, site.dst), 1)
    ]
    return dataclasses.replace(site, sources=tuple(tensors[:-1]), dst=tensors[-1])
