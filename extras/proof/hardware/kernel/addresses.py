"""The kernel engine's sequence: which vectors are read, and to which results go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.kernel.arithmetic import sizes
from weft.extras.proof.hardware.kernel.course import OPERANDS
from weft.extras.proof.hardware.kernel.order import OrderBench
from weft.extras.proof.hardware.property import Induction, Property
from weft.hdl.isa import Source
from weft.hdl.isa.kernel import MAX_COLUMN_VECTORS, SOURCES, STRIP_ROWS, TARGETS

_ADDED = len(OPERANDS)
_CIRCLES = ("position", "strip_base", "block_base", "step_ob", "step_oy", "step_ox")


class AddressesBench(OrderBench):
    """Each issue reads, and its result is written to, the vector of the operand that its micro-operation names, in the
    memory that the instruction names: the operand's first one plus a stride for each block, row and column before it.

    The addresses of an operand's vectors: its first one and a stride for each block, row and column before the
    current one, added up; of two vectors of a column the second one lies behind the first.

    Assumed is, as well, that an operand has two vectors in a column at most, as the checker sees to. Whatever fields
    are, addresses are the low bits of these sums, as many as the memories have. The order of micro-operations is
    claimed as well, as induction starts from it.
    """

    def _watch(self, m: Module) -> None:
        super()._watch(m)
        self.width = len(self.dut.slot.address)
        self.circles = {name: self.peek(name, self.width * _ADDED) for name in _CIRCLES}
        phase = self.peek("phase", 3)
        moves = self.onward | self.back | self.next_strip | self.next_block
        self.turned = Signal(range(_ADDED + 1), name="turned")
        m.d.comb += self.turned.eq(Mux(moves & (phase > 1), phase - 1, 0))
        rows = [self._operand(m, number, name) for number, name in enumerate(OPERANDS)]
        self._read_and_written(m, rows)

    def _operand(self, m: Module, number: int, name: str) -> tuple[Value, Value]:
        """The address in the first row of the strip, and the stride from row to row."""
        fields, width = self.fields, self.width
        base = fields[name][:width]
        strides = {loop: fields[f"{name}_{loop}"] for loop in ("ob", "oy", "ox")}
        of_block, next_of_block = self._moved(m, f"{name}_block", strides["ob"], self.next_block, Const(0))
        of_strip, next_of_strip = self._moved(
            m, f"{name}_strip", strides["oy"] * STRIP_ROWS, self.next_strip, self.next_block
        )
        of_column, next_of_column = self._moved(m, f"{name}_column", strides["ox"], self.onward, self.back)
        self._while_on(f"nothing for column 0 of {name}", of_column == 0, self.column == 0)
        own = {
            "block_base": (base + of_block, base + next_of_block),
            "strip_base": (base + of_block + of_strip, base + next_of_block + next_of_strip),
            "position": (
                base + of_block + of_strip + of_column,
                base + next_of_block + next_of_strip + next_of_column,
            ),
        }
        own |= {f"step_{loop}": (stride, stride) for loop, stride in strides.items()}
        for circle, (current, following) in own.items():
            due = Mux(self.turned > number, following, current)[:width]
            here = (number + _ADDED - self.turned) % _ADDED
            kept = self.circles[circle].word_select(here[:3], width)
            self._while_on(f"{circle} of {name}", kept == due)
        first = Signal(width, name=f"{name}_first_row")
        m.d.comb += first.eq(own["position"][0])
        return first, strides["oy"]

    def _moved(self, m: Module, name: str, stride: Value, on: Value, back: Value) -> tuple[Signal, Signal]:
        """What the iterations of a loop have added so far, and behind the current micro-operation."""
        added, following = (Signal(self.width, name=f"{name}{behind}") for behind in ("", "_next"))
        m.d.comb += following.eq(Mux(back, 0, Mux(on, added + stride, added)))
        with m.If(self.starts):
            m.d.sync += added.eq(0)
        with m.Elif(self.turn):
            m.d.sync += added.eq(following)
        return added, following

    def _read_and_written(self, m: Module, rows: list[tuple[Value, Value]]) -> None:
        slot, op = self.dut.slot, self.op
        self.assume(~op.d_memory | (op.d < MAX_COLUMN_VECTORS * len(TARGETS)))
        asks = self.real & op.a_memory
        in_scratchpad = (self.fields.source == Source.SCRATCHPAD) | (op.a % len(SOURCES) != 0)
        self._while_on("source", self.peek("source", 1) == self.fields.source)
        self._while_on("reads the scratchpad", slot.ask_scratchpad == (asks & in_scratchpad))
        self._while_on("reads the accumulator", slot.ask_accumulator == (asks & ~in_scratchpad))
        read = self._address(m, "read", op.a, 0, len(SOURCES), rows)
        written = self._address(m, "write", op.d, len(SOURCES), len(TARGETS), rows)
        self._while_on("where it reads", slot.address == read, self.todo)
        dst = slot.issue.dst
        self._while_on("where it writes", dst == written[: len(dst)], self.todo & op.d_memory)
        self.cover("the second vector", asks & (op.a[2] == 1) & (self.row == 3) & (read == 9))
        self.cover("another column", self.real & op.d_memory & (self.column == 1) & (written == 9))
        self.cover("the accumulator", slot.ask_accumulator & self.on & (self.block == 1))

    def _address(self, m: Module, name: str, field: Value, first: int, count: int, rows: Any) -> Signal:
        """Of the current row's vector of the operand that a micro-operation names."""
        width = self.width
        start, stride = Signal(width, name=f"{name}_start"), Signal(signed(width), name=f"{name}_stride")
        with m.Switch(field % count):
            for number in range(count):
                with m.Case(number):
                    m.d.comb += [start.eq(rows[first + number][0]), stride.eq(rows[first + number][1])]
        moved = Signal(width, name=f"{name}_moved")
        with m.If(self.starts | self.turn):
            m.d.sync += moved.eq(0)
        with m.Elif(self.steps & self.real & self.last_group):
            m.d.sync += moved.eq(moved + stride)
        address = Signal(width, name=f"{name}_due")
        m.d.comb += address.eq(start + field // count + moved)
        kept = self.peek(f"{name}_step", width)
        self._while_on(f"stride of {name}s", kept == stride.as_unsigned(), self.todo)
        return address


def properties() -> Iterator[Property]:
    for config, groups in sizes():
        yield AddressesBench.proves(
            "vector/kernel_sequence",
            f"addresses, {groups}",
            Induction(2),
            config,
            cover=64,
            part=config.groups > 1,
        )
