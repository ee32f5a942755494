"""Properties of MM: rows of A and C, words of B, writes and signals."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, follow, implies, latch_all, watch_cycle
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import Order, transfer
from weft.extras.proof.hardware.walks import WalkModel, claim_slots, skid_slots, walk_fields
from weft.hdl.isa.operands import READ_LATENCY, rmw_latency
from weft.hdl.matrix.array import array_latency
from weft.hdl.matrix.mm import MmUnit
from weft.hdl.matrix.mm_rows import ROW_LATENCY, WALK, RowIssuer, WeightLoader, destination
from weft.hdl.matrix.mm_rows import WEIGHTS_WALK as WALK_OF_B
from weft.hdl.matrix.mm_rows import _row as row_layout

_CONTRACTION = ("ky", "kx", "kc")


_KINDS: dict[str, dict[str, int]] = {
    "": {},
    ", with alignments": {"probability_bits": 7},
    ", with alignments and zero points": {"probability_bits": 8},
    ", with sums along rows": {"n": 4, "depthwise_taps": 2},
}


@proves(
    "matrix/mm_rows",
    {f"rows of MM{name}": SMALLEST.replace(**changes) for name, changes in _KINDS.items()},
    Induction(4),
    cover=12,
)
class RowsBench(Bench, unit=RowIssuer):
    """For every MM, of any length and with any fields, rows are read, enter the array and get their rows of C in the
    order of its loops. Each does so once, at its address; a row is the padding where coordinates are outside, and has
    its zero point subtracted. No row is added to a row of C while an earlier addition to it is under way.

    The inputs are free: reads are refused, and tiles of weights come, at any time. Assumed: an instruction comes only
    when there is room, and has counts of at least 1 and sizes h and w of at most 2**15, because coordinates are 16-bit
    two's complement. All other fields are unconstrained.

    The model defines each row, and follows it from the loop nest to its issue: then it is read, and its row of C gets
    its place. `ROW_LATENCY` cycles later it enters the array.
    """

    def watch(self, m: Module) -> None:
        dut, op = self.dut, self.dut.instruction
        self.assume(~dut.load | dut.free)
        self.assume(~dut.load | ((op.h <= 1 << 15) & (op.w <= 1 << 15)))
        step = self.peek("nest.step")
        fields = walk_fields(op, WALK.counters(self.config), WALK.trackers(self.config))
        walk = WalkModel(m, self, "nest", load=dut.load, **fields)
        self.claim("free when the last row leaves", dut.free == (~walk.on | (step & walk.ends)))
        self._claim_issue(m, step, self._define_row(m, walk))
        self._claim_distance(m)
        self._claim_entry(m)

    def _fields(self, m: Module) -> dict[str, Signal]:
        """Return registers with the fields that all rows of the current instruction need."""
        dut, op = self.dut, self.dut.instruction
        names = ["h", "w", "pad", "accumulate", "signal"]
        if self.config.wide_activations:
            names.append("zero")
        if self.config.depthwise_taps:
            names.append("depthwise")
        if self.config.softmax:
            names += ["align", "alignment"]
        return latch_all(m, dut.load, {name: op[name] for name in names})

    def _define_row(self, m: Module, walk: WalkModel) -> Any:
        """Return the row of the current iteration, as the instruction defines it."""
        config, fields, values = self.config, self._fields(m), walk.values
        row = Signal(row_layout(config), name="defined")
        first = ~fields["accumulate"] & walk.at_start(*_CONTRACTION)
        y, x = (values[name].as_signed() for name in ("y", "x"))
        m.d.comb += [
            row.inside.eq((y >= 0) & (y < fields["h"]) & (x >= 0) & (x < fields["w"])),
            row.first.eq(walk.at_start("oy", "ox")),
            row.address.eq(values["a"]),
            row.fill.eq(fields["pad"]),
            row.destination.address.eq(values["c"]),
            row.destination.overwrite.eq(first),
            row.destination.last.eq(walk.ends),
            row.destination.signal.eq(Mux(walk.ends, fields["signal"], 0)),
        ]
        with self.during(walk.on):
            self.claim("the row that comes", self.peek("skid.i__payload") == row.as_value())
            registers = {name: field for name, field in fields.items() if name != "alignment"}
            self.claim_registers(registers, "{} is kept")
            self.claim("sizes are limited", (fields["h"] <= 1 << 15) & (fields["w"] <= 1 << 15))
        if config.wide_activations:
            m.d.comb += row.zero.eq(fields["zero"])
        if config.depthwise_taps:
            m.d.comb += [row.depthwise.eq(fields["depthwise"]), row.start.eq(walk.at_start("ox"))]
        if config.softmax:
            m.d.comb += row.aligned.eq(fields["align"])
            m.d.comb += row.alignment.eq(self._count_alignments(m, walk, fields))
        return row

    def _count_alignments(self, m: Module, walk: WalkModel, fields: dict[str, Signal]) -> Value:
        """Return the entry of the row's alignment: entries count from `alignment` on, again for each tile."""
        entry, width = Signal(range(self.config.alignments), name="entry"), len(self.dut.alignments.address)
        with m.If(self.dut.load):
            m.d.sync += entry.eq(self.dut.instruction.alignment)
        with m.Elif(walk.step):
            again = walk.at_end("ky", "kx", "kc", "oy", "ox")
            m.d.sync += entry.eq(Mux(again, fields["alignment"], entry + 1))
        start = self.peek("start")
        self.claim("the first entry is kept", ~walk.on | (start == fields["alignment"][:width]))
        return entry[:width]

    def _claim_issue(self, m: Module, step: Value, defined: Any) -> None:
        """Claim that rows are issued in order, with the reads and destinations of their definition."""
        dut, layout = self.dut, row_layout(self.config)
        row = self.peek("row")
        (comes, following), spare = skid_slots(self)
        self.there = there = Signal(name="row_there")
        m.d.sync += there.eq(comes & (~there | dut.issued) | (there & ~dut.issued))
        self.claim("a row is there", self.peek("skid.o__ready") == (~there | dut.issued))
        self.claim("issued if there", ~dut.issued | there)
        order = Order(m, self, i=(step, defined.as_value()), o=(dut.issued, row), most=3)
        claim_slots(self, order, ((there, row), (comes, following), spare), "a row on its way")
        self.row = row = type(defined)(layout, row)
        self.claim("its row of C", dut.destination.as_value() == row.destination.as_value())
        self.claim("read where it is defined", ~dut.read.valid | (dut.read.address == row.address))
        granted = transfer(dut.read)
        self.claim("read if it is inside", ~dut.issued | (granted == row.inside))
        self.claim("read only when issued", ~granted | dut.issued)
        self.claim("the first one of a tile waits for weights", ~(dut.issued & row.first) | dut.weights)
        self.claim("a tile is used from its first row on", dut.swap == (dut.issued & row.first))
        self.cover("a row in the padding", dut.issued & ~row.inside)
        last = row.destination.last & ~row.first & (row.destination.signal != 0)
        self.cover("the last row", dut.issued & last)

    def _claim_distance(self, m: Module) -> None:
        """Claim that a row is not added to C before earlier rows have been added."""
        dut, issued, row = self.dut, self.dut.issued, self.dut.destination.address
        late = rmw_latency(self.config)
        past, place = issued, row
        near = self.peek("near")
        self.claim("whether one is near", self.peek("any_near") == near.any())
        for age in range(1, late):
            past, place = ago(m, past, 1, f"issued{age}", reset=True), ago(m, place, 1, f"place{age}")
            same = past & (place == row) & ~self.row.destination.overwrite
            self.claim(f"no row of C again {age} cycles later", ~(issued & same))
            self.claim(f"near by {age}", ~self.there | (near[age - 1] == same))
            if age < late - 1:
                self.claim(f"past {age}", self.peek(f"past{age}") == past)
                self.claim(f"place {age}", ~past | (self.peek(f"past_target{age}") == place))
        self.cover("a row waits", dut.stall_port & near.any())

    def _claim_entry(self, m: Module) -> None:
        """Claim that the row that enters the array is the data, or the padding, less the zero point."""
        dut, row, n, width = self.dut, self.row, self.config.n, self.config.widths.activation
        zero = row.zero if self.config.wide_activations else 0
        along = [row.depthwise, row.start] if self.config.depthwise_taps else []
        less_of = [zero] if self.config.wide_activations else []
        defined = Cat(dut.issued, dut.swap, row.inside, row.fill, *along, *less_of)
        defined = follow(m, self, defined, (self.peek(f"flight{k}") for k in range(READ_LATENCY)), "row")
        entering, first, inside, fill, rest = defined[0], defined[1], defined[2], defined[3:11], defined[11:]
        flags, zero = rest[: len(along)], rest[len(along) :]
        vector = ago(m, Mux(inside, dut.read.data, fill.replicate(n)), 1, "vector", reset=True)
        less = ago(m, zero, 1, "less", reset=True).as_signed() if self.config.wide_activations else 0
        for k in range(n):
            element = vector.word_select(k, 8).as_signed() - less
            self.claim(f"element {k}", dut.a.word_select(k, width).as_signed() == element)
        self.claim("a row enters", dut.a_valid == ago(m, entering, 1, "entering", reset=True))
        self.claim("the first one of a tile enters", dut.a_swap == ago(m, first, 1, "swapping", reset=True))
        if along:
            due = ago(m, flags, 1, "flags", reset=True)
            self.claim("what goes along rows", Cat(dut.a_depthwise, dut.a_start) == due)
        assert ROW_LATENCY == READ_LATENCY + 1
        if self.config.softmax:
            self._claim_alignment(m)

    def _claim_alignment(self, m: Module) -> None:
        """Claim that the alignment comes `READ_LATENCY` cycles after the row, from its entry, or is 0."""
        dut, row = self.dut, self.row
        read = dut.alignments.valid & (dut.alignments.address == row.alignment)
        self.claim("its alignment is read", ~(dut.issued & row.aligned) | read)
        aligned = follow(m, self, row.aligned, self.peek("flights")[:READ_LATENCY], "aligned")
        self.claim("alignment", dut.alignment == Mux(aligned, dut.alignments.data.as_signed(), 0))


