"""Counting semaphores, and the instruction queues that wait for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, Instruction, Queue


class Semaphores(wiring.Component):
    """`SEMAPHORES` counters of 8 bits.

    In every cycle a counter grows by one if a unit gives it, and shrinks by one if a queue takes it. By the rules
    for programs a semaphore has one producer queue and one consumer queue, and never passes `SEMAPHORE_MAX`: what two
    units that give it in one cycle do is not defined, nor two queues that take it.

    Members
    -------
    clear : In(1)
        Sets all counters to 0 at the next clock edge.
    give, take : In(SEMAPHORES), one of each per queue
        Masks of semaphores that grow and shrink in this cycle. `take` may only name `available` ones.
    available : Out(SEMAPHORES)
        The semaphores above 0, from registers.
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
    """The in-order queue of one unit: holds instructions until their semaphores are available.

    Parameters
    ----------
    kinds : sequence of type[Instruction]
        The instructions of the unit.
    depth : int
        Instructions that the queue holds.

    Members
    -------
    fetched : In(stream of the first kind's layout)
        From fetch. Of the opcode only those bits are stored in which the kinds differ, and no bits that are reserved
        in all kinds.
    available : In(SEMAPHORES)
        Semaphores above 0.
    take : Out(SEMAPHORES)
        Semaphores taken in this cycle: the wait mask, in the cycle in which the unit accepts the instruction.
    instruction : Out(stream of the first kind's layout)
        To the unit, whole but for reserved bits, which are 0. Once valid it stays so until accepted, as only this queue
        takes the semaphores it waits for.
    waiting : Out(1)
        The next instruction lacks a semaphore.
    empty : Out(1)
        The queue holds no instruction.
    """

    def __init__(self, kinds: Sequence[type[Instruction]], depth: int) -> None:
        self._kinds = tuple(kinds)
        self._depth = depth
        layout = self._kinds[0].layout()
        super().__init__(
            {
                "fetched": In(stream.Signature(layout)),
                "available": In(SEMAPHORES),
                "take": Out(SEMAPHORES),
                "instruction": Out(stream.Signature(layout)),
                "waiting": Out(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        header = 8
        end = header + max(
            sum(field.metadata["width"] for field in dataclasses.fields(kind)) for kind in self._kinds
        )
        opcodes = [int(kind.OPCODE) for kind in self._kinds]
        differing = [bit for bit in range(header) if len({opcode >> bit & 1 for opcode in opcodes}) > 1]
        fetched, word = Value.cast(self.fetched.payload), self.instruction.payload
        stored = Cat(fetched[header:end], *(fetched[bit] for bit in differing))
        # Read without a clock, so that these few wide words become distributed memory and not block memory.
        m.submodules.fifo = fifo = SyncFIFO(width=len(stored), depth=self._depth)
        m.d.comb += [
            fifo.w_data.eq(stored),
            fifo.w_en.eq(self.fetched.valid),
            self.fetched.ready.eq(fifo.w_rdy),
            word.opcode.eq(opcodes[0]),
            Cat(Value.cast(word)[header:end], *(word.opcode[bit] for bit in differing)).eq(fifo.r_data),
        ]
        satisfied = (word.wait & ~self.available) == 0
        m.d.comb += [
            self.instruction.valid.eq(fifo.r_rdy & satisfied),
            fifo.r_en.eq(self.instruction.valid & self.instruction.ready),
            self.waiting.eq(fifo.r_rdy & ~satisfied),
            self.empty.eq(~fifo.r_rdy),
        ]
        with m.If(self.instruction.valid & self.instruction.ready):
            m.d.comb += self.take.eq(word.wait)
        return m
