"""Properties of `weft.hdl.matrix.array`: sums along the rows of the array, for depthwise convolutions."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.matrix import Entry, claim_product
from weft.extras.proof.hardware.pipelines import ago, implies, latch
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.hdl.isa.config import Config
from weft.hdl.matrix.array import Array

_N, _TAPS = 4, 2
_COLUMNS = tuple(_N - 2 * (_TAPS - tap) for tap in range(_TAPS))
"""Columns of the array that the taps use."""
_PRODUCT = 2
"""Cycles from an activation's entry into its row to the product in column 0; each later column takes one more."""


@proves(
    "matrix/array",
    "sums of two taps along rows of 4",
    Induction(12),
    Config(n=_N, lanes=2, bus_bytes=4, probability_bits=7, depthwise_taps=_TAPS),
    part=True,
)
class AlongBench(Bench, unit=Array):
    """Element k of the row of C is the sum of products of element k of this row of A and the one before, for those
    since the start of the line, with the words of B for their taps, exactly and for all operands, in the cycle in which
    products of the array come.

    The inputs of an array of 4 x 4 with two taps are free, and nothing is assumed: rows of both kinds, and cycles
    without a row, follow in any order. The proof is cut at the registers, as in `weft.extras.proof.hardware.matrix`.
    Claims are about depthwise rows after another depthwise row or at the start of a line. A register of row k holds the
    first tap's sum for the previous row of A; induction starts from it.
    """

    def watch(self, m: Module) -> None:
        array = self.dut
        shown = self.peek("flags")
        flags = Cat(array.valid, array.depthwise, array.start)
        for age in range(1, 10):
            due = ago(m, flags, age, f"flags{age}")
            self.claim(f"flags of {age} cycles ago", shown[3 * age - 3 : 3 * age] == due)
        for r in range(_N):
            self._claim_row(m, r)

    def _flag(self, m: Module, name: str, cycles: int, r: int) -> Value:
        return ago(m, getattr(self.dut, name), cycles, f"{name}{cycles}_{r}")

    def _claim_row(self, m: Module, r: int) -> None:
        array = self.dut
        entry = Entry(
            array.a.word_select(r, 8).as_signed(), array.b.word_select(r, 8), array.latch, array.swap
        )
        products, known = zip(
            *(claim_product(m, self, entry, f"row{r}.", c, r + c, 8, _N) for c in _COLUMNS), strict=True
        )
        psum = array.config.widths.psum
        here = r + _COLUMNS[1] + _PRODUCT  # cycles from the entry to the product of the second tap
        self._claim_flags(m, r)
        first = self.peek(f"row{r}.psum{_COLUMNS[0]}")
        along = self._flag(m, "depthwise", here - 1, r)
        product = ago(m, products[0], 1, f"first{r}").as_signed()
        self.claim(f"the first tap begins anew {r}", implies(along, first == product))

        valid, start = (self._flag(m, name, here, r) for name in ("valid", "start"))
        before = Signal(signed(psum), name=f"before{r}", reset_less=True)
        of_this_path = Signal(name=f"of_this_path{r}")  # the previous row was depthwise
        own, depthwise = ago(m, first, 1, f"own{r}").as_signed(), ago(m, along, 1, f"along_of{r}")
        earlier = ago(m, products[0], _COLUMNS[1] - _COLUMNS[0], f"earlier{r}")
        with m.If(valid):
            m.d.sync += [before.eq(own), of_this_path.eq(depthwise)]
        stages = [self.peek(f"held{r}_{_COLUMNS[1]}_0_{stage}").as_signed() for stage in range(2)]
        self.claim(f"the one before {r}", Mux(valid, stages[1], stages[0]) == before)
        self.claim(f"its own {r}", implies(valid, stages[0] == own))

        # The product of the first tap for the row of A before, since the last reset.
        last = latch(m, valid, earlier, 16, f"last{r}", reset=False)
        self.claim(f"the sum before is its product {r}", implies(of_this_path, before == last.as_signed()))
        total = products[1] + Mux(start, 0, last.as_signed())
        claimed = valid & depthwise & (start | of_this_path)
        self._claim_sum(
            m, r, here, total, claimed, ago(m, known[0] & known[1], 1, f"known_products{r}", reset=True)
        )

    def _claim_sum(self, m: Module, r: int, here: int, total: Value, claimed: Value, known: Value) -> None:
        """Claim that the sum is element `r` of the row of C."""
        array = self.dut
        late = array.latency - here
        comes = ago(m, claimed, late, f"comes{r}", reset=True)
        due = ago(m, total, late, f"due{r}").as_signed()
        self.claim(f"element {r}", implies(comes, array.c[r] == due))
        there = comes & ago(m, known, late, f"known{r}", reset=True)
        self.cover(f"a negative element {r}", there & (array.c[r] < -20000))

    def _claim_flags(self, m: Module, r: int) -> None:
        flags = Cat(self.dut.valid, self.dut.depthwise, self.dut.start)
        least = r + _COLUMNS[0] + _PRODUCT
        near, along = self.peek(f"near{r}"), self.peek(f"along{r}")
        self.claim(f"near {r}", near == ago(m, flags, least, f"near{r}"))
        for age in range(4):
            due = ago(m, flags, least + 1 + age, f"along{r}_{age}")
            self.claim(f"along {r} {age}", along.word_select(age, 3) == due)
