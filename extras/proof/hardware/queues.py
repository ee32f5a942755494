"""Properties of `weft.hdl.lib`: queues and loop nests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.property import Bench, Induction, Invariant, Property
from weft.extras.proof.hardware.streams import Order, queue
from weft.extras.proof.hardware.walks import WalkModel
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.pipeline import Delay, Tap
from weft.hdl.lib.queues import BlockFifo, SkidBuffer

_WORD_BITS = 3
"""Queues do not look at words, so few bits suffice."""


class QueueBench(Bench):
    """A queue with streams `i` and `o`; see `weft.extras.proof.hardware.streams.queue`."""

    def __init__(self, dut: Any, *, most: int, takes: int, latency: int) -> None:
        super().__init__(dut)
        self.most, self.takes, self.latency = most, takes, latency

    def watch(self, m: Module) -> None:
        queue(m, self, self.dut.i, self.dut.o, most=self.most, takes=self.takes, latency=self.latency)


def _block_fifo(depth: int) -> Bench:
    return QueueBench(BlockFifo(_WORD_BITS, depth), most=depth + 1, takes=depth, latency=1)


_WIDTH = 2
"""Width of words; the units do not look at them."""


class NestBench(Bench, unit=LoopNest):
    """For every count and stride, a tracker is its base plus the sum of index times stride, flags follow from the
    indices, and a nest that is loaded with the last step continues without a pause.

    The model counts the indices. Assumed, as the unit's members say: counts are at least 1 when they are loaded, and a
    step comes only while there is an iteration. A load may come at any time, with a step or without.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.assume(~dut.step | dut.active)
        walk = WalkModel(
            m, self, "", dut.loops, dut.trackers, load=dut.load, step=dut.step,
            counts=dut.counts, bases=dut.bases, strides=dut.strides,
        )  # fmt: skip
        for name, (width, own) in dut.trackers.items():
            total = walk.bases[name]
            for loop in own:
                product = _product(walk.index[loop], walk.strides[name, loop])[:width]
                self.claim(f"product of {name} and {loop}", ~walk.on | (walk.moved[name, loop] == product))
                total = total + product
            self.claim(f"value of {name}", ~walk.on | (dut.values[name] == total[:width]))
        self.cover("chained load", dut.load & dut.step & dut.last_all)
        self.cover("load before the end", dut.load & walk.on & ~dut.last_all)
        several = [loop for loop, width in dut.loops.items() if width > 1]
        ends = Cat(walk.last[loop] & (walk.count[loop] > 1) for loop in several).all()
        self.cover("longest", walk.on & ends)


def _product(index: Value, stride: Value) -> Value:
    """Return the product of an unsigned and a signed number as a sum of shifted terms."""
    total: Value = Const(0)
    for place in range(len(index)):
        total = total + (Mux(index[place], stride, 0) << place)
    return total


class TapBench(Bench, unit=Tap):
    """Words come out once, unchanged and in order; the oldest word is visible until it is taken.

    Assumed: at most `words` words are inside, and a word is taken only if there is one. The unit does not count words.
    """

    def __init__(self, words: int) -> None:
        super().__init__(_WIDTH, words)
        self.words = words

    def watch(self, m: Module) -> None:
        dut = self.dut
        order = Order(m, self, i=(dut.push, dut.i), o=(dut.pop, dut.o), most=self.words)
        self.assume(~dut.pop | (order.inside != 0))
        self.assume(~dut.push | dut.pop | (order.inside < self.words))
        oldest = order.watched & (order.ahead == 0)
        self.claim("oldest stands", ~oldest | (dut.o == order.word))
        self.cover("full and both", dut.push & dut.pop & (order.inside == self.words))


class DelayBench(Bench, unit=Delay):
    """A word that enters after a reset comes out after exactly `cycles` cycles.

    One word, which may be any, is watched. Nothing is assumed.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
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
        self.cover("two consecutive words", out & mark)


def properties() -> Iterator[Property]:
    claim = "Words come out once, unchanged and in the order in which they went in; the output is stable."
    yield Property(
        "lib/skid_buffer",
        "order",
        claim,
        lambda: QueueBench(SkidBuffer(_WORD_BITS), most=2, takes=2, latency=0),
    )
    for depth in (2, 4):
        yield Property("lib/block_fifo", f"order of {depth}", claim, partial(_block_fifo, depth))
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
