"""Properties of the kernel engine's sequence: order, spacing and addresses of micro-operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from weft.extras.proof.hardware.kernel.course import LOOPS, OPERANDS, CourseBench
from weft.extras.proof.hardware.pipelines import ago, implies, wire
from weft.extras.proof.hardware.property import Induction, Property
from weft.extras.proof.hardware.smallest import kernel_sizes
from weft.hdl.isa import Source
from weft.hdl.isa.kernel import MAX_COLUMN_VECTORS, SOURCES, STRIP_ROWS, TARGETS
from weft.hdl.isa.operands import KERNEL_SPACING
from weft.hdl.vector.kernel_sequence import entry_layout

_PLACE = data.StructLayout(
    {"column": 12, "last_column": 1, "rows": range(STRIP_ROWS)}
    | dict.fromkeys(("onward", "back", "strip", "block", "done"), 1)
)
_ROW_BITS = (STRIP_ROWS - 1).bit_length()


class OrderBench(CourseBench):
    """Micro-operations are read, and follow each other, as their loops and the instruction's counts define. Each is
    issued once for each lane group of each row of its strip, in order, with its column. The next one begins after the
    number of slots that the latencies of the arithmetic require. The end comes with the last issue of all.
    """

    def _watch(self, m: Module) -> None:
        self.claim("there are slots", self.dut.valid == self.on)
        self._claim_counters()
        self._claim_fetch(m)
        self._claim_issues(m)

    def _claim_counters(self) -> None:
        fields, before = self.fields, (self.fields.oy - 1)[:12]
        place, strips = data.View(_PLACE, self.peek("place")), before >> _ROW_BITS
        placed = {"column": self.column, "last_column": self.last_column, "rows": self.rows}
        placed |= {"onward": self.onward, "back": self.back, "strip": self.next_strip}
        placed |= {"block": self.next_block, "done": self.done}
        registers = {"last_strip": self.last_strip, "last_block": self.last_block, "ox": fields.ox}
        registers |= {"strips": strips, "strips_left": strips - self.strip, "last_rows": before}
        registers |= {"blocks_left": fields.ob - self.block}
        self._while_on("micro-operation", self.peek("op") == Value.cast(self.op), self.begun)
        self._while_on("none yet", self.peek("op") == 0, ~self.begun)
        with self.during(self.on):
            for name, value in placed.items():
                self.claim(name, place[name] == value)
            self.claim_registers(registers, "register {}")
            self.claim("a column of the row", self.column < fields.ox)
            self.claim("a strip of the block", self.strip <= strips)
            self.claim("a block of all", self.block < fields.ob)
            self.claim("some of each loop", Cat(fields[loop] != 0 for loop in LOOPS).all())

    def _claim_fetch(self, m: Module) -> None:
        """Claim that the next micro-operation is the word at its entry, which is addressed two cycles before."""
        following, phase, address = (self.peek(name) for name in ("following", "phase", "fetch__addr"))
        first = self.fields.start[: len(self.following)]
        before = ago(m, address, 2, "address")
        self.claim("addressed", address == following)
        self.claim("addressed two cycles before", implies(self.turn, before == self.following))
        for cycles in range(3):
            entry = ago(m, following, cycles, f"entry{cycles}")
            self._while_on(f"entry of the next {cycles}", entry == self.following, phase > cycles)
        self._while_on("entry", self.peek("current") == self.entry, self.begun)
        self._while_on("entry at first", following == first, ~self.begun)
        self._while_on("entry of the current one", following == self.entry, self.begun & (phase == 0))
        with self.during(self.on):
            self.claim("what comes", Value.cast(self.coming) == ago(m, self.peek("fetch__data"), 1, "word"))
            self.claim("first entry", self.peek("first") == first)
            self.claim("runs", self.peek("runs") == self.begun)
            self.claim("time to fetch", (phase >= self.peek("age")) | (phase == 7))

    def _claim_issues(self, m: Module) -> None:
        dut, issue = self.dut, self.dut.slot.issue
        entry = data.View(entry_layout(self.config), self.peek("issue_entry"))
        self.claim("an issue", implies(dut.valid, issue.valid == self.real))
        with self.during(self.on & self.real):
            self.claim("its row", issue.entry.row == self.row)
            self.claim("its lane group", issue.entry.group == self.group)
            self.claim("its micro-operation", Value.cast(issue.op) == Value.cast(self.op))
            self.claim("its column", issue.column == self.column)
            self.claim("its tail", issue.tail == self.last_column)
            self.claim("the end", issue.end == (self.last & self.done))
        with self.during(self.on):
            self.claim_registers({"todo": self.todo, "pause": self.since, "age": self.slots})
            self.claim("as many slots as it takes", self.slots < self.least)
            self.claim("nothing at first", self.begun | ~self.todo)
        with self.during(self.on & self.begun):
            self.claim_registers({"serial": self.serial, "skips": self.uniform})
        with self.during(self.on & self.todo):
            self.claim("row and group", (entry.row == self.row) & (entry.group == self.group))
            self.claim("some rows", (self.row <= self.rows) & (self.group < self.config.groups))
        over = (self.real & self.last & ~self.serial) | (~self.todo & (self.since <= 1))
        self.claim("the next one begins", self.turn == (self.steps & (self.slots == self.least - 1) & over))
        self.cover("a loop goes on", self.turn & self.onward & (self.column == 1))
        self.cover("a strip with rows", self.real & self.next_strip & (self.row == STRIP_ROWS - 1))
        self.cover("another block", self.turn & self.next_block)
        self.cover("the end", self.real & issue.end & dut.valid & issue.valid)

    def _while_on(self, name: str, value: Value, when: Value | int = 1) -> None:
        self.claim(name, ~(self.on & when) | value)


class SpacingBench(OrderBench):
    """Between the issues of a row in two micro-operations are enough slots for results to be written, so that the later
    micro-operation reads what the earlier one wrote.

    One row of strips, which may be any, is watched: the slots since its last issue in any micro-operation. The lanes
    read registers `READ_LATENCY` cycles after an issue, and write them in cycle `KERNEL_LATENCY`; a slot takes at least
    a cycle. Elements are exchanged only between lane groups of a row, so the distance of the first one of a row
    suffices for all. The order of micro-operations is claimed as well, because induction starts from it.
    """

    def _watch(self, m: Module) -> None:
        super()._watch(m)
        groups, most = self.config.groups, 127
        watched = self.constant(m, range(STRIP_ROWS), "watched_row")
        since, issued = Signal(range(most + 1), name="since_row", init=most), Signal(name="row_issued")
        index = Signal(range(32), name="slots_of_operation")
        here = self.real & (self.row == watched)
        with m.If(self.steps):
            m.d.sync += [since.eq(since + (since != most)), index.eq(index + (index != 31))]
            with m.If(here):
                m.d.sync += [since.eq(1), issued.eq(1)]
        with m.If(self.starts):
            m.d.sync += [since.eq(most), issued.eq(0), index.eq(0)]
        with m.Elif(self.turn):
            m.d.sync += [issued.eq(0), index.eq(0)]
        self._while_on("far enough from the one ahead", since >= KERNEL_SPACING, here & ~issued)
        self._while_on("results of serial ones", since >= self.wait, self.serial & issued & (self.since == 0))
        # These invariants depend on the position of the row in its micro-operation.
        first, current = watched * groups, self.row * groups + self.group
        self._while_on("slots of rows", index == current, self.todo & ~self.serial)
        self._while_on("slots of serial rows", index + self.since >= current, self.todo)
        self._while_on(
            "at least", (index >= self.slots) & ((index == self.slots) | (self.slots == self.least - 1))
        )
        self._while_on("before it", since + first >= KERNEL_SPACING + index, ~issued & (since != most))
        self._while_on("after it", since + first + groups > index, issued & ~self.serial)
        self._while_on("after a serial one", since + self.since >= self.wait, issued & self.serial)
        self._while_on("pauses of serial ones alone", self.since == 0, ~self.serial)
        self._while_on("not yet", ~issued, ~self.begun)
        self._while_on("passed", (self.row > watched) | (self.row == watched), issued & self.todo)
        self.cover("minimum distance", here & ~issued & (since == KERNEL_SPACING) & self.dut.valid)


_ADDED = len(OPERANDS)
_RINGS = ("position", "strip_base", "block_base", "step_ob", "step_oy", "step_ox")


class AddressesBench(OrderBench):
    """Each issue reads, and its result is written to, the vector of the operand that its micro-operation names, in the
    memory that the instruction names: the operand's first one plus a stride for each block, row and column before it.

    Of two vectors of a column, the second lies after the first. Assumed: an operand has at most two vectors in a
    column, as the checker guarantees. Addresses are the low bits of these sums. The order of micro-operations is
    claimed as well, because induction starts from it.
    """

    def _watch(self, m: Module) -> None:
        super()._watch(m)
        self.width = len(self.dut.slot.address)
        self.rings = {name: self.peek(name) for name in _RINGS}
        phase = self.peek("phase")
        moves = self.onward | self.back | self.next_strip | self.next_block
        self.rotation = Signal(range(_ADDED + 1), name="turned")
        m.d.comb += self.rotation.eq(Mux(moves & (phase > 1), phase - 1, 0))
        rows = [self._claim_operand(m, number, name) for number, name in enumerate(OPERANDS)]
        self._claim_addresses(m, rows)

    def _claim_operand(self, m: Module, number: int, name: str) -> tuple[Value, Value]:
        """Claim the rings of an operand; return its address in the first row of the strip, and its stride from row to
        row.
        """
        fields, width = self.fields, self.width
        base = fields[name][:width]
        strides = {loop: fields[f"{name}_{loop}"] for loop in LOOPS}
        # The sums that blocks, strips and columns have added: now, and after the current micro-operation.
        moves = (
            ("block", strides["ob"], self.next_block, Const(0)),
            ("strip", strides["oy"] * STRIP_ROWS, self.next_strip, self.next_block),
            ("column", strides["ox"], self.onward, self.back),
        )
        sums = [self._sum_strides(m, f"{name}_{part}", *move) for part, *move in moves]
        self._while_on(f"nothing for column 0 of {name}", sums[2][0] == 0, self.column == 0)
        now, later, rings = base, base, {}
        for ring, (added, following) in zip(("block_base", "strip_base", "position"), sums, strict=True):
            now, later = now + added, later + following
            rings[ring] = (now, later)
        rings |= {f"step_{loop}": (stride, stride) for loop, stride in strides.items()}
        for ring, (current, following) in rings.items():
            due = Mux(self.rotation > number, following, current)[:width]
            here = (number + _ADDED - self.rotation) % _ADDED
            word = self.rings[ring].word_select(here[:3], width)
            self._while_on(f"{ring} of {name}", word == due)
        return wire(m, rings["position"][0], width, f"{name}_first_row"), strides["oy"]

    def _sum_strides(
        self, m: Module, name: str, stride: Value, on: Value, back: Value
    ) -> tuple[Signal, Signal]:
        """Return the sum that the iterations of a loop have added, now and after the current micro-operation."""
        added, following = (Signal(self.width, name=f"{name}{suffix}") for suffix in ("", "_next"))
        m.d.comb += following.eq(Mux(back, 0, Mux(on, added + stride, added)))
        with m.If(self.starts):
            m.d.sync += added.eq(0)
        with m.Elif(self.turn):
            m.d.sync += added.eq(following)
        return added, following

    def _claim_addresses(self, m: Module, rows: list[tuple[Value, Value]]) -> None:
        slot, op = self.dut.slot, self.op
        self.assume(~op.d_memory | (op.d < MAX_COLUMN_VECTORS * len(TARGETS)))
        asks = self.real & op.a_memory
        in_scratchpad = (self.fields.source == Source.SCRATCHPAD) | (op.a % len(SOURCES) != 0)
        self._while_on("source", self.peek("source") == self.fields.source)
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
        """Return the address of the current row's vector of the operand that a micro-operation names."""
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
        address = wire(m, start + field // count + moved, width, f"{name}_due")
        self._while_on(f"stride of {name}s", self.peek(f"{name}_step") == stride, self.todo)
        return address


def properties() -> Iterator[Property]:
    kinds = (
        (OrderBench, "order", 2, 64),
        (SpacingBench, "spacing", 3, 48),
        (AddressesBench, "addresses", 2, 64),
    )
    for config, groups in kernel_sizes():
        for bench, name, depth, cover in kinds:
            # The property of MICROCODE has one lane group.
            options: Any = {"cover": cover, "part": config.groups > 1 or bench is SpacingBench}
            unit, title = "vector/kernel_sequence", f"{name}, {groups}"
            yield bench.proves(unit, title, Induction(depth), config, **options)
