"""Properties of `weft.hdl.lib`'s loop nests and of its short and long memories between two points of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.property import Bench, Induction, Invariant, Property
from weft.extras.proof.hardware.streams import Order
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.pipeline import Delay, Tap

_WIDTH = 2
"""Of words that travel: neither memory looks at them."""


class NestBench(Bench):
    """For every count and stride a tracker is its base and the sum of index times stride, flags are those of the
    indices, and a nest that is loaded with the last step follows without a cycle between.

    A loop nest beside the indices of its loops, which are kept here as plain numbers.

    Assumed as the unit's members say: counts are at least 1 when they are loaded, and a step comes only while there is
    an iteration. A load may come at any time, with a step or without.
    """

    UNIT = LoopNest

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.indices: dict[str, Signal] = {}
        self.counts: dict[str, Signal] = {}

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        for loop in dut.loops:
            self.assume(~dut.load | (dut.counts[loop] != 0))
        self.assume(~dut.step | dut.active)
        ended = self._indices(m)
        active = Signal(name="expected_active")
        with m.If(dut.load):
            m.d.sync += active.eq(1)
        with m.Elif(dut.step & ended):
            m.d.sync += active.eq(0)
        self.claim("active", dut.active == active)
        self._flags(active, ended)
        self._registers()
        for name in dut.trackers:
            self._value(m, name, active)
        self.cover("chained load", dut.load & dut.step & dut.last_all)
        self.cover("load before the end", dut.load & active & ~dut.last_all)
        self.cover(
            "longest", active & Cat(self._last(loop) & (self.counts[loop] > 1) for loop in self._long()).all()
        )

    def _long(self) -> list[str]:
        return [loop for loop, width in self.dut.loops.items() if width > 1]

    def _last(self, loop: str) -> Value:
        return self.indices[loop] + 1 == self.counts[loop]

    def _indices(self, m: Module) -> Value:
        """Count as a program would; returns whether all loops are in their last iteration."""
        dut = self.dut
        inner: Value = Const(1)
        for loop, width in reversed(dut.loops.items()):
            index = self.indices[loop] = Signal(width, name=f"index_{loop}")
            count = self.counts[loop] = Signal(width, name=f"count_{loop}", init=1)
            with m.If(dut.load):
                m.d.sync += [index.eq(0), count.eq(dut.counts[loop])]
            with m.Elif(dut.step & inner):
                m.d.sync += index.eq(Mux(self._last(loop), 0, index + 1))
            inner = inner & self._last(loop)
        return inner

    def _flags(self, active: Signal, ended: Value) -> None:
        dut = self.dut
        for loop in dut.loops:
            self.claim(f"first of {loop}", ~active | (dut.first[loop] == (self.indices[loop] == 0)))
            self.claim(f"last of {loop}", ~active | (dut.last[loop] == self._last(loop)))
            self.claim(f"index of {loop}", self.indices[loop] < self.counts[loop])
        self.claim("last of all", ~active | (dut.last_all == ended))

    def _registers(self) -> None:
        """What the counters keep, as induction needs it: none of this is promised to users."""
        active, loops = self.dut.active, list(self.dut.loops)
        moves = self.peek("moves", len(loops))
        for number, (loop, width) in enumerate(self.dut.loops.items()):
            index, count = self.indices[loop], self.counts[loop]
            reload, left = self.peek(f"reload_{loop}", width), self.peek(f"left_{loop}", width)
            single, double = self.peek(f"single_{loop}", 1), self.peek(f"double_{loop}", 1)
            self.claim(f"reload of {loop}", ~active | (reload == (count - 2)[:width]))
            self.claim(f"left of {loop}", ~active | (left == (count - index - 2)[:width]))
            self.claim(f"single of {loop}", ~active | (single == (count == 1)))
            self.claim(f"double of {loop}", ~active | (double == (count == 2)))
            near = self.peek(f"near_{loop}", 1)
            self.claim(f"near of {loop}", ~active | (near == (index + 2 == count)))
            inner = Cat(self._last(name) for name in loops[number + 1 :]).all()
            self.claim(f"move of {loop}", ~active | (moves[number] == (inner & ~self._last(loop))))

    def _value(self, m: Module, name: str, active: Signal) -> None:
        """The tracker by its definition, and the levels that the unit keeps of it."""
        dut = self.dut
        width, own = dut.trackers[name]
        base = Signal(width, name=f"base_{name}")
        with m.If(dut.load):
            m.d.sync += base.eq(dut.bases[name])
        total: Value = base
        if not own or next(iter(dut.loops)) not in own:
            self.claim(f"base of {name}", ~active | (self.peek(f"{name}_base", width) == base))
        for loop in dut.loops:
            if loop not in own:
                continue
            stride = Signal(signed(own[loop]), name=f"of_{name}_{loop}")
            with m.If(dut.load):
                m.d.sync += stride.eq(dut.strides[name][loop])
            total = (total + _product(self.indices[loop], stride))[:width]
            kept = self.peek(f"{name}_stride_{loop}", own[loop])
            self.claim(f"stride of {name} for {loop}", ~active | (kept == stride.as_unsigned()))
            self.claim(f"level of {name} for {loop}", ~active | (self.peek(f"{name}_{loop}", width) == total))
        self.claim(f"value of {name}", ~active | (dut.values[name] == total))


def _product(index: Signal, stride: Signal) -> Value:
    """Of an unsigned and a signed number, by the method of paper and pencil: the tools have no multiplier."""
    total: Value = Const(0)
    for place in range(len(index)):
        total = total + (Mux(index[place], stride, 0) << place)
    return total


class TapBench(Bench):
    """Words come out once, unchanged and in the order they went in; the oldest stands until it is taken.

    A tap for `words` words.

    Assumed: no more than that many are inside, and a word is taken only if one is there. It counts nothing itself.
    """

    UNIT = Tap

    def __init__(self, words: int) -> None:
        super().__init__(_WIDTH, words)
        self.words = words

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        order = Order(m, self, push=dut.push, i=dut.i, pop=dut.pop, o=dut.o, most=self.words)
        self.assume(~dut.pop | (order.inside != 0))
        self.assume(~dut.push | dut.pop | (order.inside < self.words))
        oldest = order.watched & (order.ahead == 0)
        self.claim("oldest stands", ~oldest | (dut.o == order.word))
        self.cover("full and both", dut.push & dut.pop & (order.inside == self.words))


class DelayBench(Bench):
    """What went in behind a reset comes out after exactly that many cycles.

    A delay line, of which any one word is watched: nothing is assumed.
    """

    UNIT = Delay

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        mark = self.free(1, "mark")
        word = Signal(_WIDTH)
        age = Signal(range(dut.cycles + 1))  # cycles since the word went in, 0 if none is watched
        with m.If((age != 0) & (age != dut.cycles)):
            m.d.sync += age.eq(age + 1)
        with m.Elif(mark):
            m.d.sync += [age.eq(1), word.eq(dut.i)]
        with m.Else():
            m.d.sync += age.eq(0)
        out = age == dut.cycles
        self.claim("delay", ~out | (dut.o == word))
        self.cover("through", out & (word != 0))
        self.cover("two behind one another", out & mark)


def properties() -> Iterator[Property]:
    all_three = {"a": 2, "b": 1, "c": 2}
    some = {"outer": (3, {"a": 3}), "inner": (3, {"c": 2}), "ends": (4, {"a": 2, "c": 4}), "none": (2, {})}
    every = {"every": (4, {"a": 4, "b": 2, "c": 3})}
    nests: dict[str, tuple[dict[str, int], dict[str, tuple[int, dict[str, int]]]]] = {
        "values of one loop": ({"a": 3}, {"moved": (4, {"a": 4}), "still": (4, {})}),
        "values of three loops, all of which move": (all_three, every),
        "values of three loops, some of which move": ({"a": 2, "b": 2, "c": 2}, some),
        "flags of five loops of up to 16 bits": ({"a": 16, "b": 12, "c": 1, "d": 10, "e": 16}, {}),
    }
    for name, (loops, trackers) in nests.items():
        yield NestBench.proves("lib/loopnest", name, Induction(10), loops, trackers)
    for words in (1, 3, 4, 5):
        yield TapBench.proves("lib/tap", f"order of {words}", Invariant(), words)
    for cycles in (3, 4, 5, 10):
        yield DelayBench.proves("lib/delay", f"delay of {cycles}", Invariant(), _WIDTH, cycles)
