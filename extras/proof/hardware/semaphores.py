"""Properties of the semaphores, and of the queues of instructions that wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.utils import exact_log2

from weft.extras.proof.hardware.pipelines import flag, latch
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, Property
from weft.extras.proof.hardware.streams import Order, stable, transfer, within
from weft.hdl.control.semaphores import Dispatcher, Semaphores
from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, WORD_BITS, Load, Queue, Store, kinds_of
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import OPCODE_BITS
from weft.hdl.lib.pipeline import needed_values

_SMALL = Config(n=4, lanes=4, bus_bytes=4, probability_bits=0, lookup_tables=0, multiply=0)
"""With the narrowest bus."""


class SemaphoresBench(Bench, unit=Semaphores):
    """A semaphore is available while it was given more often than taken since it was cleared. The difference never goes
    below 0, nor beyond the maximum if the rules are kept.

    Assumed, as the unit's documentation says: no two units give a semaphore in one cycle, and no two queues take it;
    only available semaphores are taken; none is given beyond `SEMAPHORE_MAX`. Gives and takes in the cycle of a clear
    do not count.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        for index in range(SEMAPHORES):
            given, taken = ([mask[index] for mask in masks] for masks in (dut.give, dut.take))
            self.assume(_at_most_one(given))
            self.assume(_at_most_one(taken))
            give, take = Cat(given).any(), Cat(taken).any()
            self.assume(~take | dut.available[index])
            expected = Signal(range(-1, SEMAPHORE_MAX + 2), name=f"expected_{index}")
            self.assume(~give | take | (expected < SEMAPHORE_MAX))
            m.d.sync += expected.eq(expected + give - take)
            with m.If(dut.clear):
                m.d.sync += expected.eq(0)
            count = self.peek(f"count_{index}")
            self.claim(f"count of {index}", count == expected)
            self.claim(f"available {index}", dut.available[index] == (expected > 0))
            self.claim(f"range of {index}", (expected >= 0) & (expected <= SEMAPHORE_MAX))
            if index in (0, SEMAPHORES - 1):
                self.cover(f"both of {index}", give & take & (expected == 1))
                self.cover(f"emptied {index}", take & (expected == 1) & ~give & ~dut.clear)


def _at_most_one(bits: Sequence[Value]) -> Value:
    seen: Value = bits[0]
    twice: Value = bits[0] & bits[1]
    for bit in bits[1:]:
        twice, seen = twice | (seen & bit), seen | bit
    return ~twice


class DispatcherBench(Bench, unit=Dispatcher):
    """A queue of instructions.

    Assumed, as the unit's documentation says: parts come in the order of their index, and opcodes are those of the
    unit's kinds. A stop may come at any time; an instruction that it interrupts does not continue.
    """

    def __init__(self, config: Config, kinds: Sequence[Any]) -> None:
        super().__init__(config, kinds)
        self.config, self.kinds = config, tuple(kinds)
        self.most = config.queue_depth + (config.queue_depth > 1)

    def parts(self, m: Module) -> tuple[Value, Signal, Value]:
        """Assume the order of parts; return whether a part is written, its index, and whether it is the last one."""
        fetched, part = self.dut.fetched, self.dut.fetched.payload
        count = WORD_BITS // len(part.data)
        index = Signal(range(max(count, 2)), name="expected_index")
        written, last = fetched.valid & fetched.ready, index == count - 1
        with m.If(written):
            m.d.sync += index.eq(Mux(last, 0, index + 1))
        with m.If(self.dut.stop):
            m.d.sync += index.eq(0)
        self.assume(~fetched.valid | (part.index == index))
        opcodes = Cat(part.data[:OPCODE_BITS] == int(kind.OPCODE) for kind in self.kinds).any()
        self.assume(~fetched.valid | (index != 0) | opcodes)
        return written, index, last

    def drops(self) -> Value:
        """Return whether the queue is emptied: a stop spares the instruction that is valid."""
        return self.dut.stop & ~self.dut.instruction.valid


