"""Properties of `weft.hdl.matrix`: rows of processing elements, the array, and the alignments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, Property
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.matrix.array import Array
from weft.hdl.matrix.mm import Alignments
from weft.hdl.matrix.pe import PeRow


class Weight:
    """Model of the weight of one column of a row, as `weft.hdl.matrix.pe.PeRow` documents it, without delays to the
    column: `value` is the weight for an activation in the cycle in which that enters the row.

    Column c takes the word of B that comes c cycles after `latch`; `swap` activates the word that was sent last before
    it.

    Attributes
    ----------
    value, known : value
        The weight, and whether one was sent and swapped since the last reset.
    sent, sent_known : Signal
        The weight that was sent last, and whether one was sent since the last reset.
    """

    def __init__(self, m: Module, latch: Value, swap: Value, b: Value, column: int, name: str) -> None:
        self.sent = Signal(signed(8), name=f"sent_{name}", reset_less=True)
        self.sent_known = Signal(name=f"sent_known_{name}")
        used = Signal(signed(8), name=f"used_{name}", reset_less=True)
        used_known = Signal(name=f"used_known_{name}")
        with m.If(ago(m, latch, column, f"latch_{name}", reset=True)):
            m.d.sync += [self.sent.eq(b), self.sent_known.eq(1)]
        self.value = Mux(swap, self.sent, used).as_signed()
        self.known = Mux(swap, self.sent_known, used_known)
        m.d.sync += [used.eq(self.value), used_known.eq(self.known)]


class RowBench(Bench):
    """Column c adds activation times weight to the sum from above in the documented cycle, for all operands; the weight
    is word c of the last tile that was sent before the last swap.

    The inputs are free; activations of 9 bits are at least -255, as users guarantee. The claims form a chain that is
    cut at the unit's registers, because solvers prove products equal only if their operands are: a column's activation,
    its active weight, their product, and the sum of the product and the value from above.
    """

    UNIT = PeRow

    def watch(self, m: Module) -> None:
        row, columns = self.dut, self.dut.groups
        self.free_inputs(m)
        if row.activation_width == 9:
            self.assume(row.a >= -255)
        for name in ("latch", "swap"):
            pulse = getattr(row, name)
            self.claim(f"{name} below", getattr(row, f"{name}_below") == ago(m, pulse, 1, name, reset=True))
        activations = self.peek("a_stages", row.activation_width * columns)
        for c in range(columns):
            a = activations.word_select(c, row.activation_width).as_signed()
            self.claim(f"activation {c}", a == ago(m, row.a, c + 1, f"a{c}"))
            self._claim_column(m, c, a)

    def _claim_column(self, m: Module, c: int, a: Value) -> None:
        row = self.dut
        active = self.peek(f"active{c}", 8).as_signed()
        product = self.peek(f"product{c}", 16).as_signed()
        known = claim_weights(m, self, row, c, self.peek(f"shadow{c}", 8), active, c, str(c))
        self.claim(f"product {c}", product == ago(m, a * active, 1, f"made{c}"))
        total = Signal(signed(row.psum_width), name=f"total{c}")
        m.d.comb += total.eq(row.above[c] + product)
        below = ago(m, total, 1, f"sum{c}")
        self.claim(f"sum of column {c}", row.below[c] == below)
        self.cover(f"sum of column {c}", ago(m, known, 2, f"known_sum{c}", reset=True) & (row.below[c] != 0))


@dataclass(frozen=True)
class Entry:
    """Inputs of a row."""

    a: Value
    b: Value
    latch: Value
    swap: Value


def claim_weights(
    m: Module, bench: Bench, row: Any, column: int, shadow: Value, active: Value, late: int, name: str
) -> Value:
    """Claim that the registers `shadow` and `active` of a column hold its weights, `late` cycles after their entry in
    `row`.

    Returns whether `active` is known.
    """
    weight = Weight(m, row.latch, row.swap, row.b, column, f"column{name}")
    sent = ago(m, weight.sent, late, f"sent{name}")
    sent_known = ago(m, weight.sent_known, late, f"sent_known{name}", reset=True)
    used = ago(m, weight.value, late + 1, f"weight{name}")
    known = ago(m, weight.known, late + 1, f"weight_known{name}", reset=True)
    bench.claim(f"shadow {name}", implies(sent_known, shadow.as_unsigned() == sent.as_unsigned()))
    bench.claim(f"active {name}", implies(known, active.as_unsigned() == used.as_unsigned()))
    return known


class ArrayBench(Bench):
    """A row of C is the product of the row of A that entered `latency` cycles before and the tile that was sent before
    its swap, exactly and for all operands.

    The inputs are free, and the proof is cut at the registers, as in `RowBench`. Weights follow their documentation for
    all pulses. If the words of a tile enter in N consecutive cycles, its first row of A comes at least N cycles after
    word 0, and word 0 of the next tile not before that row, then by `Weight` each column uses the tile that was sent
    last.
    """

    UNIT = Array

    def watch(self, m: Module) -> None:
        array, n, width = self.dut, self.dut.config.n, self.dut.config.widths.activation
        self.free_inputs(m)
        totals: list[Value] = [Const(0)] * n
        everything: Value = Const(1)
        for r in range(n):
            entering = array.a.word_select(r, width).as_signed()
            if width == 9:
                self.assume(entering >= -255)
            row = Entry(entering, array.b.word_select(r, 8), array.latch, array.swap)
            activations = self.peek(f"row{r}.a_stages", width * n)
            for c in range(n):
                late = r + c  # behind the entry into the array
                a = activations.word_select(c, width).as_signed()
                self.claim(f"activation {r} {c}", a == ago(m, entering, late + 1, f"a{r}_{c}"))
                shadow, active = (self.peek(f"row{r}.{name}{c}", 8) for name in ("shadow", "active"))
                known = claim_weights(m, self, row, c, shadow, active, late, f"{r}_{c}")
                product = self.peek(f"row{r}.product{c}", 16).as_signed()
                made = ago(m, a * active.as_signed(), 1, f"made{r}_{c}")
                self.claim(f"product {r} {c}", product == made)
                behind = array.latency - late - 2
                totals[c] = totals[c] + ago(m, product, behind, f"product{r}_{c}").as_signed()
                everything &= ago(m, known, array.latency - late - 1, f"known{r}_{c}", reset=True)
        for c in range(n):
            self.claim(f"column {c}", array.c[c] == totals[c])
            self.cover(f"column {c}", everything & (array.c[c] < 0))


class AlignmentsBench(Bench):
    """A read returns the value that was written last to its address in an earlier cycle, in the documented cycle; no
    access waits.

    One address, which may be any, is watched: `READ_LATENCY` cycles after a read of it comes the value that was written
    to it last since the reset.
    """

    UNIT = Alignments

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        watched = self.constant(m, len(dut.write.address), "watched")
        content, known = Signal.like(dut.write.data, name="kept", reset_less=True), Signal()
        with m.If(dut.write.valid & (dut.write.address == watched)):
            m.d.sync += [content.eq(dut.write.data), known.eq(1)]
        self.claim("writes are granted", dut.write.ready)
        both: Value = Const(1)
        for name in ("mm", "vec"):
            port = getattr(dut, name)
            read = ago(
                m, port.valid & (port.address == watched) & known, READ_LATENCY, f"read_{name}", reset=True
            )
            self.claim(f"reads of {name} are granted", port.ready)
            due = ago(m, content, READ_LATENCY, f"due_{name}")
            self.claim(f"{name} reads what was written", implies(read, port.data == due))
            both &= read & port.data.all() & (due != ago(m, due, 1, f"old_{name}"))
        # One cover for both ports: ABC's search for several outputs fails here.
        self.cover("both read what was new when they did", both)


def properties() -> Iterator[Property]:
    yield AlignmentsBench.proves(
        "matrix/alignments", "memory of 16", Invariant(), Config(n=2, lanes=2, bus_bytes=4, alignments=16)
    )
    for columns, width, psum in ((1, 8, 17), (3, 9, 18)):
        yield RowBench.proves(
            "matrix/pe",
            f"sums of {columns} columns, activations of {width} bits",
            Induction(8),
            columns,
            width,
            psum,
        )
    for bits in (7, 8):
        yield ArrayBench.proves(
            "matrix/array",
            f"product of 2 x 2, probabilities of {bits} bits",
            Induction(10),
            Config(n=2, lanes=2, bus_bytes=4, probability_bits=bits),
        )
