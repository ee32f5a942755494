"""Properties of `weft.hdl.matrix`: rows of processing elements, the array, and the alignments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
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


@proves("matrix/alignments", "memory of 16", Invariant(), Config(n=2, lanes=2, bus_bytes=4, alignments=16))
class AlignmentsBench(Bench, unit=Alignments):
    """A read returns the value that was written last to its address in an earlier cycle, in the documented cycle; no
    access waits.

    One address, which may be any, is watched: `READ_LATENCY` cycles after a read of it comes the value that was written
    to it last since the reset.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        watched = self.constant(m, len(dut.write.address), "watched")
        content = Signal.like(dut.write.data, name="kept", reset_less=True)
        known = Signal()
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


@proves(
    "matrix/pe",
    {
        f"sums of {columns} columns, activations of {width} bits": (columns, width, psum)
        for columns, width, psum in ((1, 8, 17), (3, 9, 18))
    },
    Induction(8),
)
class RowBench(Bench, unit=PeRow):
    """Column c adds activation times weight to the sum from above in the documented cycle, for all operands; the weight
    is word c of the last tile that was sent before the last swap.

    The inputs are free; activations of 9 bits are at least -255, as users guarantee. The claims form a chain that is
    cut at the unit's registers, because solvers prove products equal only if their operands are: a column's activation,
    its active weight, their product, and the sum of the product and the value from above.
    """

    def watch(self, m: Module) -> None:
        row, columns = self.dut, self.dut.groups
        if row.activation_width == 9:
            self.assume(row.a >= -255)
        claim_pulses(m, self)
        for c in range(columns):
            product, known = claim_product(m, self, row, "", c, c, row.activation_width, columns)
            total = Signal(signed(row.psum_width), name=f"total{c}")
            m.d.comb += total.eq(row.above[c] + product)
            self.claim(f"sum of column {c}", row.below[c] == ago(m, total, 1, f"sum{c}"))
            there = ago(m, known, 2, f"known_sum{c}", reset=True)
            self.cover(f"sum of column {c}", there & (row.below[c] != 0))


def claim_pulses(m: Module, bench: Bench) -> None:
    """Claim that a row passes `latch` and `swap` on to the row below, a cycle later."""
    for name in ("latch", "swap"):
        below = getattr(bench.dut, f"{name}_below")
        bench.claim(f"{name} below", below == ago(m, getattr(bench.dut, name), 1, name, reset=True))


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


def claim_product(
    m: Module, bench: Bench, row: Any, path: str, column: int, late: int, width: int, columns: int
) -> tuple[Value, Value]:
    """Claim the registers of a column of the row at `path`: its activation, its weights and their product.

    `late` and the results are those of `claim_weights`, with the register of the product before them.
    """
    name = f"{path}{column}".replace(".", "_")
    a = bench.peek(f"{path}a_stages").word_select(column, width).as_signed()
    bench.claim(f"activation {name}", a == ago(m, row.a, late + 1, f"a_{name}"))
    shadow, active = (bench.peek(f"{path}{kind}{column}").as_unsigned() for kind in ("shadow", "active"))
    known = claim_weights(m, bench, row, column, shadow, active, late, name)
    product = bench.peek(f"{path}product{column}")
    bench.claim(f"product {name}", product == ago(m, a * active.as_signed(), 1, f"product_{name}"))
    return product, known


@proves(
    "matrix/array",
    {
        f"product of 2 x 2, probabilities of {bits} bits": Config(
            n=2, lanes=2, bus_bytes=4, probability_bits=bits
        )
        for bits in (7, 8)
    },
    Induction(10),
)
class ArrayBench(Bench, unit=Array):
    """A row of C is the product of the row of A that entered `latency` cycles before and the tile that was sent before
    its swap, exactly and for all operands.

    The inputs are free, and the proof is cut at the registers, as in `RowBench`. Weights follow their documentation for
    all pulses. If the words of a tile enter in N consecutive cycles, its first row of A comes at least N cycles after
    word 0, and word 0 of the next tile not before that row, then by `Weight` each column uses the tile that was sent
    last.
    """

    def products(self, m: Module, r: int, entry: Entry) -> Iterator[tuple[Value, Value, int]]:
        """Claim the products of row `r`.

        Yields, by column, the register of the product, whether its weight is known, and its cycles after the entry.
        """
        n, width = self.config.n, self.config.widths.activation
        for c in range(n):
            product, known = claim_product(m, self, entry, f"row{r}.", c, r + c, width, n)
            yield product, ago(m, known, 1, f"product_known{r}_{c}", reset=True), r + c + 2

    def watch(self, m: Module) -> None:
        array, n, width = self.dut, self.config.n, self.config.widths.activation
        totals: list[Value] = [Const(0)] * n
        everything: Value = Const(1)
        for r in range(n):
            entering = array.a.word_select(r, width).as_signed()
            if width == 9:
                self.assume(entering >= -255)
            entry = Entry(entering, array.b.word_select(r, 8), array.latch, array.swap)
            for c, (product, known, cycles) in enumerate(self.products(m, r, entry)):
                left = array.latency - cycles
                totals[c] = totals[c] + ago(m, product, left, f"term{r}_{c}").as_signed()
                everything &= ago(m, known, left, f"known{r}_{c}", reset=True)
        for c in range(n):
            self.claim(f"column {c}", array.c[c] == totals[c])
            self.cover(f"column {c}", everything & (array.c[c] < 0))
