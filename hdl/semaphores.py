"""Counting semaphores, and the instruction queues that wait for them."""

from __future__ import annotations

import dataclasses

from amaranth.hdl import Const, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORE_MAX, SEMAPHORES, Instruction, Queue


class Semaphores(wiring.Component):
    """`SEMAPHORES` counters of 8 bits.

    In every cycle a counter grows by the number of units that give it and shrinks by the number of queues
    that take it, exactly, even if all of that happens at once. By the rules for programs a semaphore has one
    consumer queue and never passes `SEMAPHORE_MAX`; what two queues that take the last count in one cycle do
    is not defined.

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
            given = sum((self.give[queue][index] for queue in Queue), start=Const(0, 1))
            taken = sum((self.take[queue][index] for queue in Queue), start=Const(0, 1))
            m.d.sync += count.eq(count + given - taken)
            with m.If(self.clear):
                m.d.sync += count.eq(0)
            m.d.comb += self.available[index].eq(count != 0)
        return m


class Dispatcher(wiring.Component):
    """The in-order queue of one unit: holds instructions until their semaphores are available.

    Parameters
    ----------
    instruction : type[Instruction]
        The instruction of the unit.
    depth : int
        Instructions that the queue holds.

    Members
    -------
    fetched : In(stream of the instruction's layout)
        From fetch. Header and reserved bits are not stored.
    available : In(SEMAPHORES)
        Semaphores above 0.
    take : Out(SEMAPHORES)
        Semaphores taken in this cycle: the wait mask, in the cycle in which the unit accepts the instruction.
    instruction : Out(stream of the instruction's layout)
        To the unit, opcode set, reserved bits 0. Once valid it stays so until accepted, as only this queue
        takes the semaphores it waits for.
    waiting : Out(1)
        The next instruction lacks a semaphore.
    empty : Out(1)
        The queue holds no instruction.
    """

    def __init__(self, instruction: type[Instruction], depth: int) -> None:
        self._kind = instruction
        self._depth = depth
        super().__init__(
            {
                "fetched": In(stream.Signature(instruction.layout())),
                "available": In(SEMAPHORES),
                "take": Out(SEMAPHORES),
                "instruction": Out(stream.Signature(instruction.layout())),
                "waiting": Out(1),
                "empty": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        header = 8
        end = header + sum(field.metadata["width"] for field in dataclasses.fields(self._kind))
        # Read without a clock, so that these few wide words become distributed memory and not block memory.
        m.submodules.fifo = fifo = SyncFIFO(width=end - header, depth=self._depth)
        word = self.instruction.payload
        m.d.comb += [
            fifo.w_data.eq(Value.cast(self.fetched.payload)[header:end]),
            fifo.w_en.eq(self.fetched.valid),
            self.fetched.ready.eq(fifo.w_rdy),
            Value.cast(word)[header:end].eq(fifo.r_data),
            word.opcode.eq(self._kind.OPCODE.value),
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
