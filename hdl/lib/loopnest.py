"""Nested loop counters with address trackers, the address generator of every unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Bound, Count, Instruction, Operand, places
from weft.hdl.isa.config import Config


class LoopNest(wiring.Component):
    """Nest of counted loops, with trackers: values that move by a stride in each iteration of a loop.

    A tracker's value is ``base + sum over its loops of index * stride``, modulo ``2**width``. A tracker costs one
    adder, and one register for each loop that moves it, whatever the depth of the nest.

    Parameters
    ----------
    loops : mapping of str to int
        Loop names, outermost first, and the widths of their counts.
    trackers : mapping of str to (int, mapping of str to int)
        For each tracker its width, and the width of the signed stride of each loop that moves it. Loops that are not
        listed do not move it. A tracker without strides has no member in `strides`.

    Members
    -------
    load : In(1)
        Take `counts`, `bases` and `strides`, and be at the first iteration in the next cycle. Overrides `step`, so
        that it may coincide with the last step: no idle cycle between two nests.
    step : In(1)
        Advance to the next iteration; after the last iteration, become inactive. Only while `active`.
    counts : In(struct of loop: unsigned)
        Iterations, at least 1.
    bases : In(struct of tracker: unsigned)
    strides : In(struct of tracker: struct of loop: signed)
    active : Out(1)
        There is a current iteration, which the outputs below describe.
    values : Out(struct of tracker: unsigned)
        Registers.
    first, last : Out(struct of loop: 1)
        The loop is in its first or last iteration. Registers.
    last_all : Out(1)
        The last iteration of the nest: the AND of `last`. A register.
    """

    def __init__(
        self, loops: Mapping[str, int], trackers: Mapping[str, tuple[int, Mapping[str, int]]]
    ) -> None:
        self.loops = dict(loops)
        self.trackers = {name: (width, dict(strides)) for name, (width, strides) in trackers.items()}
        for name, (_width, strides) in self.trackers.items():
            for loop in strides:
                if loop not in self.loops:
                    raise ValueError(
                        f"tracker {name!r} has a stride for {loop!r}, which is no loop of the nest"
                    )
        flags = data.StructLayout(dict.fromkeys(self.loops, 1))
        values = data.StructLayout({name: width for name, (width, _) in self.trackers.items()})
        strides = data.StructLayout(
            {
                name: data.StructLayout({loop: signed(width) for loop, width in strides.items()})
                for name, (_, strides) in self.trackers.items()
                if strides
            }
        )
        super().__init__(
            {
                "load": In(1),
                "step": In(1),
                "counts": In(data.StructLayout(self.loops)),
                "bases": In(values),
                "strides": In(strides),
                "active": Out(1),
                "values": Out(values),
                "first": Out(flags),
                "last": Out(flags),
                "last_all": Out(1),
            }
        )

    def take(self, instruction: data.View, **counts: int) -> list[Any]:
        """Return statements that connect `counts`, `bases` and `strides` to fields of `instruction`.

        The field of a count is named like its loop (unless given in `counts`), a base like its tracker, and a stride
        ``{tracker}_{loop}``.
        """
        statements = [
            self.counts[loop].eq(counts[loop] if loop in counts else instruction[loop]) for loop in self.loops
        ]
        for name, (_width, strides) in self.trackers.items():
            statements.append(self.bases[name].eq(instruction[name]))
            statements += [self.strides[name][loop].eq(instruction[f"{name}_{loop}"]) for loop in strides]
        return statements

    def elaborate(self, platform: object) -> Module:
        m = Module()
        moves = self._counters(m)
        for name in self.trackers:
            self._tracker(m, name, moves)
        return m

    def _counters(self, m: Module) -> Signal:
        """Build the counters. Returns which loop the next step advances, one-hot, with the outermost loop in bit 0.

        It is a register, because all trackers depend on it.
        """
        names = list(self.loops)
        with m.If(self.load):
            m.d.sync += self.active.eq(1)
        with m.Elif(self.step & self.last_all):
            m.d.sync += self.active.eq(0)
        moves = Signal(len(names))
        lasts = []  # each loop's `last` after a step
        for loop, move in zip(names, self._advance(m, moves), strict=True):
            lasts.append(self._counter(m, loop, *move))
        # On a load the first iteration is also the last if the count is 1.
        singles = [self.counts[loop] == 1 for loop in names]
        for enable, flags in ((self.load, singles), (self.step & ~self.load, lasts)):
            with m.If(enable):
                m.d.sync += [moves.eq(_moves(flags)), self.last_all.eq(Cat(*flags).all())]
        return moves

    def _advance(self, m: Module, moves: Signal) -> list[tuple[Value, Value]]:
        """Return two flags for each loop: a step advances it to its next iteration; a step resets it to its first."""
        outer = [Const(0), *(moves[:k].any() for k in range(1, len(moves)))]
        return [(moves[k], outer[k] | self.last_all) for k in range(len(moves))]

    def _counter(self, m: Module, loop: str, onward: Value, back: Value) -> Value:
        width, count = self.loops[loop], self.counts[loop]
        reload = Signal(width, name=f"reload_{loop}", reset_less=True)
        left = Signal(width, name=f"left_{loop}", reset_less=True)  # iterations after the next one
        # Flags: the count is 1, the count is 2, the next iteration is the last. No comparison then precedes `last`.
        single = Signal(name=f"single_{loop}", reset_less=True)
        double = Signal(name=f"double_{loop}", reset_less=True)
        near = Signal(name=f"near_{loop}", reset_less=True)
        with m.If(self.load):
            m.d.sync += [
                # Wraps for a count of 1, but such a loop never advances by itself.
                Cat(reload, left).eq((count - 2)[:width].replicate(2)),
                Cat(single, self.last[loop]).eq((count == 1).replicate(2)),
                Cat(double, near).eq((count == 2).replicate(2)),
                self.first[loop].eq(1),
            ]
        with m.Elif(self.step & back):
            m.d.sync += [left.eq(reload), self.last[loop].eq(single), near.eq(double), self.first[loop].eq(1)]
        with m.Elif(self.step & onward):
            m.d.sync += [
                left.eq(left - 1),
                self.last[loop].eq(near),
                near.eq(left == 1),
                self.first[loop].eq(0),
            ]
        return Mux(back, single, Mux(onward, near, self.last[loop]))

    def _tracker(self, m: Module, name: str, moves: Signal) -> None:
        """Build one tracker: for each loop that moves it a level register, its value where all inner loops are at 0.

        A step of loop k adds its stride to level k, and copies the sum to all inner levels. If the outermost loop does
        not move the tracker, one more level without a stride holds the base to return to.
        """
        width, own = self.trackers[name]
        base = not own or next(iter(self.loops)) not in own
        levels = [Signal(width, name=f"{name}_base", reset_less=True)] if base else []
        # Moves are one-hot, so the adder's operands are ORs of masked terms.
        left, right, written = Const(0, width), Const(0, signed(width)), Const(0, len(own) + base)
        for (loop, _width), move in zip(self.loops.items(), moves, strict=True):
            outer_levels = len(levels)
            if loop in own:
                levels.append(Signal(width, name=f"{name}_{loop}", reset_less=True))
                stride = Signal(signed(own[loop]), name=f"{name}_stride_{loop}", reset_less=True)
                with m.If(self.load):
                    m.d.sync += stride.eq(self.strides[name][loop])
                right = right | Mux(move, stride, 0)
            left = left | Mux(move, levels[-1], 0)
            written = written | Mux(move, (1 << len(written)) - (1 << outer_levels), 0)
        m.d.comb += self.values[name].eq(levels[-1])
        following = Signal(width, name=f"{name}_next")
        m.d.comb += following.eq(left + right)
        with m.If(self.load):
            m.d.sync += Cat(*levels).eq(self.bases[name].replicate(len(levels)))
        with m.Elif(self.step):
            for level, write in zip(levels, written, strict=True):
                with m.If(write):
                    m.d.sync += level.eq(following)


def _moves(last: list[Value]) -> Value:
    """Return, one-hot, the innermost loop that is not in its last iteration; loops are given outermost first."""
    return Cat(*(~last[k] & Cat(*last[k + 1 :]).all() for k in range(len(last))))


@dataclass(frozen=True)
class Walk:
    """Loops around some operands of an instruction, in the order in which a unit iterates over them.

    Parameters
    ----------
    kind : type of Instruction
    loops : tuple of str
        Outermost first. A loop that an operand does not have does not move its address.
    operands : tuple of str
        The nest tracks the address of each operand, followed by the coordinates of its bounds.
    own : mapping of str to Count
        Iteration counts of loops that the unit adds to those of the instruction.
    """

    kind: type[Instruction]
    loops: tuple[str, ...]
    operands: tuple[str, ...]
    own: Mapping[str, Count] = field(default_factory=dict)

    def count(self, loop: str) -> str | Count:
        """Return the iterations of a loop: the name of a field, or a computed `Count`."""
        if loop in self.own:
            return self.own[loop]
        return next(item.count for operand in self._all() for item in operand.loops if item.name == loop)

    def values(self) -> Iterator[tuple[str, Operand | Bound]]:
        """Yield the addresses and coordinates that the nest tracks, each with the field that holds its first value."""
        for name in self.operands:
            operand = next(self._operands_named(name))
            yield name, operand
            for bound in operand.bounds:
                yield bound.name, bound

    def counters(self, config: Config) -> dict[str, int]:
        """Return the loops and the widths of their counts, as `LoopNest` takes them."""
        return {loop: self._count_width(self.count(loop), config) for loop in self.loops}

    def trackers(self, config: Config) -> dict[str, tuple[int, dict[str, int]]]:
        """Return the addresses and coordinates with their widths and the widths of their strides, as `LoopNest` takes
        them."""
        return {name: self._tracker(name, value, config) for name, value in self.values()}

    def _tracker(self, name: str, value: Operand | Bound, config: Config) -> tuple[int, dict[str, int]]:
        moved = {loop: stride for loop in self.loops if (stride := value.stride(loop)) != 0}
        if isinstance(value, Bound):
            fields = places(self.kind.OPCODE)
            return fields[name].width, {loop: fields[str(stride)].width for loop, stride in moved.items()}
        width = max(operand.memory.width(config) for operand in self._operands_named(name))
        return width, dict.fromkeys(moved, width)

    def _count_width(self, count: str | Count, config: Config) -> int:
        if isinstance(count, str):
            return places(self.kind.OPCODE)[count].width
        return count.of(None, config).bit_length()

    def _all(self) -> Iterator[Operand]:
        for name in self.operands:
            yield from self._operands_named(name)

    def _operands_named(self, name: str) -> Iterator[Operand]:
        return (operand for operand in self.kind.OPERANDS if operand.name == name)
