"""The arithmetic of the sequential core: a serial multiplier and shifter, and the array of a row of products."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib.arithmetic import INFERRED, Multipliers

_FIT = 30
"""Bits of the saturated result without its sign: less than 31, so that rounding up cannot overflow."""


def digits(bits: int, signed_bits: int) -> int:
    """Return the number of two-bit digits of a multiplier; the top bit of the last digit is a sign."""
    return max(bits, signed_bits) // 2 + 1


class Multiplier(wiring.Component):
    """Serial multiplier and shifter that computes ``(multiplicand * multiplier + addend) / 2**shift``.

    It takes one cycle for each digit of the multiplier (see `digits`), one for every 8 places of `shift`, one for every
    2 remaining places, and one at the end.

    Digits are -1, 0, 1 and 2, so that each takes one addition: a digit of 3 or 4 is reduced by 4 and carries 1 into the
    next digit. With an odd shift the multiplier is doubled and shifted by one more place, so that all shifts are by 2
    or 8 places.

    Parameters
    ----------
    bits : int
        Bits of the multiplier.
    signed_bits : int
        Bits of the multiplier with `wide`, or 0 for no `wide`.

    Members
    -------
    value : In(32)
        Operand of the strobes below.
    set_multiplicand : In(1)
        Set the multiplicand to `value`, signed.
    set_shift, shift : In(1), In(6)
        Set the shift of the next start.
    start : In(1)
        Start with multiplier `value`, unsigned. The shift is `shift` unless it was set before.
    keep : In(1)
        With `start`: the addend is the last product, or half of it if the shift is odd; otherwise it is 0. The last
        product must have been shifted by 0.
    wide : In(1)
        With `start`: the multiplier is signed and has `signed_bits` bits; the shift must have been set before. The
        result is saturated to 32 bits after rounding.
    ready : Out(1)
        The results below are valid.
    raw : In(1)
        Do not saturate, and round halves up.
    result : Out(32)
        Rounded down, and saturated to 31 bits; with `raw` modulo 2**32.
    round : Out(1)
        Increment of `result` that rounds half to even, with `raw` half up; 0 if it was saturated.
    """

    def __init__(self, bits: int, signed_bits: int = 0) -> None:
        self.unsigned_bits, self.signed_bits = bits, signed_bits
        self.digits = digits(bits, signed_bits)
        super().__init__(
            {
                **({"wide": In(1)} if signed_bits else {}),
                "value": In(32),
                "set_multiplicand": In(1),
                "set_shift": In(1),
                "shift": In(6),
                "start": In(1),
                "keep": In(1),
                "ready": Out(1),
                "result": Out(32),
                "raw": In(1),
                "round": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        multiplicand = Signal(signed(32), reset_less=True)
        # `low` holds the remaining bits of the multiplier and, entering from the top, the low bits of the product.
        high = Signal(signed(34), reset_less=True)
        low = Signal(2 * self.digits, reset_less=True)
        product = Cat(low, high).as_signed()
        left = Signal(range(self.digits + 1))
        remaining_shift = Signal(6)
        going = Signal()
        guard = Signal(reset_less=True)
        sticky = Signal(reset_less=True)
        with m.If(self.set_multiplicand):
            m.d.sync += multiplicand.eq(self.value)
        multiplies = Signal()
        odd = Signal()
        start_shift = Signal(6)
        m.d.comb += [
            multiplies.eq(left != 0),
            self.ready.eq(~going),
            # `remaining_shift` is 0 after a product, unless it has been set since.
            start_shift.eq(
                remaining_shift | (Mux(self.wide, 0, self.shift) if self.signed_bits else self.shift)
            ),
            odd.eq(start_shift[0]),
        ]
        total = self._total(m, multiplies, low, high, multiplicand)
        value: Value = self.value[: self.unsigned_bits]
        if self.signed_bits:
            value = Mux(self.wide, self.value[: self.signed_bits].as_signed(), value)
        with m.If(self.set_shift):
            m.d.sync += remaining_shift.eq(self.shift)
        # First all digits of the multiplier, then the shift.
        with m.If(self.start):
            m.d.sync += [
                going.eq(1),
                left.eq(self.digits),
                low.eq(Mux(odd, value << 1, value)),
                high.eq(Mux(self.keep, product[:34], 0)),
                Cat(guard, sticky).eq(0),
                remaining_shift.eq(start_shift),
            ]
        with m.Elif(going & ~multiplies & remaining_shift[3:].any()):
            m.d.sync += [
                Cat(low, high).eq(product >> 8),
                guard.eq(product[7]),
                sticky.eq(sticky | guard | product[:7].any()),
                remaining_shift[3:].eq(remaining_shift[3:] - 1),
            ]
        with m.Elif(going & (multiplies | remaining_shift[:3].any())):
            # A shift by two places is a digit of 0.
            m.d.sync += [low.eq(Cat(low[2:], total[:2])), high.eq(total >> 2)]
            with m.If(multiplies):
                m.d.sync += left.eq(left - 1)
            with m.Else():
                m.d.sync += [
                    guard.eq(product[1]),
                    sticky.eq(sticky | guard | product[0]),
                    remaining_shift[0].eq(0),
                ]
                with m.If(~remaining_shift[0]):
                    m.d.sync += remaining_shift[1:3].eq(remaining_shift[1:3] - 1)
        with m.Else():
            m.d.sync += going.eq(0)
        self._results(m, product, guard, sticky)
        return m

    def _total(
        self, m: Module, multiplies: Signal, low: Signal, high: Signal, multiplicand: Signal
    ) -> Signal:
        """Return the sum of `high` and the next digit times the multiplicand."""
        carry = Signal()
        digit = Signal(2)
        addend = Signal(signed(34))
        total = Signal(signed(35))
        with m.If(self.start):
            m.d.sync += carry.eq(0)
        with m.Else():
            m.d.sync += carry.eq(multiplies & low[1] & (low[0] | carry))
        m.d.comb += digit.eq(Mux(multiplies, low[:2] + carry, 0))  # 3 is -1
        with m.Switch(digit):
            with m.Case(1):
                m.d.comb += addend.eq(multiplicand)
            with m.Case(2):
                m.d.comb += addend.eq(multiplicand << 1)
            with m.Case(3):
                m.d.comb += addend.eq(~multiplicand)
        # With digit -1, a 1 is added to the inverted multiplicand through a bit below it.
        m.d.comb += total.eq((Cat(1, high).as_signed() + Cat(digit.all(), addend).as_signed())[1:])
        return total

    def _results(self, m: Module, product: Value, guard: Signal, sticky: Signal) -> None:
        sign = product[-1]
        fits = Signal()
        m.d.comb += [
            fits.eq(self.raw | product[_FIT:].all() | ~product[_FIT:].any()),
            self.result.eq(Mux(fits, product[:32], Cat(Const(1 << _FIT, _FIT + 1), sign))),
            self.round.eq(fits & guard & (self.raw | sticky | product[0])),
        ]
        if not self.signed_bits:
            return
        whole = Signal()
        most = ~product[31] & product[:31].all()
        with m.If(self.start):
            m.d.sync += whole.eq(self.wide)
        with m.If(whole):
            m.d.comb += [
                fits.eq(product[31:].all() | ~product[31:].any()),
                self.result.eq(Mux(fits, product[:32], Cat((~sign).replicate(31), sign))),
                self.round.eq(fits & guard & (sticky | product[0]) & ~most),
            ]


STRIDE = 16


class Rows(wiring.Component):
    """Array of the sequential core: multiplies a vector a cycle by all weights, and adds to a row of the accumulator.

    Pipeline stages after the read of a vector: operands; products; sums, while the accumulator is read; write of the
    accumulator. Consecutive rows must differ.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers

    Members
    -------
    value : In(32)
        Operand of the strobes below.
    set_a, set_a_step, set_c, set_c_step, set_x, set_x_step, set_bound : In(1)
        Set the first vector, row and coordinate, and their strides. A vector is in range if ``0 <= x < bound``.
    set_mode : In(1)
        Bit 0: do not write sums. Bit 1: replace rows of the accumulator by 0. Bit 2: write the row of zeros. Byte 1:
        bytes of vectors out of range. Byte 2: zero point.
    set_row_valid : In(1)
        If the coordinate is out of range in this cycle, all vectors are.
    step_a : In(1)
        Read the vector at `a`, and step.
    start : In(1)
        Start this number of rows.
    weight, weight_column : In(1), In(range(N))
        The vector that was read last is this column of weights. Columns come in order, from 0 on.
    vector_address, vector_read : Out, Out(1)
        Read of the scratchpad.
    vector : In(8 * N)
        The vector, one cycle later.
    read_c : In(1)
        Read the row at `c`.
    row_address, row_read : Out, Out(1)
        Read of the accumulator.
    row : In(32 * N)
        The row, one cycle later.
    row_write, row_written, row_data : Out(1), Out, Out(32 * N)
        Write a row to address `row_written`. While no rows are in flight, this address is `c` of one cycle ago.
    sums : Out(32 per column)
        Sums of the last row.
    in_range : Out(1)
        The coordinate is in range.
    active : Out(1)
        A row enters.
    done : Out(1)
        No row enters. The rows in flight are complete when the next word of the microprogram reaches a unit.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        self.config, self.multipliers = config, multipliers
        n, widths = config.n, config.widths
        strobes = (
            "set_a", "set_a_step", "set_c", "set_c_step", "set_x", "set_x_step", "set_bound", "set_mode",
            "set_row_valid", "step_a", "read_c", "start", "weight",
        )  # fmt: skip
        # One more row, which stays 0: to overwrite a row is to add to zeros.
        address = widths.accumulator_address + 1
        super().__init__(
            {
                "value": In(32),
                **{name: In(1) for name in strobes},
                "weight_column": In(range(n)),
                "vector_address": Out(widths.scratchpad_address),
                "vector_read": Out(1),
                "vector": In(widths.vector),
                "row_address": Out(address),
                "row_read": Out(1),
                "row": In(widths.row),
                "row_write": Out(1),
                "row_written": Out(address),
                "row_data": Out(widths.row),
                "sums": Out(data.ArrayLayout(signed(widths.psum), n)),
                "in_range": Out(1),
                "active": Out(1),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        widths, config = self.config.widths, self.config
        a = Signal(widths.scratchpad_address, reset_less=True)
        a_step = Signal(widths.scratchpad_address, reset_less=True)
        c = Signal(widths.accumulator_address, reset_less=True)
        c_step = Signal(widths.accumulator_address, reset_less=True)
        x = Signal(16, reset_less=True)
        bound = Signal(16, reset_less=True)
        x_step = Signal(signed(8), reset_less=True)
        row_valid = Signal()
        quiet = Signal()
        overwrite = Signal()
        zeros = Signal()
        pad = Signal(signed(8), reset_less=True)
        zero = Signal(signed(8), reset_less=True)
        count = Signal(12)
        stages = Signal(4)
        valid = Signal(3)
        m.d.comb += [
            self.active.eq(count != 0),
            self.done.eq(~self.active),
            self.in_range.eq(~x[-1] & (x < bound)),
            self.vector_address.eq(a),
            self.vector_read.eq(self.active | self.step_a),
            # The row of zeros is the first above the accumulator.
            self.row_address.eq(Cat(Mux(overwrite, 0, c), overwrite)),
            self.row_read.eq(stages[2] | self.read_c),
        ]
        m.d.sync += [
            # `stages[i]`: a row entered i + 1 cycles ago. Its vector is there with stage 0, its products with stage 2.
            stages.eq(Cat(self.active, stages)),
            valid.eq(Cat(self.in_range & row_valid, valid)),
            self.row_written.eq(Cat(Mux(zeros, 0, c), zeros)),
        ]
        with m.If(self.active):
            m.d.sync += [count.eq(count - 1), x.eq(x + x_step)]
        with m.If(self.vector_read):
            m.d.sync += a.eq(a + a_step)
        with m.If(stages[2]):
            m.d.sync += c.eq(c + c_step)
        for strobe, register in (
            (self.set_a, a), (self.set_a_step, a_step), (self.set_c, c), (self.set_c_step, c_step), (self.set_x, x),
            (self.set_x_step, x_step), (self.set_bound, bound), (self.start, count),
        ):  # fmt: skip
            with m.If(strobe):
                m.d.sync += register.eq(self.value)
        with m.If(self.set_mode):
            m.d.sync += Cat(quiet, overwrite, zeros).eq(self.value)
            m.d.sync += [pad.eq(self.value[8:16]), zero.eq(self.value[16:24])]
        with m.If(self.set_row_valid):
            m.d.sync += row_valid.eq(self.in_range)

        operands = Signal(data.ArrayLayout(signed(widths.activation), config.n))
        for k in range(config.n):
            byte = Signal(signed(8), name=f"byte{k}")
            m.d.comb += byte.eq(Mux(valid[0], self.vector.word_select(k, 8), pad))
            m.d.comb += operands[k].eq(byte - zero if config.wide_activations else byte)
        products = self._products(m, operands)
        # Sum each column in an adder tree, and add the sum to the row of the accumulator.
        for j in range(config.n):
            total: Value = Const(0)
            terms = [products[j][k] for k in range(config.n)]
            while len(terms) > 1:
                terms = [left + right for left, right in zip(terms[::2], terms[1::2], strict=True)]
            total = terms[0]
            with m.If(stages[2]):
                m.d.sync += self.sums[j].eq(total)
            m.d.comb += self.row_data.word_select(j, 32).eq(self.row.word_select(j, 32) + self.sums[j])
        m.d.comb += self.row_write.eq(stages[3] & ~quiet)
        return m

    def _products(self, m: Module, operands: data.View) -> list[list[Value]]:
        """Return the products of column j and byte k, two cycles after the operands."""
        n = self.config.n
        products = [
            [Signal(signed(17), name=f"product{j}_{k}", reset_less=True) for k in range(n)] for j in range(n)
        ]
        if self.multipliers.dual:
            first = Signal(8 * n, reset_less=True)
            # A block takes the weights of two columns at once, when those of the second arrive.
            with m.If(self.weight & ~self.weight_column[0]):
                m.d.sync += first.eq(self.vector)
            for pair in range(n // 2):
                takes = self.weight & (self.weight_column == 2 * pair + 1)
                for k in range(n):
                    both = Signal(data.ArrayLayout(signed(16), 2), name=f"both{pair}_{k}")
                    weights = Cat(first.word_select(k, 8), self.vector.word_select(k, 8))
                    m.submodules[f"multiplier{pair}_{k}"] = self.multipliers.dual(
                        operands[k], weights, ~takes, both.as_value()
                    )
                    for odd in range(2):
                        m.d.comb += products[2 * pair + odd][k].eq(both[odd])
            return [list(column) for column in products]
        held = Signal(data.ArrayLayout(signed(self.config.widths.activation), n), reset_less=True)
        m.d.sync += held.eq(operands)
        for j in range(n):
            weights = Signal(data.ArrayLayout(signed(8), n), name=f"weights{j}", reset_less=True)
            with m.If(self.weight & (self.weight_column == j)):
                m.d.sync += weights.eq(self.vector)
            for k in range(n):
                if self.multipliers.narrow and j * n + k < self.multipliers.narrow_blocks:
                    m.submodules[f"multiplier{j}_{k}"] = self.multipliers.narrow(
                        operands[k], weights[k], products[j][k]
                    )
                else:
                    m.d.sync += products[j][k].eq(held[k] * weights[k])
        return [list(column) for column in products]
