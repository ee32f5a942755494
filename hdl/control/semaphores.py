"""Counting semaphores, and the instruction queues that wait for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, WORD_BITS, Instruction, Queue
from weft.hdl.isa.config import Config
from weft.hdl.lib.pipeline import needed_values, queued_layout


class Semaphores(wiring.Component):
    """`SEMAPHORES` counting semaphores of 8 bits.

    In each cycle a count grows by one if a unit gives the semaphore, and shrinks by one if a queue takes it. The
    program checker guarantees one producer queue and one consumer queue per semaphore, and counts up to
    `SEMAPHORE_MAX`. If two units give a semaphore in one cycle, or two queues take it, the count is undefined.

    Members
    -------
    clear : In(1)
        Reset all counts to 0 at the next clock edge.
    give, take : In(SEMAPHORES), one of each per queue
        Masks of semaphores whose counts grow and shrink in this cycle. `take` must be a subset of `available`.
    available : Out(SEMAPHORES)
        Semaphores above 0, from registers.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "clear": In(1),
                "give": In(SEMAPHORES).array(len(Queue)),
                "take": In(SEMAPHORES).array(len(Queue)),
                "available": Out(SEMAPHORES),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for index in range(SEMAPHORES):
            count = Signal(range(SEMAPHORE_MAX + 1), name=f"count_{index}")
            given = Cat(self.give[queue][index] for queue in Queue).any()
            taken = Cat(self.take[queue][index] for queue in Queue).any()
            with m.If(self.clear):
                m.d.sync += count.eq(0)
            with m.Elif(given ^ taken):
                m.d.sync += count.eq(count + Mux(taken, -1, 1))
            m.d.comb += self.available[index].eq(count != 0)
        return m