@proves("matrix/mm_weights", "tiles of MM", Induction(4), SMALLEST, cover=12)
class WeightsBench(Bench, unit=WeightLoader):
    """For every MM, of any length and with any fields, words of B are read and sent in the order of its loops, the
    words of a tile in consecutive cycles. A tile may be used when its last word is read, and no word of the next tile
    is read before its use.

    The inputs are free. Assumed: an instruction comes only when there is room, and has counts of at least 1; a tile is
    used only when it may be.
    """

    def watch(self, m: Module) -> None:
        dut, op, n = self.dut, self.dut.instruction, self.config.n
        self.assume(~dut.load | dut.free)
        self.assume(~dut.swap | dut.ready)
        fields = walk_fields(op, WALK_OF_B.counters(self.config), WALK_OF_B.trackers(self.config))
        fields["counts"]["row"] = Const(n)
        sends = dut.read.valid
        walk = WalkModel(m, self, "nest", load=dut.load, step=sends, **fields)
        first, last = walk.at_start("row"), walk.at_end("row")
        waits = Signal()  # a whole tile, for its first row of A
        m.d.sync += waits.eq((waits | (sends & last)) & ~dut.swap)
        self.claim("words in their order", ~sends | (dut.read.address == walk.values["b"]))
        self.claim("a word ahead of the tile before", ~(sends & first) | ~waits)
        self.claim("the words of a tile follow each other", ~(walk.on & ~first) | sends)
        self.claim("the next tile is sent as soon as it may be", ~(walk.on & ~waits) | sends)
        self.claim("a tile may be used when it is sent", dut.ready == (waits | (sends & last)))
        self.claim("a tile waits", self.peek("loaded") == waits)
        self.claim("none is begun when one waits", ~(waits & walk.on) | first)
        self.claim("free with the last word", dut.free == (~walk.on | walk.ends))
        begins = follow(m, self, sends & first, self.peek("latches")[:READ_LATENCY], "a tile")
        self.claim("the array latches the first word", dut.latch == begins)
        self.claim("words go to the array", dut.b == dut.read.data)
        self.cover("a tile is sent while one is used", sends & first & ago(m, dut.swap, 1, "used"))
        self.cover("the last tile", walk.on & walk.ends & ~walk.at_start("kc"))


