"""Lowering operators one after the other: those that are alike share their tasks.

The steps of a recurrent network differ in where their operands lie in memory, and in nothing else. So an operator is
lowered for operands at places that stand for any, and the tasks get their offsets afterwards. What look-up tables,
kernels and parameters are on chip already decides which tasks there are as well.
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
from weft.compiler.plan.site import Site, held

_BITS = 40
"""Bits of an offset in an operand; those above it are the operand's number, from 1 on, as long as it lies nowhere."""
_IN_INSTRUCTIONS = ("pages", "table")
"""Kinds of buffers whose places are in instructions, so that operators that read them share no tasks."""


class _Part:
    """A part of what operators leave on chip for later ones, and the states that it has been in, by their numbers.

    `now` is the state after the operators so far. The part itself may be in an older one, `shown`, after operators
    whose tasks were known.
    """

    def __init__(self, part: Ring | Kernels | Ends) -> None:
        self._part = part
        self._numbers: dict[Hashable, int] = {}
        self._states: list[Any] = []
        self.note()

    def note(self) -> None:
        """The part has changed."""
        state = self._part.state
        self.now = self._shown = self._numbers.setdefault(state, len(self._states))
        if self.now == len(self._states):
            self._states.append(state)

    def show(self) -> None:
        """Bring the part into its state."""
        if self._shown != self.now:
            self._part.restore(self._states[self.now])
            self._shown = self.now


class _Lowered(NamedTuple):
    """Tasks of operands that lie nowhere yet, and the states after them of the parts that they depend on."""

    tasks: tuple[Task, ...]
    after: dict[str, int]


class Lowering:
    """Lowers the operators of a program in order; `constants` are the program's."""

    def __init__(self, target: Target, allocation: Allocation) -> None:
        self.target, self.allocation, self.constants = target, allocation, Constants()
        self._tables = Ring(0, 1, target.config.lookup_tables)
        self._kernels, self._ends = Kernels(target.config.kernel), Ends()
        self._parts = {
            "tables": _Part(self._tables), "kernels": _Part(self._kernels), "ends": _Part(self._ends)
        }  # fmt: skip
        self._needs: dict[Hashable, tuple[str, ...]] = {}
        """The parts that operators of a form depend on."""
        self._known: dict[Hashable, _Lowered] = {}
        self._first: dict[Hashable, tuple[DeviceOp, Site]] = {}
        """The first operator of each form, which knows what others would compute again."""
        self._shared: dict[Hashable, Any] = {}

    def emitter(self, layer: int) -> Emitter:
        """Make what makes the tasks of an operator."""
        return Emitter(self.target, self.constants, layer, self._tables, self._kernels, self._ends)

    def tasks(self, op: DeviceOp, layer: int, region: Region | None) -> Iterator[Task]:
        """The tasks of an operator, in sequential order."""
        views = (*op.sources, op.dst)
        if any(view.buffer.kind in _IN_INSTRUCTIONS for view in views):
            return iter(self._lowered(op, layer, Site.of(op, self.allocation, self.target, region)).tasks)
        form = op.signature, held(op, self.allocation.resident), region
        found = self._known.get(self._key(form))
        if found is None:
            again = form in self._first
            if not again:
                self._first[form] = op, _nowhere(Site.of(op, self.allocation, self.target, region))
            op, site = self._first[form]
            size = self.constants.size
            before = {name: part.now for name, part in self._parts.items()}
            found = self._lowered(op, layer, site, again=again)
            if self.constants.size == size:  # else there are other tasks the next time
                self._needs[form] = tuple(found.after)
                self._known[form, tuple(before[name] for name in found.after)] = found
        for name, state in found.after.items():
            self._parts[name].now = state
        offsets = self.allocation.offsets
        starts = [0, *(offsets.get(view.buffer.name, 0) + view.offset for view in views)]
        return _placed(found.tasks, layer, starts)

    def _key(self, form: Hashable) -> Hashable:
        return form, tuple(self._parts[name].now for name in self._needs.get(form, ()))

    def _lowered(self, op: DeviceOp, layer: int, site: Site, *, again: bool = False) -> _Lowered:
        for part in self._parts.values():
            part.show()
        emit = self.emitter(layer)
        if again:
            emit.shared = self._shared
        tasks = tuple(operator_of(op).lower(op, site, emit))
        for name in emit.used:
            self._parts[name].note()
        return _Lowered(tasks, {name: self._parts[name].now for name in sorted(emit.used)})


def _placed(tasks: Iterable[Task], layer: int, starts: Sequence[int]) -> Iterator[Task]:
    """Tasks of a layer whose operands begin at `starts`, by their numbers."""
    for instruction, _, cycles, dram_bytes, paces, addresses in tasks:
        if addresses and addresses[0] >> _BITS:
            operand, at = divmod(addresses[0], 1 << _BITS)
            addresses = starts[operand] + at, *addresses[1:]
        yield Task(instruction, layer, cycles, dram_bytes, paces, addresses)


def _nowhere(site: Site) -> Site:
    """The site with operands whose offsets are their numbers."""
    moved = [
        dataclasses.replace(item, offset=number << _BITS)
        for number, item in enumerate((*site.sources, site.dst), 1)
    ]
    return dataclasses.replace(site, sources=tuple(moved[:-1]), dst=moved[-1])
