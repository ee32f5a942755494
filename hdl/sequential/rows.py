"""Rows of A times the weights, into the accumulator: a row a cycle, all columns at once."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib.multipliers import INFERRED, Multipliers

STRIDE = 16


class Rows(wiring.Component):
    """Reads a vector a cycle and adds its products with all weights to a row of the accumulator.

    From reading a vector it takes a cycle to the operands, one to the products, one to their sums, during which the
    accumulator is read, and one to write that. Rows that follow each other must differ.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers

    Members
    -------
    value : In(32)
        What the strobes below take.
    set_a, set_a_step, set_c, set_c_step, set_x, set_x_step, set_bound : In(1)
        First vector, row and coordinate, and their strides; a vector is in range if ``0 <= x < bound``.
    set_mode : In(1)
        Bit 0: write no sums; bit 1: take rows of the accumulator for 0; bit 2: write that row of zeros; byte 1: bytes
        of vectors out of range, byte 2: zero point.
    set_row_valid : In(1)
        If the coordinate is out of range now, all vectors are.
    step_a : In(1)
        Read the vector at `a`, and step.
    start : In(1)
        That many rows.
    weight, weight_column : In(1), In(range(N))
        The vector read last is this column of weights. Columns come in order, from 0 on.
    vector_address, vector_read : Out, Out(1)
    vector : In(8 * N)
        A cycle later.
    read_c : In(1)
        Read the row at `c`.
    row_address, row_read : Out, Out(1)
        Of the accumulator.
    row : In(32 * N)
        A cycle later.
    row_write, row_written, row_data : Out(1), Out, Out(32 * N)
        Write a row to this address. While no rows are under way, the address is that of `c` a cycle ago.
    sums : Out(32 per column)
        Of the last row.
    in_range : Out(1)
        The coordinate is in range.
    active : Out(1)
        A row enters.
    done : Out(1)
        No row enters. Those under way are done when the next word of the microprogram reaches a unit.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        self.config, self.multipliers = config, multipliers
        n, widths = config.n, config.widths
        strobes = (
            "set_a", "set_a_step", "set_c", "set_c_step", "set_x", "set_x_step", "set_bound", "set_mode",
            "set_row_valid", "step_a", "read_c", "start", "weight",
        )  # fmt: skip
        # One row more, that nobody writes: to overwrite is to add to zeros.
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
        a, a_step = (
            Signal(widths.scratchpad_address, name=name, reset_less=True) for name in ("a", "a_step")
        )
        c, c_step = (
            Signal(widths.accumulator_address, name=name, reset_less=True) for name in ("c", "c_step")
        )
        x, bound = Signal(16, reset_less=True), Signal(16, reset_less=True)
        x_step = Signal(signed(8), reset_less=True)
        row_valid, quiet, overwrite, zeros = (
            Signal(name=name) for name in ("row_valid", "quiet", "overwrite", "zeros")
        )
        pad, zero = Signal(signed(8), reset_less=True), Signal(signed(8), reset_less=True)
        count, stages = Signal(12), Signal(4)
        valid = Signal(3)
        m.d.comb += [
            self.active.eq(count != 0),
            self.done.eq(~self.active),
            self.in_range.eq(~x[-1] & (x < bound)),
            self.vector_address.eq(a),
            self.vector_read.eq(self.active | self.step_a),
            self.row_address.eq(Cat(Mux(overwrite, 0, c), overwrite)),
            self.row_read.eq(stages[2] | self.read_c),
        ]
        m.d.sync += [
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
        """Products of column j and byte k, two cycles after the operands."""
        n = self.config.n
        products = [
            [Signal(signed(17), name=f"product{j}_{k}", reset_less=True) for k in range(n)] for j in range(n)
        ]
        if self.multipliers.dual:
            first = Signal(8 * n, reset_less=True)
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