class Dispatcher(wiring.Component):
    """In-order queue of a unit, which holds instructions until their semaphores are available.

    Parameters
    ----------
    config : Config
    kinds : sequence of type[Instruction]
        Instruction classes of the unit.

    Members
    -------
    fetched : In(stream of queued_layout(config))
        Parts of instructions from fetch. The queue stores only opcode bits in which the kinds differ, and no bits that
        are reserved in all kinds.
    available : In(SEMAPHORES)
        Semaphores above 0.
    stop : In(1)
        No further instruction becomes valid on `instruction`; instructions that are not valid there are dropped.
    take : Out(SEMAPHORES)
        Semaphores taken in this cycle: the wait mask when the unit accepts the instruction, else 0.
    instruction : Out(stream of the first kind's layout)
        Instruction for the unit; reserved bits are 0. Once valid it stays valid until accepted, because no other queue
        takes its semaphores.
    values : Out(32).array
        With ``instruction``, with loops only: values of the registers that the instruction reads.
    waiting : Out(1)
        The next instruction lacks a semaphore.
    empty : Out(1)
        The queue holds no complete instruction.
    """

    def __init__(self, config: Config, kinds: Sequence[type[Instruction]]) -> None:
        self._kinds = tuple(kinds)
        self._depth = config.queue_depth
        self._named = needed_values(self._kinds, config) if config.loops else []
        layout = self._kinds[0].layout()
        super().__init__(
            {
                "fetched": In(stream.Signature(queued_layout(config))),
                "available": In(SEMAPHORES),
                "stop": In(1),
                "take": Out(SEMAPHORES),
                "instruction": Out(stream.Signature(layout)),
                "waiting": Out(1),
                "empty": Out(1),
            }
            | ({"values": Out(data.ArrayLayout(32, len(self._named)))} if self._named else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word = self.instruction.payload
        level = Signal(range(self._depth + 1))
        satisfied = (word.wait & ~self.available) == 0
        accepted = self.instruction.valid & self.instruction.ready
        # A register after the memory separates the memory's delay from that of the unit.
        head = Signal()  # this register holds an instruction
        taken = Signal()  # an instruction moves to this register
        granted = Signal()  # its semaphores are available, and stay so
        full = Signal()
        last = self._is_last()
        written = self.fetched.valid & self.fetched.ready
        arrived = written & last
        m.d.comb += [
            self.fetched.ready.eq(~full),
            self.empty.eq((level == 0) & ~head),
            self.instruction.valid.eq(granted),
            self.waiting.eq(head & ~granted & ~satisfied),
            word.opcode.eq(int(self._kinds[0].OPCODE)),
        ]
        # The only word of the queue is the register itself.
        if self._depth == 1:
            m.d.comb += [head.eq(level != 0), taken.eq(accepted)]
        else:
            m.d.comb += taken.eq((level != 0) & (~head | accepted))
            m.d.sync += head.eq(taken | head & ~accepted)
        m.d.sync += level.eq(level + arrived - taken)
        # Cleared after an instruction is accepted, because `satisfied` still belongs to that instruction.
        m.d.sync += granted.eq(Mux(self.stop, granted, head & satisfied) & ~accepted)
        # `level == depth`, computed a cycle early.
        with m.If(arrived ^ taken):
            m.d.sync += full.eq(arrived & (level == self._depth - 1))
        with m.If(accepted):
            m.d.comb += self.take.eq(word.wait)
        dropped = self.stop & ~granted
        with m.If(dropped):
            m.d.sync += [level.eq(0), full.eq(0)]
            if self._depth > 1:
                m.d.sync += head.eq(0)
        self._store(m, written, arrived, taken, dropped)
        return m

    def _store(self, m: Module, written: Value, arrived: Value, taken: Value, dropped: Value) -> None:
        """Add a memory for each part of an instruction, and for register values.

        Asynchronous read ports make synthesis use distributed memory for these few wide words.
        """
        part, word = self.fetched.payload, Value.cast(self.instruction.payload)
        width, stored = len(part.data), self._stored_bits()
        places = range(max(self._depth, 2))
        write_at = Signal(places)
        read_at = Signal(places)
        if self._depth > 1:
            m.d.sync += [write_at.eq(write_at + arrived), read_at.eq(read_at + taken)]
            with m.If(dropped):
                m.d.sync += [write_at.eq(0), read_at.eq(0)]
        pieces: list[tuple[str, Value, Value, Value]] = []
        for index in range(WORD_BITS // width):
            bits = [bit for bit in stored if bit // width == index]
            if bits:
                source, target = Cat(part.data[bit % width] for bit in bits), Cat(word[bit] for bit in bits)
                pieces.append((f"part{index}", written & (part.index == index), source, target))
        if self._named:
            values = Cat(part.values[number] for number in self._named)
            pieces.append(("stored_values", arrived, values, Value.cast(self.values)))
        for name, enable, source, target in pieces:
            held_name = name.replace("part", "held").replace("stored", "held")
            held = Signal(len(source), name=held_name, reset_less=self._depth > 1)
            m.d.comb += target.eq(held)
            if self._depth == 1:
                with m.If(enable):
                    m.d.sync += held.eq(source)
                continue
            m.submodules[name] = ram = Memory(shape=len(source), depth=self._depth, init=[])
            store = ram.write_port()
            fetch = ram.read_port(domain="comb")
            m.d.comb += [store.en.eq(enable), store.addr.eq(write_at), store.data.eq(source)]
            m.d.comb += fetch.addr.eq(read_at)
            with m.If(taken):
                m.d.sync += held.eq(fetch.data)

    def _is_last(self) -> Value:
        part = self.fetched.payload
        last: Value = part.index == WORD_BITS // len(part.data) - 1
        return last

    def _stored_bits(self) -> list[int]:
        header = 8
        end = header + max(
            sum(field.metadata["width"] for field in dataclasses.fields(kind)) for kind in self._kinds
        )
        opcodes = [int(kind.OPCODE) for kind in self._kinds]
        differing = [bit for bit in range(header) if len({opcode >> bit & 1 for opcode in opcodes}) > 1]
        return [*differing, *range(header, end)]
