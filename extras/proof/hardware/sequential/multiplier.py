"""Properties of `weft.hdl.sequential.multiplier`: products, and rows of products that are added to the accumulator."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import ago, implies, latch
from weft.extras.proof.hardware.property import Bench, Bounded, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.sequential.multiplier import Multiplier, Rows, digits

_BITS = 4
"""Width of the multiplier. The unit treats all digits alike, and a proof of wide ones takes too long."""
_MULTIPLICAND_BITS = 6
_PRODUCT_BITS = 34 + 2 * digits(_BITS, 0)
_MAGNITUDE_BITS = 30
"""Bits of a saturated result without its sign."""
_DEPTH = 9


@proves("sequential/multiplier", f"products of {_MULTIPLICAND_BITS} and {_BITS} bits", Bounded(_DEPTH), _BITS)
class MultiplierBench(Bench, unit=Multiplier):
    """The product, plus the one that is kept, is shifted right by any number, rounded down, and saturated or taken
    modulo 2**32. With it comes its rounding bit, to nearest even or up, in the documented number of cycles.

    Multiplier and multiplicand have few bits; shift and the kept product are unconstrained. Assumed: there is at most
    one command a cycle, and only while the unit is ready; a product that is kept was shifted by 0 and has 34 bits.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        strobes = Cat(dut.set_multiplicand, dut.set_shift, dut.start)
        self.assume(~strobes.any() | dut.ready & ((strobes & (strobes - 1)[:3]) == 0))
        exact, begun = Signal(signed(_PRODUCT_BITS), name="exact"), Signal(name="begun")
        given_shift, shift = Signal(6, name="given"), Signal(7, name="expected_shift")
        small = exact[33:].all() | ~exact[33:].any()
        self.assume(~(dut.start & dut.keep) | begun & (shift == 0) & small)
        few = dut.value[_MULTIPLICAND_BITS - 1 : 32]
        self.assume(~dut.set_multiplicand | few.all() | ~few.any())
        whole = given_shift | dut.shift
        multiplier = self.dut.value[:_BITS]
        factor = latch(m, dut.set_multiplicand, dut.value, signed(_MULTIPLICAND_BITS), "factor", reset=False)
        with m.If(dut.set_shift):
            m.d.sync += given_shift.eq(dut.shift)
        left = Signal(range(32), name="left")
        with m.If(dut.start):
            product = (factor * multiplier) << whole[0]
            m.d.sync += [
                exact.eq(product + Mux(dut.keep, exact, 0)),
                shift.eq(whole + whole[0]),
                given_shift.eq(0),
                begun.eq(1),
                left.eq(digits(_BITS, 0) + whole[3:] + whole[1:3] + whole[0] + 1),
            ]
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        self.claim("ready in time", dut.ready == (left == 0))
        there = dut.ready & begun
        self._claim_results(there, exact, shift)
        self.cover("a negative product", there & (exact < 0) & (shift == 2))
        self.cover("a result of 0 that is rounded up", there & dut.round & (dut.result == 0))

    def _claim_results(self, there: Value, exact: Signal, shift: Signal) -> None:
        dut = self.dut
        low: Value = exact >> shift
        fits = dut.raw | low[_MAGNITUDE_BITS:].all() | ~low[_MAGNITUDE_BITS:].any()
        most = Mux(exact < 0, -(1 << _MAGNITUDE_BITS), 1 << _MAGNITUDE_BITS)
        self.claim("result", implies(there, dut.result == Mux(fits, low[:32], most)[:32]))
        guard = (Cat(0, exact).as_signed() >> shift)[0]
        lost = (Cat(0, exact) & ((1 << shift) - 1)) != 0
        up = fits & guard & (dut.raw | lost | low[0])
        self.claim("what rounds it", implies(there, dut.round == up))


_SETS = ("a", "a_step", "c", "c_step", "x", "x_step", "bound")
_WRITE_CYCLES = 4
"""Cycles from a row's read to its write."""


