"""Properties of MM after its rows are issued: when and where the matrix unit writes, and when it signals."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Mux, Signal

from weft.extras.proof.hardware.pipelines import implies, watch_cycle
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.isa.operands import READ_LATENCY, rmw_latency
from weft.hdl.matrix.array import array_latency
from weft.hdl.matrix.mm import MmUnit
from weft.hdl.matrix.mm_rows import ROW_LATENCY, destination


class WrittenBench(Bench):
    """Each row that is issued, and nothing else, is written to its place as the array's row of C, after a fixed number
    of cycles. The instruction is signalled when its last row is visible, and at no other time.

    The inputs of the matrix unit are free; nothing is assumed. One cycle, which may be any, is watched, with the row
    that is issued in it.
    """

    UNIT = MmUnit

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        self.free_inputs(m)
        layout = destination(config)
        issued = self.peek("rows.issued", 1)
        bound = self.peek("rows.destination", layout.size)
        leaves = ROW_LATENCY + array_latency(config)
        visible = leaves + rmw_latency(config)
        age, (there, row) = watch_cycle(m, self, visible, (issued, 1, "there"), (bound, layout, "row"))
        out, seen = age == leaves, age == visible
        self.claim("a row of C leaves for each that was issued", implies(out, dut.c.valid == there))
        self.claim("its place", implies(out & there, dut.c.address == row.address))
        self.claim("whether it overwrites", implies(out & there, dut.c.overwrite == row.overwrite))
        signal = Mux(there & row.last, row.signal, 0)
        self.claim("signalled when it is visible", implies(seen, dut.signal == signal))
        width = sum(len(element) for element in dut.c.psums)
        self.claim("it is what the array made", dut.c.psums.as_value() == self.peek("array.c", width))
        if config.softmax:
            late = leaves - READ_LATENCY
            shift = Signal.like(dut.c.alignment)
            with m.If(age == leaves - late):
                m.d.sync += shift.eq(self.peek("rows.alignment", len(shift)))
            self.claim("its alignment", implies(out, dut.c.alignment == shift))
        self._lines(leaves)
        self.cover("an instruction is signalled", seen & (signal != 0))
        self.cover("rows behind one another", out & there & dut.c.overwrite & issued)

    def _lines(self, leaves: int) -> None:
        """Claim the distance between the write and read addresses of delay lines: induction would start from others."""
        lengths = {"destinations": leaves}
        if self.config.softmax:
            lengths["alignment_delay"] = leaves - READ_LATENCY
        for name, cycles in lengths.items():
            distance = cycles - 2
            width = distance.bit_length()
            to, of = (self.peek(f"{name}.{place}", width) for place in ("store__addr", "fetch__addr"))
            self.claim(f"length of {name}", (to - of)[:width] == distance)


def properties() -> Iterator[Property]:
    for name, softmax in (("", 0), (", with alignments", 8)):
        yield WrittenBench.proves(
            "matrix/mm",
            f"rows of C{name}",
            Induction(20),
            SMALLEST.replace(probability_bits=softmax),
            cover=22,
            proven=("array", "rows", "weight_loader"),
        )
