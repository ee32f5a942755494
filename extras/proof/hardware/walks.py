"""What an instruction's loops define, carried out by counting and adding up, beside the loop nest of its unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.property import Bench
from weft.extras.proof.hardware.streams import Order
from weft.hdl.isa.config import Config
from weft.hdl.lib.loopnest import Walk


class Walked:
    """The iterations of an instruction in their order, with the values that its fields define for each.

    An index goes from 0 to its count less 1, the innermost one first; a value is its base and, for each loop, as many
    strides as the index says, which are added up one by one: that is what ``index * stride`` means, and a solver finds
    it equal to what the nest does for counts and strides of any width.

    It claims as well what the nest at `path` inside the unit keeps, as induction starts from that.

    Parameters
    ----------
    m, bench
    path : str
        The nest, by the submodules on the way to it.
    loops, trackers
        Those of `weft.hdl.lib.loopnest.LoopNest`.
    load, step : value
        An instruction begins; the unit is done with an iteration.
    counts, bases : mapping of str to value
        By loop and tracker: the instruction's fields, at `load`.
    strides : mapping of str to mapping of str to value

    Attributes
    ----------
    on : Signal
        There is an iteration.
    first, last : dict of value
        By loop: it is in its first, its last iteration.
    index, count : dict of value
        By loop.
    values : dict of value
        By tracker.
    moved, strides : dict of value
        By tracker and loop: what the iterations of the loop have added, and what each of them adds.
    """

    def __init__(
        self,
        m: Module,
        bench: Bench,
        path: str,
        loops: Mapping[str, int],
        trackers: Mapping[str, tuple[int, Mapping[str, int]]],
        *,
        load: Value,
        step: Value,
        counts: Mapping[str, Any],
        bases: Mapping[str, Any],
        strides: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.m, self.bench, self.path = m, bench, path
        self.loops, self.trackers = loops, trackers
        self.load, self.step = load, step
        self._prefix = path.replace(".", "_")
        self.first: dict[str, Value] = {}
        self.last: dict[str, Value] = {}
        self.index: dict[str, Value] = {}
        self.count: dict[str, Value] = {}
        self.values: dict[str, Value] = {}
        self.moved: dict[tuple[str, str], Value] = {}
        self.strides: dict[tuple[str, str], Value] = {}
        self._steps: dict[str, tuple[Value, Value]] = {}
        self.on = Signal(name=f"{self._prefix}_on")
        for loop in loops:
            bench.assume(~load | (counts[loop] != 0))
        self.ends = self._count(counts)
        with m.If(load):
            m.d.sync += self.on.eq(1)
        with m.Elif(step & self.ends):
            m.d.sync += self.on.eq(0)
        bench.claim(f"active {path}", bench.peek(f"{path}.active", 1) == self.on)
        bench.claim(f"steps of {path}", ~step | self.on)
        bench.claim(f"last of all {path}", ~self.on | (bench.peek(f"{path}.last_all", 1) == self.ends))
        for name in trackers:
            self.values[name] = self._value(name, bases[name], strides.get(name, {}))

    def at_start(self, *loops: str) -> Value:
        """Whether all these loops are in their first iteration."""
        return Cat(*(self.first[loop] for loop in loops)).all()

    def at_end(self, *loops: str) -> Value:
        """Whether all these loops are in their last iteration."""
        return Cat(*(self.last[loop] for loop in loops)).all()

    def _count(self, counts: Mapping[str, Any]) -> Value:
        m = self.m
        inner: Value = Const(1)
        kept: dict[str, tuple[Signal, Signal]] = {}
        for loop, width in reversed(list(self.loops.items())):
            index = Signal(width, name=f"{self._prefix}_index_{loop}")
            count = Signal(width, name=f"{self._prefix}_count_{loop}", init=1)
            kept[loop], self.index[loop], self.count[loop] = (index, count), index, count
            self.first[loop], self.last[loop] = index == 0, index == count - 1
            with m.If(self.load):
                m.d.sync += [index.eq(0), count.eq(counts[loop])]
            with m.Elif(self.step & inner):
                m.d.sync += index.eq(Mux(self.last[loop], 0, index + 1))
            self._steps[loop] = (
                inner & ~self.last[loop],
                inner & self.last[loop],
            )  # onward, back to the first
            inner = inner & self.last[loop]
        self._counters(kept)
        return inner

    def _counters(self, kept: Mapping[str, tuple[Signal, Signal]]) -> None:
        """What the nest keeps of its counts."""
        loops = list(self.loops)
        moves = self._peek("moves", len(loops))
        firsts, lasts = self._peek("first", len(loops)), self._peek("last", len(loops))
        for number, (loop, width) in enumerate(self.loops.items()):
            index, count = kept[loop]
            expected = {
                "reload": (width, (count - 2)[:width]),
                "left": (width, (count - index - 2)[:width]),
                "single": (1, count == 1),
                "double": (1, count == 2),
                "near": (1, index + 2 == count),
            }
            for name, (size, value) in expected.items():
                self._while_on(f"{name} of {loop}", self._peek(f"{name}_{loop}", size) == value)
            self._while_on(f"index of {loop}", index < count)
            self._while_on(f"first of {loop}", firsts[number] == self.first[loop])
            self._while_on(f"last of {loop}", lasts[number] == self.last[loop])
            self._while_on(f"move of {loop}", moves[number] == self._steps[loop][0])

    def _value(self, name: str, start: Any, strides: Mapping[str, Any]) -> Value:
        """A value, and the levels that the nest keeps of it."""
        m = self.m
        width, own = self.trackers[name]
        base = Signal(width, name=f"{self._prefix}_base_{name}")
        with m.If(self.load):
            m.d.sync += base.eq(start)
        total = Signal(width, name=f"{self._prefix}_start_{name}")
        m.d.comb += total.eq(base)
        if not own or next(iter(self.loops)) not in own:
            self._while_on(f"base of {name}", self._peek(f"{name}_base", width) == base)
        for loop in self.loops:
            if loop not in own:
                continue
            stride = Signal(signed(own[loop]), name=f"{self._prefix}_stride_{name}_{loop}")
            moved = Signal(width, name=f"{self._prefix}_moved_{name}_{loop}")
            self.moved[name, loop], self.strides[name, loop] = moved, stride
            onward, back = self._steps[loop]
            with m.If(self.load):
                m.d.sync += [stride.eq(strides[loop]), moved.eq(0)]
            with m.Elif(self.step & onward):
                m.d.sync += moved.eq(moved + stride)
            with m.Elif(self.step & back):
                m.d.sync += moved.eq(0)
            following = Signal(width, name=f"{self._prefix}_value_{name}_{loop}")
            m.d.comb += following.eq(total + moved)
            total = following
            kept = self._peek(f"{name}_stride_{loop}", own[loop])
            self._while_on(f"stride of {name} for {loop}", kept == stride.as_unsigned())
            self._while_on(f"level of {name} for {loop}", self._peek(f"{name}_{loop}", width) == total)
        return total

    def _peek(self, name: str, width: int) -> Signal:
        return self.bench.peek(f"{self.path}.{name}", width)

    def _while_on(self, name: str, value: Value) -> None:
        self.bench.claim(f"{self.path} {name}", ~self.on | value)


def taken(walk: Walk, config: Config, op: Any) -> dict[str, Any]:
    """What `Walked` needs of an instruction's fields, of a walk over its operands: but for loops of the walk's own."""
    trackers = walk.trackers(config)
    return {
        "trackers": trackers,
        "counts": {loop: op[loop] for loop in walk.loops if loop in op.shape().members},
        "bases": {name: op[name] for name in trackers},
        "strides": {
            name: {loop: op[f"{name}_{loop}"] for loop in own} for name, (_, own) in trackers.items()
        },
    }


def held(bench: Bench, order: Order, slots: Sequence[tuple[Value, Value]], name: str) -> None:
    """Claim where the word is that `order` watches, among slots that hold one each if they are valid, the oldest one
    first: as induction needs it."""
    older: Value = Const(0)
    for number, (valid, word) in enumerate(slots):
        here = order.watched & valid & (order.ahead == older)
        bench.claim(f"{name} {number}", ~here | (word == order.word))
        older = older + valid
    bench.claim(f"{name}: all are counted", order.inside == older)
    bench.claim(f"{name}: the watched one is there", ~order.watched | (order.ahead < order.inside))


def skid_slots(
    bench: Bench, width: int, path: str = "skid"
) -> tuple[tuple[Signal, Signal], tuple[Signal, Signal]]:
    """The words of the unit's `weft.hdl.lib.queues.SkidBuffer` for `held`: the one that it offers, and the one
    behind that, which it keeps only while it offers one, as is claimed."""
    comes, full = bench.peek(f"{path}.o__valid", 1), bench.peek(f"{path}.full", 1)
    following, kept = bench.peek(f"{path}.o__payload", width), bench.peek(f"{path}.kept", width)
    bench.claim("the skid buffer", ~full | comes)
    return (comes, following), (full, kept)
