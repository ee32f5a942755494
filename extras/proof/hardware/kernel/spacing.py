"""The kernel engine's sequence: micro-operations on the same row are as far apart as its results take."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Signal

from weft.extras.proof.hardware.kernel.arithmetic import sizes
from weft.extras.proof.hardware.kernel.order import OrderBench
from weft.extras.proof.hardware.property import Induction, Property
from weft.hdl.isa.kernel import STRIP_ROWS
from weft.hdl.isa.operands import KERNEL_SPACING


class SpacingBench(OrderBench):
    """Between the issues of a row in two micro-operations are as many slots as results take to be written, so that the
    later one reads what the earlier one wrote.

    One row of strips, any one, is watched: the slots since it was issued last, in whichever micro-operation.

    The lanes read registers `READ_LATENCY` cycles behind an issue, and write them in cycle `KERNEL_LATENCY`;
    `latencies` tells that so many slots are enough. A slot takes a cycle or more, so that in cycles issues are as far
    apart at least. Elements are exchanged between lane groups of a row only, so that what is claimed of the first one
    of a row is enough for all. The order of micro-operations is claimed as well, as induction starts from it.
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
        # What this follows from, by the place of the row in its micro-operation.
        first, current = watched * groups, self.row * groups + self.group
        self._while_on("slots of rows", index == current, self.todo & ~self.serial)
        self._while_on("slots of serial rows", index + self.since >= current, self.todo)
        self._while_on(
            "at least", (index >= self.slots) & ((index == self.slots) | (self.slots == self.least - 1))
        )
        self._while_on("before it", since + first >= KERNEL_SPACING + index, ~issued & (since != most))
        self._while_on("behind it", since + first + groups > index, issued & ~self.serial)
        self._while_on("behind a serial one", since + self.since >= self.wait, issued & self.serial)
        self._while_on("pauses of serial ones alone", self.since == 0, ~self.serial)
        self._while_on("not yet", ~issued, ~self.begun)
        self._while_on("passed", (self.row > watched) | (self.row == watched), issued & self.todo)
        self.cover("right behind each other", here & ~issued & (since == KERNEL_SPACING) & self.dut.valid)


def properties() -> Iterator[Property]:
    for config, groups in sizes():
        yield SpacingBench.proves(
            "vector/kernel_sequence", f"spacing, {groups}", Induction(3), config, cover=48, part=True
        )
