"""Models of loop nests and of words on their way through a unit, beside the unit that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import latch
from weft.extras.proof.hardware.property import Bench
from weft.extras.proof.hardware.streams import Order


class WalkModel:
    """Model of the loops of an instruction: the iterations in their order, with the values of their trackers.

    An index goes from 0 to its count less 1, the innermost loop first. A value is its base and, for each loop, the
    loop's stride added once per index. Adding up defines ``index * stride`` in a form that solvers can compare with the
    nest at counts and strides of any width.

    The model also claims the registers of the nest at `path` inside the unit: induction starts from them.

    Parameters
    ----------
    m, bench
    path : str
        The nest, by the submodules on the way to it; empty if the nest is the unit.
    loops, trackers
        Parameters of `weft.hdl.lib.loopnest.LoopNest`.
    load, step : value
        An instruction begins; an iteration ends, by default where the nest steps.
    counts, bases, strides
        The instruction's fields at `load`: by loop, by tracker, and by tracker and loop.

    Attributes
    ----------
    on, ends : value
        There is an iteration; it is the last of all.
    first, last : dict of value
        By loop: the loop is in its first, or last, iteration.
    index, count : dict of value
        By loop.
    bases, values : dict of value
        By tracker.
    moved, strides : dict of value
        By tracker and loop: the sum that the loop's iterations have added, and the stride that each adds.
    """

    def __init__(
        self, m: Module, bench: Bench, path: str,
        loops: Mapping[str, int], trackers: Mapping[str, tuple[int, Mapping[str, int]]], *,
        load: Value, step: Value | None = None, counts: Any, bases: Any, strides: Any,
    ) -> None:  # fmt: skip
        self.m, self.bench = m, bench
        self.loops, self.trackers = loops, trackers
        self._path, self._prefix = f"{path}." if path else "", f"{path}_".replace(".", "_") if path else ""
        self.load, self.step = load, self._peek("step") if step is None else step
        self.first: dict[str, Value] = {}
        self.last: dict[str, Value] = {}
        self.index: dict[str, Value] = {}
        self.count: dict[str, Value] = {}
        self.bases: dict[str, Value] = {}
        self.values: dict[str, Value] = {}
        self.moved: dict[tuple[str, str], Value] = {}
        self.strides: dict[tuple[str, str], Value] = {}
        self._forward: dict[str, Value] = {}
        self._back: dict[str, Value] = {}
        self.on = Signal(name=f"{self._prefix}on")
        for loop in loops:
            bench.assume(~load | (counts[loop] != 0))
        self.ends = self._count(counts)
        with m.If(load):
            m.d.sync += self.on.eq(1)
        with m.Elif(self.step & self.ends):
            m.d.sync += self.on.eq(0)
        bench.claim(f"{self._prefix}active", self._peek("active") == self.on)
        bench.claim(f"{self._prefix}steps", ~self.step | self.on)
        self._while_on("last of all", self._peek("last_all") == self.ends)
        self._counters()
        for name in trackers:
            self.values[name] = self._value(name, bases[name], strides)

    def at_start(self, *loops: str) -> Value:
        """Return whether all these loops are in their first iteration."""
        return Cat(*(self.first[loop] for loop in loops)).all()

    def at_end(self, *loops: str) -> Value:
        """Return whether all these loops are in their last iteration."""
        return Cat(*(self.last[loop] for loop in loops)).all()

    def _count(self, counts: Any) -> Value:
        """Count the iterations, and return whether all loops are in their last one."""
        m = self.m
        inner: Value = Const(1)
        for loop, width in reversed(list(self.loops.items())):
            index = Signal(width, name=f"{self._prefix}index_{loop}")
            count = Signal(width, name=f"{self._prefix}count_{loop}", init=1)
            self.index[loop], self.count[loop] = index, count
            self.first[loop], self.last[loop] = index == 0, index == count - 1
            with m.If(self.load):
                m.d.sync += [index.eq(0), count.eq(counts[loop])]
            with m.Elif(self.step & inner):
                m.d.sync += index.eq(Mux(self.last[loop], 0, index + 1))
            self._forward[loop], self._back[loop] = inner & ~self.last[loop], inner & self.last[loop]
            inner = inner & self.last[loop]
        return inner

    def _counters(self) -> None:
        moves, firsts, lasts = self._peek("moves"), self._peek("first"), self._peek("last")
        for number, (loop, width) in enumerate(self.loops.items()):
            index, count = self.index[loop], self.count[loop]
            registers = {
                "reload": (count - 2)[:width],
                "left": (count - index - 2)[:width],
                "single": count == 1,
                "double": count == 2,
                "near": index + 2 == count,
            }
            for name, value in registers.items():
                self._while_on(f"{name} of {loop}", self._peek(f"{name}_{loop}") == value)
            self._while_on(f"index of {loop}", index < count)
            self._while_on(f"first of {loop}", firsts[number] == self.first[loop])
            self._while_on(f"last of {loop}", lasts[number] == self.last[loop])
            self._while_on(f"move of {loop}", moves[number] == self._forward[loop])

    def _value(self, name: str, start: Any, strides: Any) -> Value:
        m = self.m
        width, own = self.trackers[name]
        total = Signal(width, name=f"{self._prefix}start_{name}")
        self.bases[name] = base = latch(m, self.load, start, width, f"{self._prefix}base_{name}")
        m.d.comb += total.eq(base)
        if not own or next(iter(self.loops)) not in own:
            self._while_on(f"base of {name}", self._peek(f"{name}_base") == base)
        for loop in self.loops:
            if loop not in own:
                continue
            stride = Signal(signed(own[loop]), name=f"{self._prefix}stride_{name}_{loop}")
            moved = Signal(width, name=f"{self._prefix}moved_{name}_{loop}")
            self.moved[name, loop], self.strides[name, loop] = moved, stride
            with m.If(self.load):
                m.d.sync += [stride.eq(strides[name][loop]), moved.eq(0)]
            with m.Elif(self.step & self._forward[loop]):
                m.d.sync += moved.eq(moved + stride)
            with m.Elif(self.step & self._back[loop]):
                m.d.sync += moved.eq(0)
            level = Signal(width, name=f"{self._prefix}value_{name}_{loop}")
            m.d.comb += level.eq(total + moved)
            total = level
            register = self._peek(f"{name}_stride_{loop}")
            self._while_on(f"stride of {name} for {loop}", register == stride)
            self._while_on(f"level of {name} for {loop}", self._peek(f"{name}_{loop}") == total)
        return total

    def _peek(self, name: str) -> Any:
        return self.bench.peek(f"{self._path}{name}")

    def _while_on(self, name: str, value: Value) -> None:
        self.bench.claim(f"{self._prefix}{name}", ~self.on | value)


def walk_fields(
    op: Any, loops: Mapping[str, int], trackers: Mapping[str, tuple[int, Mapping[str, int]]]
) -> dict[str, Any]:
    """Return the arguments of `WalkModel` for fields `op` that are named after the loops and trackers.

    Counts of loops that have no field are left to the caller.
    """
    strides = {
        name: {loop: op[f"{name}_{loop}"].as_signed() for loop in own} for name, (_, own) in trackers.items()
    }
    counts = {loop: op[loop] for loop in loops if loop in op.shape().members}
    bases = {name: op[name] for name in trackers}
    return {"loops": loops, "trackers": trackers, "counts": counts, "bases": bases, "strides": strides}


def claim_slots(bench: Bench, order: Order, slots: Sequence[tuple[Value, Value]], name: str) -> None:
    """Claim which of `slots`, each valid and a word, oldest first, holds the word that `order` watches.

    Induction needs the place of the watched word.
    """
    older: Value = Const(0)
    for number, (valid, word) in enumerate(slots):
        here = order.watched & valid & (order.ahead == older)
        bench.claim(f"{name} {number}", ~here | (word == order.word))
        older = older + valid
    bench.claim(f"{name}: all are counted", order.inside == older)
    bench.claim(f"{name}: the watched one is there", ~order.watched | (order.ahead < order.inside))


def skid_slots(bench: Bench, path: str = "skid") -> tuple[tuple[Signal, Signal], tuple[Signal, Signal]]:
    """Return the slots of the unit's `weft.hdl.lib.queues.SkidBuffer` for `claim_slots`.

    Claims that the spare slot is used only while the buffer offers a word.
    """
    offers, full = bench.peek(f"{path}.o__valid"), bench.peek(f"{path}.full")
    offered, spare = bench.peek(f"{path}.o__payload"), bench.peek(f"{path}.kept")
    bench.claim("the skid buffer", ~full | offers)
    return (offers, offered), (full, spare)
