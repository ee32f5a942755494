"""The kernel engine's sequence: which micro-operation is issued, for which lane groups of which rows, and when."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Value
from amaranth.lib import data

from weft.extras.proof.hardware.kernel.arithmetic import sizes
from weft.extras.proof.hardware.kernel.course import CourseBench
from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Induction, Property
from weft.hdl.isa.kernel import MICRO_BITS, STRIP_ROWS
from weft.hdl.vector.kernel_sequence import entry_layout

_PLACE = data.StructLayout(
    {"column": 12, "last_column": 1, "rows": range(STRIP_ROWS)}
    | dict.fromkeys(("onward", "back", "strip", "block", "done"), 1)
)
_ROW_BITS = (STRIP_ROWS - 1).bit_length()


class OrderBench(CourseBench):
    """Micro-operations are read and follow each other as their loops and the instruction's counts define it; each is
    issued once for each lane group of each row of its strip, in order, with its column; the next one begins as many
    slots later as the latencies of the arithmetic tell; the end comes with the last issue of all.

    The order of micro-operations, and of the issues of each.
    """

    def _watch(self, m: Module) -> None:
        self.claim("there are slots", self.dut.valid == self.on)
        self._counters()
        self._fetched(m)
        self._issues(m)

    def _counters(self) -> None:
        """What the unit keeps of loops."""
        place = data.View(_PLACE, self.peek("place", _PLACE.size))
        self._while_on("micro-operation", self.peek("op", MICRO_BITS) == Value.cast(self.op), self.begun)
        self._while_on("none yet", self.peek("op", MICRO_BITS) == 0, ~self.begun)
        self._while_on("column", place.column == self.column)
        self._while_on("last column", place.last_column == self.last_column)
        self._while_on("rows", place.rows == self.rows)
        for name, value in {
            "onward": self.onward,
            "back": self.back,
            "strip": self.next_strip,
            "block": self.next_block,
            "done": self.done,
        }.items():
            self._while_on(name, place[name] == value)
        fields = self.fields
        before = (fields.oy - 1)[:12]
        strips = before >> _ROW_BITS
        self._while_on("last strip", self.peek("last_strip", 1) == self.last_strip)
        self._while_on("last block", self.peek("last_block", 1) == self.last_block)
        self._while_on("columns", self.peek("ox", 12) == fields.ox)
        self._while_on("strips", self.peek("strips", 12 - _ROW_BITS) == strips)
        self._while_on("strips left", self.peek("strips_left", 12 - _ROW_BITS) == strips - self.strip)
        self._while_on("blocks left", self.peek("blocks_left", 12) == (fields.ob - self.block)[:12])
        self._while_on("rows of the last strip", self.peek("last_rows", _ROW_BITS) == before[:_ROW_BITS])
        self._while_on("a column of the row", self.column < fields.ox)
        self._while_on("a strip of the block", self.strip <= strips)
        self._while_on("a block of all", self.block < fields.ob)
        for loop in ("ob", "oy", "ox"):
            self._while_on(f"some {loop}", fields[loop] != 0)

    def _fetched(self, m: Module) -> None:
        """The micro-operation that comes is the word at the next entry: that was addressed two cycles before, and its
        word came a cycle later."""
        bits = len(self.following)
        following, phase = self.peek("following", bits), self.peek("phase", 3)
        address = self.peek("fetch__addr", bits)
        word = self.peek("fetch__data", MICRO_BITS)
        self.claim("addressed", address == following)
        self._while_on("what comes", Value.cast(self.coming) == ago(m, word, 1, "word"))
        self.claim(
            "addressed two cycles before", implies(self.turn, ago(m, address, 2, "address") == self.following)
        )
        for cycles in range(3):
            was = ago(m, following, cycles, f"entry{cycles}")
            self._while_on(f"entry of the next {cycles}", was == self.following, phase > cycles)
        first = self.peek("first", bits)
        self._while_on("first entry", first == self.fields.start[:bits])
        self._while_on("entry", self.peek("current", bits) == self.entry, self.begun)
        self._while_on("entry at first", following == self.fields.start[:bits], ~self.begun)
        self._while_on("entry of the current one", following == self.entry, self.begun & (phase == 0))
        self._while_on("runs", self.peek("runs", 1) == self.begun)
        age = self.peek("age", (self.least - 1).bit_length())
        self._while_on("time to fetch", (phase >= age) | (phase == 7))

    def _issues(self, m: Module) -> None:
        dut = self.dut
        issue = dut.slot.issue
        layout = entry_layout(self.config)
        entry = data.View(layout, self.peek("issue_entry", layout.size))
        self.claim("an issue", implies(dut.valid, issue.valid == self.real))
        self._while_on("its row", issue.entry.row == self.row, self.real)
        self._while_on("its lane group", issue.entry.group == self.group, self.real)
        self._while_on("its micro-operation", Value.cast(issue.op) == Value.cast(self.op), self.real)
        self._while_on("its column", issue.column == self.column, self.real)
        self._while_on("its tail", issue.tail == self.last_column, self.real)
        self._while_on("the end", issue.end == (self.last & self.done), self.real)
        # What the unit keeps of slots.
        self._while_on("todo", self.peek("todo", 1) == self.todo)
        self._while_on("serial", self.peek("serial", 1) == self.serial, self.begun)
        self._while_on("one for a row", self.peek("skips", 1) == self.uniform, self.begun)
        self._while_on("row and group", (entry.row == self.row) & (entry.group == self.group), self.todo)
        self._while_on("some rows", (self.row <= self.rows) & (self.group < self.config.groups), self.todo)
        self._while_on("nothing at first", ~self.todo, ~self.begun)
        pause = self.peek("pause", (self.most_wait - 1).bit_length())
        self._while_on("pause", pause == self.since)
        enough = self.slots == self.least - 1
        self._while_on("age", self.peek("age", len(self.slots)) == self.slots)
        self._while_on("as many slots as it takes", self.slots < self.least)
        over = (self.real & self.last & ~self.serial) | (~self.todo & (self.since <= 1))
        self.claim("the next one begins", self.turn == (self.steps & enough & over))
        self.cover("a loop goes on", self.turn & self.onward & (self.column == 1))
        self.cover("a strip with rows", self.real & self.next_strip & (self.row == STRIP_ROWS - 1))
        self.cover("another block", self.turn & self.next_block)
        self.cover("the end", self.real & issue.end & dut.valid & issue.valid)

    def _while_on(self, name: str, value: Value, when: Value | int = 1) -> None:
        self.claim(name, ~(self.on & when) | value)


def properties() -> Iterator[Property]:
    for config, groups in sizes():
        yield OrderBench.proves(
            "vector/kernel_sequence",
            f"order, {groups}",
            Induction(2),
            config,
            cover=64,
            part=config.groups > 1,
        )
