"""Nested loop counters with address trackers: the address generator of every unit."""

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
    """A nest of counted loops, and values that move by a stride per iteration of each loop.

    A tracker's value is ``base + sum over its loops of index * stride``, modulo ``2**width``; every tracker
    costs one adder and one register per loop that moves it, whatever the depth of the nest.

    Parameters
    ----------
    loops : mapping of str to int
        Loop names, outermost first, and the width of each one's count.
    trackers : mapping of str to (int, mapping of str to int)
        For each tracker its width, and the width of the signed stride for each loop that moves it. A loop
        that is left out does not move it. A tracker without strides has no member in `strides`.

    Members
    -------
    load : In(1)
        Take `counts`, `bases` and `strides`, and stand on the first iteration in the next cycle. Wins over
        `step`, so it may come together with the last step (no idle cycle between two nests).
    step : In(1)
        Go to the next iteration; after the last one, become inactive. Only while `active`.
    counts : In(struct of loop: unsigned)
        Iterations, at least 1.
    bases : In(struct of tracker: unsigned)
    strides : In(struct of tracker: struct of loop: signed)
    active : Out(1)
        There is a current iteration; the outputs below describe it.
    values : Out(struct of tracker: unsigned)
        From registers.
    first, last : Out(struct of loop: 1)
        The loop is in its first, its last iteration. From registers.
    last_all : Out(1)
        The very last iteration: the AND of `last`. From a register.
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
        """Statements that wire `counts`, `bases` and `strides` to fields of `instruction`, where a count is
        named like its loop (unless given in `counts`), a base like its tracker, and a stride
        ``{tracker}_{loop}``."""
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
        """The counters; returns, outermost first, whether the next step is one of that loop (one-hot, a register, as
        trackers hang on it)."""
        names = list(self.loops)
        with m.If(self.load):
            m.d.sync += self.active.eq(1)
        with m.Elif(self.step & self.last_all):
            m.d.sync += self.active.eq(0)
        moves = Signal(len(names))
        lasts = []  # whether the loop is in its last iteration after a step
        for loop, move in zip(names, self._advance(m, moves), strict=True):
            lasts.append(self._counter(m, loop, *move))
        singles = [self.counts[loop] == 1 for loop in names]
        for enable, flags in ((self.load, singles), (self.step & ~self.load, lasts)):
            with m.If(enable):
                m.d.sync += [moves.eq(_moves(flags)), self.last_all.eq(Cat(*flags).all())]
        return moves

    def _advance(self, m: Module, moves: Signal) -> list[tuple[Value, Value]]:
        """For each loop, whether a step takes it to its next iteration, and whether back to its first one."""
        outer = [Const(0), *(moves[:k].any() for k in range(1, len(moves)))]
        return [(moves[k], outer[k] | self.last_all) for k in range(len(moves))]

    def _counter(self, m: Module, loop: str, onward: Value, back: Value) -> Value:
        width, count = self.loops[loop], self.counts[loop]
        reload = Signal(width, name=f"reload_{loop}", reset_less=True)
        left = Signal(width, name=f"left_{loop}", reset_less=True)  # iterations after the next one
        # Counts of 1 and 2, and whether the next iteration is the last one, so that no comparison comes before a flag.
        single, double = (Signal(name=f"{name}_{loop}", reset_less=True) for name in ("single", "double"))
        near = Signal(name=f"near_{loop}", reset_less=True)
        with m.If(self.load):
            m.d.sync += [
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
        """One level register per loop that moves the tracker: its value where all loops further in are at 0.
        A step of loop k gives level k its stride, and all levels further in the same sum. When the outermost
        loop does not move the tracker, a level without a stride holds the base to come back to."""
        width, own = self.trackers[name]
        base = not own or next(iter(self.loops)) not in own
        levels = [Signal(width, name=f"{name}_base", reset_less=True)] if base else []
        # As moves are one-hot, the operands of the adder are ORs of masked terms.
        left, right, written = Const(0, width), Const(0, signed(width)), Const(0, len(own) + base)
        for (loop, _width), move in zip(self.loops.items(), moves, strict=True):
            kept = len(levels)
            if loop in own:
                levels.append(Signal(width, name=f"{name}_{loop}", reset_less=True))
                stride = Signal(signed(own[loop]), name=f"{name}_stride_{loop}", reset_less=True)
                with m.If(self.load):
                    m.d.sync += stride.eq(self.strides[name][loop])
                right = right | Mux(move, stride, 0)
            left = left | Mux(move, levels[-1], 0)
            written = written | Mux(move, (1 << len(written)) - (1 << kept), 0)
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
    """Of loops, outermost first, the innermost one that is not in its last iteration, one-hot."""
    return Cat(*(~last[k] & Cat(*last[k + 1 :]).all() for k in range(len(last))))


@dataclass(frozen=True)
class Walk:
    """Loops around some operands of an instruction, in the order in which a unit goes through them.

    Parameters
    ----------
    kind : type of Instruction
    loops : tuple of str
        Outermost first. Loops that an operand does not have do not move its address.
    operands : tuple of str
        Each has an address that the nest keeps; behind it come the coordinates of its bounds.
    own : mapping of str to Count
        Loops that only the unit has, and their iterations.
    """

    kind: type[Instruction]
    loops: tuple[str, ...]
    operands: tuple[str, ...]
    own: Mapping[str, Count] = field(default_factory=dict)

    def count(self, loop: str) -> str | Count:
        """Iterations of a loop: a field, or what is computed."""
        if loop in self.own:
            return self.own[loop]
        return next(item.count for operand in self._all() for item in operand.loops if item.name == loop)

    def values(self) -> Iterator[tuple[str, Operand | Bound]]:
        """The addresses and coordinates that the nest keeps, by the field with their first value."""
        for name in self.operands:
            operand = next(self._named(name))
            yield name, operand
            for bound in operand.bounds:
                yield bound.name, bound

    def counters(self, config: Config) -> dict[str, int]:
        """The loops with the width of each one's count, for `weft.hdl.lib.loopnest.LoopNest`."""
        return {loop: self._count_width(self.count(loop), config) for loop in self.loops}

    def trackers(self, config: Config) -> dict[str, tuple[int, dict[str, int]]]:
        """The addresses and coordinates with their widths, and the width of the stride for each loop that moves one."""
        return {name: self._tracker(name, value, config) for name, value in self.values()}

    def _tracker(self, name: str, value: Operand | Bound, config: Config) -> tuple[int, dict[str, int]]:
        moved = {loop: stride for loop in self.loops if (stride := value.stride(loop)) != 0}
        if isinstance(value, Bound):
            fields = places(self.kind.OPCODE)
            return fields[name].width, {loop: fields[str(stride)].width for loop, stride in moved.items()}
        width = max(operand.memory.width(config) for operand in self._named(name))
        return width, dict.fromkeys(moved, width)

    def _count_width(self, count: str | Count, config: Config) -> int:
        if isinstance(count, str):
            return places(self.kind.OPCODE)[count].width
        return count.of(None, config).bit_length()

    def _all(self) -> Iterator[Operand]:
        for name in self.operands:
            yield from self._named(name)

    def _named(self, name: str) -> Iterator[Operand]:
        return (operand for operand in self.kind.OPERANDS if operand.name == name)
