"""Model of the course of a KERNEL beside the unit's sequence."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data

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
        self.starts = Signal(name="kernel_starts")
        m.d.comb += self.starts.eq(dut.load & is_kind(Kernel, dut.payload))
        self.fields: Any = Signal(Kernel.layout(), name="fields")
        with m.If(self.starts):
            m.d.sync += self.fields.eq(self.kernel)
        for loop in LOOPS:
            self.assume(~self.starts | (self.kernel[loop] != 0))
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
        names = ("onward", "back", "next_strip", "next_block", "done")
        self.onward, self.back, self.next_strip, self.next_block, self.done = (
            Signal(name=name) for name in names
        )
        self.column, self.strip, self.block = (Signal(12, name=name) for name in ("column", "strip", "block"))
        fields, op = self.fields, self.op
        strips = ((fields.oy + STRIP_ROWS - 1) // STRIP_ROWS)[:12]
        self.last_column = Signal(name="in_last_column")
        last_strip, last_block, ends = (
            Signal(name=name) for name in ("in_last_strip", "in_last_block", "ends_strip")
        )
        self.last_strip, self.last_block = last_strip, last_block
        self.rows = Signal(range(STRIP_ROWS), name="rows_less_one")
        m.d.comb += [
            self.last_column.eq(self.column == fields.ox - 1),
            last_strip.eq(self.strip == strips - 1),
            last_block.eq(self.block == fields.ob - 1),
            self.onward.eq(self.begun & op.again & ~self.last_column),
            self.back.eq(self.begun & op.again & self.last_column),
            ends.eq(self.begun & op.end & ~self.onward),
            self.next_strip.eq(ends & ~last_strip),
            self.next_block.eq(ends & last_strip & ~last_block),
            self.done.eq(ends & last_strip & last_block),
            self.rows.eq(Mux(last_strip, fields.oy - 1 - self.strip * STRIP_ROWS, STRIP_ROWS - 1)),
        ]

    def _count_loops(self, m: Module) -> None:
        fields, op = self.fields, self.op
        self.following = Signal(range(self.config.kernel), name="following_entry")
        bits = len(self.following)
        target = Mux(self.onward, fields.start + op.target, self.entry + 1)
        first = ~self.begun | (op.end & ~self.onward)
        m.d.comb += self.following.eq(Mux(first, fields.start, target)[:bits])
        with m.If(self.starts):
            m.d.sync += [
                self.on.eq(1),
                self.begun.eq(0),
                self.column.eq(0),
                self.strip.eq(0),
                self.block.eq(0),
            ]
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
        self.todo, self.steps, self.real = (Signal(name=name) for name in ("todo", "steps", "issues"))
        self.serial, self.uniform = Signal(name="serial"), Signal(name="uniform")
        waits = {
            (uniform, root): kernel_serial_cycles(
                1 if uniform else config.lanes, config.groups if uniform else 1, root=root
            )
            for uniform in (False, True)
            for root in (False, True)
        }
        self.slots = Signal(range(self.least), name="slots")
        self.since = Signal(range(max(waits.values()) + 1), name="since_serial")
        self.most_wait = max(waits.values())
        op = self.op
        root = op.op == Op.RSQRT
        self.wait = Signal(range(self.most_wait + 1), name="slots_to_wait")
        self.last_group = self.uniform | (self.group == config.groups - 1)
        self.last = self.last_group & (self.row == self.rows)
        one = {key: Mux(root, waits[key, True], waits[key, False]) for key in (False, True)}
        m.d.comb += [
            self.steps.eq(self.on & dut.ready),
            self.serial.eq(self.begun & Cat(op.op == kind for kind in SERIAL).any()),
            self.uniform.eq(self.serial & op.unsigned),
            self.wait.eq(Mux(self.uniform, one[True], one[False])),
            self.real.eq(self.on & self.todo & (self.since == 0)),
        ]
        with m.If(self.steps):
            m.d.sync += [
                self.slots.eq(self.slots + (self.slots != self.least - 1)),
                self.since.eq(Mux(self.since.any(), self.since - 1, 0)),
            ]
            with m.If(self.real):
                m.d.sync += self.since.eq(Mux(self.serial, self.wait - 1, 0))
                m.d.sync += [self.group.eq(Mux(self.last_group, 0, self.group + 1)), self.todo.eq(~self.last)]
                m.d.sync += self.row.eq(self.row + self.last_group)
        with m.If(self.starts):
            m.d.sync += [self.todo.eq(0), self.slots.eq(0), self.since.eq(0)]
        with m.Elif(self.turn):
            m.d.sync += [
                self.todo.eq(1),
                self.slots.eq(0),
                self.row.eq(0),
                self.group.eq(0),
                self.since.eq(0),
            ]