@proves(
    "matrix/mm",
    {"rows of C": SMALLEST, "rows of C, with alignments": SMALLEST.replace(probability_bits=8)},
    Induction(20),
    cover=22,
    proven=("array", "rows", "weight_loader"),
)
class WrittenBench(Bench, unit=MmUnit):
    """Each row that is issued, and nothing else, is written to its place as the array's row of C, after a fixed number
    of cycles. The instruction is signalled when its last row is visible, and at no other time.

    The inputs of the matrix unit are free; nothing is assumed. One cycle, which may be any, is watched, with the row
    that is issued in it.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        layout = destination(config)
        issued = self.peek("rows.issued")
        bound = self.peek("rows.destination")
        leaves = ROW_LATENCY + array_latency(config)
        visible = leaves + rmw_latency(config)
        age, (there, row) = watch_cycle(m, self, visible, (issued, 1, "there"), (bound, layout, "row"))
        out, seen = age == leaves, age == visible
        self.claim("a row of C leaves for each that was issued", implies(out, dut.c.valid == there))
        self.claim("its place", implies(out & there, dut.c.address == row.address))
        self.claim("whether it overwrites", implies(out & there, dut.c.overwrite == row.overwrite))
        signal = Mux(there & row.last, row.signal, 0)
        self.claim("signalled when it is visible", implies(seen, dut.signal == signal))
        self.claim("it is what the array made", dut.c.psums.as_value() == self.peek("array.c"))
        if config.softmax:
            late = leaves - READ_LATENCY
            shift = Signal.like(dut.c.alignment)
            with m.If(age == leaves - late):
                m.d.sync += shift.eq(self.peek("rows.alignment").as_unsigned())
            self.claim("its alignment", implies(out, dut.c.alignment == shift))
        self._lines(leaves)
        self.cover("an instruction is signalled", seen & (signal != 0))
        self.cover("consecutive rows", out & there & dut.c.overwrite & issued)

    def _lines(self, leaves: int) -> None:
        """Claim the distance between the write and read addresses of delay lines: induction would start from others."""
        lengths = {"destinations": leaves}
        if self.config.softmax:
            lengths["alignment_delay"] = leaves - READ_LATENCY
        for name, cycles in lengths.items():
            distance = cycles - 2
            width = distance.bit_length()
            to, of = (self.peek(f"{name}.{place}") for place in ("store__addr", "fetch__addr"))
            self.claim(f"length of {name}", (to - of)[:width] == distance)
