"""Model of the course of a KERNEL beside the unit's sequence."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

from weft.extras.proof.hardware.pipelines import latch, wire
from weft.extras.proof.hardware.property import CutBench
from weft.hdl.isa import Kernel, MicroOp
from weft.hdl.isa.kernel import SERIAL, SOURCES, STRIP_ROWS, TARGETS, Op
from weft.hdl.isa.operands import kernel_min_cycles, kernel_serial_cycles
from weft.hdl.vector.kernel_sequence import KernelSequence
from weft.hdl.vector.vec_streams import is_kind, view

OPERANDS = (*SOURCES, *TARGETS)
LOOPS = ("ob", "oy", "ox")


class CourseBench(CutBench, unit=KernelSequence):
    """The sequence in free inputs, with a memory of which each read returns any micro-operation.

    Assumed: an instruction comes only after the end of the one before it. Also assumed, as the checker guarantees:
    counts are at least 1; the micro-operation that ends the kernel is not serial, and no loop crosses it, so the first
    column is current unless it ends a loop.

    Attributes
    ----------
    fields
        Fields of the current instruction.
    on, begun : Signal
        There is a current instruction; its first micro-operation has begun.
    op, entry
        The current micro-operation, and its place in memory.
    column, strip, block : Signal
        Position of the micro-operation.
    onward, back, next_strip, next_block, done : Signal
        What follows: the next or the first column of a loop, the next strip, the next block, or nothing.
    rows : Signal
        Number of rows of the strip, less 1.
    row, group, todo : Signal
        The next issue of the micro-operation, if there is one.
    serial, uniform : Signal
        Results are computed one after the other; one result is for all of a row.
    turn : Signal
        Signal of the unit: the next micro-operation begins after this slot.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        self.kernel = view(Kernel, dut.payload)
        self.starts = wire(m, dut.load & is_kind(Kernel, dut.payload))
        self.fields: Any = latch(m, self.starts, self.kernel, Kernel.layout(), "fields")
        self.assume(~self.starts | Cat(self.kernel[loop] != 0 for loop in LOOPS).all())
        self.turn = self.peek("turn")
        self.coming: Any = data.View(MicroOp.layout(), self.peek("coming"))
        self.on, self.begun = Signal(name="on"), Signal(name="begun")
        self.op: Any = Signal(MicroOp.layout(), name="current_op")
        self.entry = Signal(range(config.kernel), name="current_entry")
        self._define_moves(m)
        self._count_loops(m)
        self._count_slots(m)
        self.assume(~dut.load | ~self.on)
        ends = self.on & self.begun & self.op.end
        self.assume(~(ends & self.serial))
        self.assume(~(ends & ~self.op.again) | (self.column == 0))
        self._watch(m)

    def _watch(self, m: Module) -> None:
        raise NotImplementedError

    def _define_moves(self, m: Module) -> None:
        self.column, self.strip, self.block = (Signal(12, name=name) for name in ("column", "strip", "block"))
        fields, op = self.fields, self.op
        strips = ((fields.oy + STRIP_ROWS - 1) // STRIP_ROWS)[:12]
        self.last_column = wire(m, self.column == fields.ox - 1)
        self.last_strip = last_strip = wire(m, self.strip == strips - 1, name="in_last_strip")
        self.last_block = last_block = wire(m, self.block == fields.ob - 1, name="in_last_block")
        self.onward = wire(m, self.begun & op.again & ~self.last_column)
        self.back = wire(m, self.begun & op.again & self.last_column)
        ends = wire(m, self.begun & op.end & ~self.onward)
        self.next_strip = wire(m, ends & ~last_strip)
        self.next_block = wire(m, ends & last_strip & ~last_block)
        self.done = wire(m, ends & last_strip & last_block)
        rows = Mux(last_strip, fields.oy - 1 - self.strip * STRIP_ROWS, STRIP_ROWS - 1)
        self.rows = wire(m, rows, range(STRIP_ROWS))

    def _count_loops(self, m: Module) -> None:
        fields, op = self.fields, self.op
        target = Mux(self.onward, fields.start + op.target, self.entry + 1)
        first = ~self.begun | (op.end & ~self.onward)
        self.following = wire(m, Mux(first, fields.start, target), range(self.config.kernel))
        with m.If(self.starts):
            m.d.sync += self.on.eq(1)
            m.d.sync += [signal.eq(0) for signal in (self.begun, self.column, self.strip, self.block)]
        with m.Elif(self.turn):
            m.d.sync += [self.on.eq(~self.done), self.begun.eq(1), self.op.eq(self.coming)]
            m.d.sync += self.entry.eq(self.following)
            with m.If(self.onward):
                m.d.sync += self.column.eq(self.column + 1)
            with m.If(self.back):
                m.d.sync += self.column.eq(0)
            with m.If(self.next_strip):
                m.d.sync += self.strip.eq(self.strip + 1)
            with m.If(self.next_block):
                m.d.sync += [self.strip.eq(0), self.block.eq(self.block + 1)]

    def _count_slots(self, m: Module) -> None:
        """Count the issues of the micro-operation, the slots since it began, and the slots since its last serial issue.

        There is an issue for each lane group of each row of the strip, or for each row if the operation is uniform.
        """
        dut, config = self.dut, self.config
        self.least = kernel_min_cycles(config.groups)
        self.row = Signal(range(STRIP_ROWS))
        self.group = Signal(range(max(config.groups, 2)))
        self.todo = Signal()
        op = self.op
        lanes, groups = config.lanes, config.groups
        waits = {
            (uniform, root): kernel_serial_cycles(*((1, groups) if uniform else (lanes, 1)), root=root)
            for uniform in (False, True)
            for root in (False, True)
        }
        self.most_wait = max(waits.values())
        self.slots = Signal(range(self.least))
        self.since = Signal(range(self.most_wait + 1))
        self.steps = wire(m, self.on & dut.ready)
        self.serial = wire(m, self.begun & Cat(op.op == kind for kind in SERIAL).any())
        self.uniform = wire(m, self.serial & op.unsigned)
        each, one = (Mux(op.op == Op.RSQRT, waits[key, True], waits[key, False]) for key in (False, True))
        self.wait = wire(m, Mux(self.uniform, one, each), range(self.most_wait + 1))
        self.real = wire(m, self.on & self.todo & (self.since == 0))
        self.last_group = self.uniform | (self.group == groups - 1)
        self.last = self.last_group & (self.row == self.rows)
        with m.If(self.steps):
            m.d.sync += self.slots.eq(self.slots + (self.slots != self.least - 1))
            m.d.sync += self.since.eq(Mux(self.since.any(), self.since - 1, 0))
            with m.If(self.real):
                m.d.sync += self.since.eq(Mux(self.serial, self.wait - 1, 0))
                m.d.sync += [self.group.eq(Mux(self.last_group, 0, self.group + 1)), self.todo.eq(~self.last)]
                m.d.sync += self.row.eq(self.row + self.last_group)
        with m.If(self.starts):
            m.d.sync += [self.todo.eq(0), self.slots.eq(0), self.since.eq(0)]
        with m.Elif(self.turn):
            m.d.sync += self.todo.eq(1)
            m.d.sync += [signal.eq(0) for signal in (self.slots, self.row, self.group, self.since)]