class OrderBench(DispatcherBench):
    """Instructions leave once and in order, unchanged. A queue that has room takes the next one, and is empty while it
    holds no whole one. A stop drops all but the valid instruction, and resets the queue.

    One instruction, one of its bits, and one bit of its values are watched, each of which may be any. Semaphores are
    unconstrained.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        written, index, last = self.parts(m)
        word = Value.cast(dut.instruction.payload)
        bits = max(_count_bits(kind) for kind in self.kinds)
        self.claim("reserved bits are 0", ~word[bits:].any())
        numbers = needed_values(self.kinds, self.config) if self.config.loops else []
        values = Cat(dut.fetched.payload.values[number] for number in numbers)
        self.place = self.constant(m, range(WORD_BITS), "place")
        self.assume(self.place < bits)
        self.which = self.constant(m, range(max(len(values), 2)), "which")
        self.assume(self.which < max(len(values), 1))
        shown = Cat(word.bit_select(self.place, 1))
        coming = Cat(self._record_bit(m, written, index))
        if numbers:
            leaving = Value.cast(dut.values)
            shown = Cat(shown, leaving.bit_select(self.which, 1))
            coming = Cat(coming, values.bit_select(self.which, 1))
        comes, goes = (written & last, coming), (transfer(dut.instruction), shown)
        order = Order(m, self, i=comes, o=goes, most=self.most, drops=self.drops())
        self.claim("takes while there is room", dut.fetched.ready | (order.inside >= self.config.queue_depth))
        self.claim("empty", dut.empty == (order.inside == 0))
        dropped = flag(m, self.drops() & (order.inside == self.config.queue_depth), 0, "dropped")
        self.cover("an instruction after a full queue was dropped", dropped & dut.instruction.valid)
        if self.config.queue_depth > 1:
            self._claim_places(m, written & last, order, shown)
        else:
            self.claim("level", self.peek("level") == order.inside)
            self.claim("full", dut.fetched.ready == (order.inside == 0))
            self.claim("valid", ~dut.instruction.valid | (order.inside != 0))
            self.claim("no part of a second instruction", (order.inside == 0) | (index == 0))
            self.claim("nothing ahead", ~order.watched | (order.ahead == 0))
            self.claim("oldest", ~order.watched | ((shown == order.word) & (order.inside == 1)))

    def _claim_places(self, m: Module, push: Value, order: Order, shown: Value) -> None:
        """Claim where the queue stores the watched bits: induction needs these invariants."""
        depth, dut = self.config.queue_depth, self.dut
        level, width = self.peek("level"), exact_log2(depth)
        read_at = self.peek("read_at")
        write_at = Signal(width)
        m.d.sync += write_at.eq(write_at + push)
        with m.If(self.drops()):
            m.d.sync += write_at.eq(0)
        slot = latch(m, push & ~order.watched, write_at, width, "slot")
        head = Signal.like(order.inside)
        m.d.comb += head.eq(order.inside - level)
        self.claim("head", (head < 2) & (self.peek("head") == head[0]))
        self.claim("valid", ~dut.instruction.valid | (head == 1))
        self.claim("level", level <= depth)
        self.claim("where the next one goes", self.peek("write_at") == write_at)
        self.claim("full", dut.fetched.ready == (level != depth))
        self.claim("no part of a second instruction", dut.fetched.ready | (self.index == 0))
        self.claim("places", (read_at + level)[:width] == write_at)
        self.claim("slot", ~order.watched | (slot == (read_at + order.ahead - head)[:width]))
        self.claim("ahead", ~order.watched | (order.ahead < order.inside))
        oldest = order.watched & (order.ahead == 0) & (head == 1)
        self.claim("oldest", ~oldest | (shown == order.word))
        words = [self._stored(m, place) for place in (slot, write_at)]
        stored_bits = [Cat(word[:WORD_BITS].bit_select(self.place, 1)) for word in words]
        if len(shown) > 1:
            stored_bits[0] = Cat(stored_bits[0], words[0][WORD_BITS:].bit_select(self.which, 1))
        # Of the opcode only bits are stored in which kinds differ.
        stored = Const(sum(1 << bit for bit in dut._stored_bits()), WORD_BITS).bit_select(self.place, 1)
        word = Mux(stored, order.word, Cat(stored_bits[0][0], order.word[1:]))
        self.claim("in memory", ~order.watched | oldest | (stored_bits[0] == word))
        came = stored & (self.index > self.place // len(dut.fetched.payload.data))
        self.claim("parts that have come", ~came | (stored_bits[1] == self.recorded))
        constant = Const(int(self.kinds[0].OPCODE), WORD_BITS).bit_select(self.place, 1)
        self.claim("what kinds have in common", ~order.watched | stored | (order.word[0] == constant))
        self.claim("of what comes", stored | (self.index == 0) | (self.recorded == constant))

    def _stored(self, m: Module, slot: Signal) -> Signal:
        """Return what the memories hold at `slot`: the bits of an instruction, and after them its values."""
        dut, depth, width = self.dut, self.config.queue_depth, len(self.dut.fetched.payload.data)
        stored, values = dut._stored_bits(), 32 * len(dut._named)
        word = Signal(WORD_BITS + values, name=f"stored_at_{slot.name}")
        for index in range(WORD_BITS // width):
            if bits := [word[bit] for bit in stored if bit // width == index]:
                m.d.comb += Cat(bits).eq(self.peek_word(f"part{index}", slot, depth))
        if values:
            m.d.comb += word[WORD_BITS:].eq(self.peek_word("stored_values", slot, depth))
        return word

    def _record_bit(self, m: Module, written: Value, index: Signal) -> Value:
        """Return the watched bit of the instruction that comes, as far as it has come."""
        part = self.dut.fetched.payload.data
        bit, recorded, self.index = Signal(name="bit"), Signal(name="bit_kept"), index
        self.recorded = recorded
        here = index == self.place // len(part)
        m.d.comb += bit.eq(Mux(here, part.bit_select(self.place % len(part), 1), recorded))
        if self.config.queue_depth == 1:  # what has come stands where it leaves, as induction needs it
            came = self.dut.fetched.ready & (index > self.place // len(part))
            word = Value.cast(self.dut.instruction.payload)
            self.claim("bit", ~came | (word.bit_select(self.place, 1) == recorded))
        with m.If(written):
            m.d.sync += recorded.eq(bit)
        return bit


class WaitBench(DispatcherBench):
    """The wait mask is taken exactly with its instruction, and when all of it is available. The instruction becomes
    valid then, and stays valid and unchanged until it is accepted.

    Wait masks are those of the payload, which `OrderBench` proves. Assumed, as the unit's documentation says:
    semaphores that an instruction waits for stay available until this queue takes them.
    """

    def watch(self, m: Module) -> None:
        dut, instruction = self.dut, self.dut.instruction
        written, _index, last = self.parts(m)
        pop = instruction.valid & instruction.ready
        inside = Signal(range(self.most + 2))
        m.d.sync += inside.eq(inside + (written & last) - pop)
        with m.If(self.drops()):
            m.d.sync += inside.eq(0)
        wait = Signal(SEMAPHORES)
        m.d.comb += wait.eq(instruction.payload.wait)
        left = Signal(SEMAPHORES)
        m.d.sync += left.eq(dut.available & wait & ~dut.take)
        self.assume((left & ~dut.available) == 0)
        lacks = (wait & ~dut.available).any()
        stable(m, self, instruction, "instruction")
        self.claim("takes its wait mask with an instruction", dut.take == Mux(pop, wait, 0))
        self.claim("takes what is available", (dut.take & ~dut.available) == 0)
        self.claim("valid once all is available", ~instruction.valid | ~lacks)
        self.claim("waiting for what is lacking", ~dut.waiting | (lacks & (inside != 0)))
        latency = 1 if self.config.queue_depth == 1 else 2
        within(m, self, (inside != 0) & ~lacks & ~instruction.valid & ~dut.stop, latency, "valid")
        within(m, self, (inside != 0) & lacks & ~dut.waiting, latency - 1, "waiting")
        self.cover("waits", dut.waiting)
        self.cover("takes", dut.take.any())
        if self.most > 1:
            self.cover("full", inside == self.most)


def _count_bits(kind: type) -> int:
    """Return the number of bits of an instruction up to its last field."""
    return OPCODE_BITS + sum(field.metadata["width"] for field in fields(kind))


def properties() -> Iterator[Property]:
    unit = "control/semaphores"
    yield SemaphoresBench.proves(unit, "counts", Invariant())
    single = Config(queue_depth=1, bus_bytes=32, loops=1)
    cases: dict[str, tuple[Config, Sequence[Any]]] = {
        "1, with a bus of 128 bits": (Config(queue_depth=1), [Store]),
        "1, several kinds with values": (single, kinds_of(Queue.VEC, single)),
        "2, with a bus of 32 bits": (replace(_SMALL, queue_depth=2), [Store]),
        "2, with a bus of 128 bits": (Config(queue_depth=2), [Load]),
        "2, with values": (Config(queue_depth=2, bus_bytes=32, loops=1), [Load]),
        "4, with a bus of 256 bits": (Config(bus_bytes=32), [Load]),
        "4, with a bus of 1024 bits": (Config(bus_bytes=128), [Load]),
    }
    for name, (config, kinds) in cases.items():
        yield OrderBench.proves(unit, f"order of {name}", Induction(10), config, kinds, cover=60)
        yield WaitBench.proves(unit, f"wait of {name}", Invariant(), config, kinds, cover=60)