@proves(
    "sequential/rows",
    {
        "products of bytes": SMALLEST,
        "products of bytes less a zero point": SMALLEST.replace(probability_bits=8),
    },
    Induction(8),
)
class RowsBench(Bench, unit=Rows):
    """For any number of rows, places and strides, each row's vector is read at its address, or replaced by the padding
    if its coordinate is out of range. Its products with all columns of weights, as they were set last, are added
    exactly to its row of the accumulator, or to zero, and written there, once.

    The inputs are free. Assumed, as the microprogram guarantees: nothing is set, and nothing begins, while rows are
    under way. A row is followed from the cycle of its read: its place and coordinate are those of the first row plus a
    stride for each row since; rows of the accumulator count where their place was set since the reset. Data of both
    memories come a cycle after their addresses. The proof is cut at the registers of products.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.left = Signal(12, name="rows_left")
        self.on = Signal(name="on")
        under_way = Cat(
            *(ago(m, self.on, k, f"on{k}", reset=True) for k in range(1, _WRITE_CYCLES + 1))
        ).any()
        strobes = [dut.start, dut.step_a, dut.read_c, dut.weight, dut.set_mode, dut.set_row_valid]
        strobes += [getattr(dut, f"set_{name}") for name in _SETS]
        self.assume(~(self.on | under_way) | ~Cat(*strobes).any())
        total, number = Signal(12, name="rows"), Signal(12, name="number")
        with m.If(dut.start):
            m.d.sync += [total.eq(dut.value), number.eq(0)]
        with m.Elif(self.on):
            m.d.sync += number.eq(number + 1)
        m.d.comb += self.on.eq(number != total)
        self.claim("a row a cycle", dut.active == self.on)
        self.claim("done when no row enters", dut.done == ~self.on)
        self.claim("rows that are left", self.peek("count") == (total - number)[:12])
        self._claim_reads(m)
        self._claim_sums(m)

    def _latch(self, m: Module, name: str, width: int) -> Signal:
        """Return the value that was set last."""
        setting = latch(
            m, getattr(self.dut, f"set_{name}"), self.dut.value, width, f"set_to_{name}", reset=False
        )
        return setting

    def _walk_value(self, m: Module, name: str, width: int, moves: Value) -> Signal:
        """Return the value that was set, plus a stride for each of its moves since."""
        step = self._latch(m, f"{name}_step", 8 if name == "x" else width)
        value = Signal(width, name=f"walked_{name}", reset_less=True)
        with m.If(getattr(self.dut, f"set_{name}")):
            m.d.sync += value.eq(self.dut.value)
        with m.Elif(moves):
            m.d.sync += value.eq(value + step.as_signed())
        self.claim(f"the stride of {name}", self.peek(f"{name}_step").as_unsigned() == step)
        return value

    def _claim_reads(self, m: Module) -> None:
        """Claim the addresses of reads, and which rows are in range."""
        dut, widths = self.dut, self.config.widths
        self._claim_modes(m)
        reads = self.on | dut.step_a
        a = self._walk_value(m, "a", widths.scratchpad_address, reads)
        self.claim("a vector is read", dut.vector_read == reads)
        self.claim("where it is", implies(reads, dut.vector_address == a))
        self.claim("the next vector", self.peek("a") == a)

        x, bound = self._walk_value(m, "x", 16, self.on), self._latch(m, "bound", 16)
        self.claim("the coordinate", self.peek("x") == x)
        self.claim("its limit", self.peek("bound") == bound)
        inside = (x.as_signed() >= 0) & (x < bound)
        self.claim("whether it is in range", dut.in_range == inside)
        line = latch(m, dut.set_row_valid, inside, 1, "line_in_range")
        self.claim("whether the line is", self.peek("row_valid") == line)
        self.inside = inside & line
        self._claim_rows(m)

    def _claim_rows(self, m: Module) -> None:
        dut, stages = self.dut, self.peek("stages")
        c = self._walk_value(m, "c", self.config.widths.accumulator_address, self.on)
        for k in range(4):
            self.claim(f"rows in stage {k}", stages[k] == ago(m, self.on, k + 1, f"stage{k}", reset=True))
        # The unit steps when it reads the row, so it lags by a stride for each row that is not read yet.
        # A reset in between leaves it so, until it is set.
        known = latch(m, dut.set_c, 1, 1, "c_known")
        late, step = self.peek("c"), self.peeks["c_step"]
        place = c
        for k in range(_WRITE_CYCLES - 1):
            moved = ago(m, place, 1, f"place{k}")
            ahead = sum((Mux(stages[other], step, 0) for other in range(k + 1, _WRITE_CYCLES - 1)), Const(0))
            self.claim(
                f"the place of rows in stage {k}",
                implies(known & stages[k], (late + ahead)[: len(c)] == moved),
            )
            place = moved
        total = sum((Mux(stages[k], step, 0) for k in range(_WRITE_CYCLES - 1)), Const(0))
        self.claim("the next row", implies(known, (late + total)[: len(c)] == c))
        self.claim("a row is read", dut.row_read == (stages[2] | dut.read_c))
        self.claim("the row", implies(known & stages[2] & ~self.overwrite, dut.row_address == place))
        self.claim("a row of zeros", implies(self.overwrite, dut.row_address == 1 << len(c)))
        self.claim(
            "a row that is asked for", implies(known & dut.read_c & ~self.overwrite, dut.row_address == c)
        )
        self.writes = stages[3]
        self.claim("a row is written", dut.row_write == (self.writes & ~self.quiet))
        where = Mux(self.zeros, 1 << len(c), ago(m, place, 1, "written"))
        self.claim("where it is written", implies(known & self.writes, dut.row_written == where))
        self.cover(
            "the last one is written", self.writes & ~self.quiet & (dut.row_written == 5) & ~self.on & known
        )

    def _claim_modes(self, m: Module) -> None:
        mode, fill = Signal(3, name="mode"), Signal(16, name="fill", reset_less=True)
        with m.If(self.dut.set_mode):
            m.d.sync += [mode.eq(self.dut.value), fill.eq(self.dut.value[8:])]
        self.quiet, self.overwrite, self.zeros = mode
        self.pad, self.zero = fill[:8].as_signed(), fill[8:].as_signed()
        for name in ("quiet", "overwrite", "zeros"):
            self.claim(f"mode {name}", self.peek(name) == getattr(self, name))
        self.claim("the padding", self.peek("pad") == self.pad)
        self.claim("the zero point", self.peek("zero") == self.zero)

    def _claim_sums(self, m: Module) -> None:
        """Claim that a row of the accumulator gets the products of the vector and each column of weights."""
        dut, config, n = self.dut, self.config, self.config.n
        width = config.widths.activation
        valid = self.peek("valid")
        here = ago(m, self.inside, 1, "inside", reset=True)
        self.claim("in range on the way", valid[0] == here)
        held, columns = self.peek("held"), []
        for k in range(n):
            byte = Mux(here, dut.vector.word_select(k, 8).as_signed(), self.pad)
            operand = byte - self.zero if config.wide_activations else byte
            due = ago(m, operand, 1, f"operand{k}", reset=False)
            self.claim(f"operand {k}", held.word_select(k, width).as_signed() == due.as_signed())
        for j in range(n):
            weights = latch(
                m, dut.weight & (dut.weight_column == j), dut.vector, 8 * n, f"column{j}", reset=False
            )
            there = self.peek(f"weights{j}")
            self.claim(f"weights {j}", there == weights)
            total: Value = Const(0)
            for k in range(n):
                product = self.peek(f"product{j}_{k}")
                made = held.word_select(k, width).as_signed() * there.word_select(k, 8).as_signed()
                self.claim(f"product {j} {k}", product == ago(m, made, 1, f"made{j}_{k}").as_signed())
                total = total + product
            columns.append(total)
        for j, total in enumerate(columns):
            summed = ago(m, total, 1, f"total{j}").as_signed()
            self.claim(f"sum {j}", implies(self.writes, dut.sums[j] == summed))
            result = dut.row.word_select(j, 32).as_signed() + dut.sums[j]
            self.claim(f"column {j} of the row", dut.row_data.word_select(j, 32) == result[:32])
            self.cover(f"a sum {j}", self.writes & (dut.sums[j] < -20000))
