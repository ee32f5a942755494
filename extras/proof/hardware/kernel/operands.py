"""The kernel engine's operands: where they are read, and what a lane gets of them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.kernel.arithmetic import CHOSEN, LanesBench, place
from weft.extras.proof.hardware.pipelines import ago, implies
from weft.hdl.isa.kernel import INT32_MIN, SERIAL, SOURCES
from weft.hdl.isa.operands import READ_LATENCY


class OperandsBench(LanesBench):
    """A lane's operands are the register, the exchanged element of a register, the number, or what was read, with its
    sign or without, or what stands for elements behind the row's end; each of its row and lane group and in the
    documented cycle. The divider gets those of its micro-operations.

    From what is issued to both operands and the predicate, as they stand in the unit's registers.

    Assumed: elements are not exchanged over more than a vector's, as the checker sees to. The sequence does not issue a
    micro-operation before the registers that it reads are written, which is claimed of it.
    """

    def _watch(self, m: Module) -> None:
        config = self.config
        asked, issue = self.issued(m, READ_LATENCY), self.issued(m, READ_LATENCY + 1)
        op = self.dut.issue.op
        self.assume(~self.dut.issue.valid | op.b_immediate | (1 << op.swap <= config.n))
        self._addresses(m, asked)
        group = self.issued(m, READ_LATENCY - 1).entry.group
        self.claim("lane group of what is read", self.dut.group == group)
        registers = [self.peek(f"register_{name}", 32 * config.lanes) for name in "ab"]
        flags = self.peek("predicates.fetch__data", config.lanes)
        self.claim("predicate", self.peek("predicate", config.lanes) == ago(m, flags, 1, "flags"))
        for lane in range(config.lanes):
            self._first(m, lane, issue, registers[0].word_select(lane, 32))
            self._second(m, lane, issue, registers[1])
        self._serial(m)

    def _addresses(self, m: Module, asked: Any) -> None:
        """Registers of the row and the lane group; of another one where elements are exchanged over more than one."""
        lanes = self.config.lanes
        size = len(place(self.config, asked, asked.op.a))
        first, second, flags = (
            self.peek(f"{memory}.fetch__addr", bits)
            for memory, bits in (("register_a", size), ("register_b", size), ("predicates", size - 3))
        )
        self.claim("register a", first == place(self.config, asked, asked.op.a))
        self.claim("place of the predicate", flags == place(self.config, asked, None))
        other = (asked.entry.group * lanes ^ self._distance(asked.op)) // lanes
        group = Mux(asked.op.b_immediate, asked.entry.group, other)
        bits = (self.config.groups - 1).bit_length()
        due = Cat(group[:bits], asked.entry.row, asked.op.b)
        self.claim("register b", implies(asked.valid, second == due))
        self.cover("register b", asked.valid & (asked.op.swap == 1) & (second == 21))

    def _distance(self, op: Any) -> Value:
        """Of elements that are exchanged: element j is the one with the number ``j ^ distance``."""
        return ((1 << op.swap) >> 1)[: self.config.n.bit_length()]

    def _first(self, m: Module, lane: int, issue: Any, register: Value) -> None:
        dut, op = self.dut, issue.op
        byte, row = dut.vectors.word_select(lane, 8), dut.rows.word_select(lane, 32)
        operand = op.a % len(SOURCES)
        of_accumulator = ~dut.source & (operand == 0)
        vector = Mux(op.unsigned, byte, byte.as_signed())
        behind = issue.tail & (dut.tail != 0) & (self.element(issue, lane) >= dut.tail)
        read = Mux(of_accumulator, row.as_signed(), vector)
        read = Mux(behind, Mux(op.fill, INT32_MIN, 0), read)
        due = Mux(op.a_memory, read, register.as_signed())[:32]
        first = self.lane("first", lane)
        self.claim(f"first of lane {lane}", first == ago(m, due, 1, f"first{lane}"))
        was = ago(m, op.a_memory & issue.valid, 1, f"read{lane}", reset=True)
        filled = was & ago(m, behind & op.fill, 1, f"filled{lane}", reset=True)
        if lane or self.config.groups > 1:  # a row has one element at least
            self.cover(f"filled in lane {lane}", filled & (first.as_signed() == INT32_MIN))
        unsigned = was & ago(m, op.unsigned & ~behind & ~of_accumulator, 1, f"unsigned{lane}", reset=True)
        self.cover(f"an unsigned byte in lane {lane}", unsigned & (first == 200))

    def _second(self, m: Module, lane: int, issue: Any, register: Value) -> None:
        op, lanes = issue.op, self.config.lanes
        exchanged = Signal(32, name=f"other{lane}")
        m.d.comb += exchanged.eq(register.word_select((lane ^ self._distance(op)) % lanes, 32))
        due = Mux(op.b_immediate, op.immediate, exchanged.as_signed())[:32]
        second = self.lane("second", lane)
        there = ago(m, issue.valid, 1, f"there{lane}", reset=True)
        self.claim(f"second of lane {lane}", implies(there, second == ago(m, due, 1, f"second{lane}")))
        number = ago(m, op.b_immediate, 1, f"number{lane}", reset=True)
        self.cover(f"a number in lane {lane}", there & number & (second.as_signed() == -5))

    def _serial(self, m: Module) -> None:
        """The divider gets micro-operations of its own, with their first operands."""
        issue, divide = self.issued(m, CHOSEN), "divide"
        serial = Cat(issue.op.op == kind for kind in SERIAL).any()
        valid = self.peek(f"{divide}.valid", 1)
        self.claim("to the divider", valid == (issue.valid & serial))
        for lane in range(self.config.lanes):
            same = self.lane("divide.elements", lane) == self.lane("first", lane)
            self.claim(f"lane {lane} to the divider", same)
        layout = issue.shape()
        self.claim("with its place", self.peek("divide.issue", layout.size) == Value.cast(issue))
        self.cover("to the divider", valid)
