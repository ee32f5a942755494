"""One row of processing elements: all multiplications by one element of the contraction."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class PeRow(wiring.Component):
    """Row r of the array: multiplies the activations' element r by the weights of all columns.

    In column c, weights and activations pass one column a cycle, `latch` takes two cycles a column, `swap` one. So
    a latch pulse that comes with a tile's word 0 meets word c exactly in column c and stores it in the shadow
    register; a swap pulse that comes with a tile's first activation makes the shadow the active weight for that
    activation and those behind it. A weight may be latched in the cycle in which the shadow is taken.

    Parameters
    ----------
    columns : int
    activation_width : int
        8 or 9.
    psum_width : int
        Width of the partial sums that pass through; sums wrap to it.

    Attributes
    ----------
    width, groups : int
        Columns that activations reach together (`weft.hdl.matrix.pe_pairs` has two), and how many such groups there
        are.
    cycles : int
        From an activation's entry to what `sums` returns, for group 0; group g is g cycles later.
    due : int
        From an activation's entry to the cycle in which `above` is added to its product, for group 0.

    Members
    -------
    a : In(signed(activation_width))
        Activation, -255 at least.
    b : In(8)
        Weight byte.
    latch, swap : In(1)
    above : In(signed(psum_width)).array(columns)
        Partial sums of the row above. Column c's for the activation of cycle t is due in cycle t + c + 2.
    below : Out(signed(psum_width)).array(columns)
        `above` plus the product. Column c's for the activation of cycle t stands in cycle t + c + 3.
    latch_below, swap_below : Out(1)
        The pulses one cycle later, for the row below.
    """

    width = 1
    cycles = 3
    due = 2

    def __init__(self, columns: int, activation_width: int, psum_width: int) -> None:
        self.groups = columns
        self.activation_width = activation_width
        self.psum_width = psum_width
        super().__init__(
            {
                "a": In(signed(activation_width)),
                "b": In(8),
                "latch": In(1),
                "swap": In(1),
                "above": In(signed(psum_width)).array(columns),
                "below": Out(signed(psum_width)).array(columns),
                "latch_below": Out(1),
                "swap_below": Out(1),
            }
        )

    @staticmethod
    def even(sums: Value) -> list[tuple[Value, int]]:
        """The parts of what a group hands down that make up its first column, and how many cycles each is behind."""
        return [(sums, 0)]

    def sums(self, m: Module, group: int) -> list[Value]:
        """The columns' sums from what the array's last row hands down."""
        return [self.below[group]]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n, width = self.groups, self.activation_width
        # Bit slices of one wide register each: what stands at column c's output is slice c.
        # Data needs no reset: nothing is done with what no pulse announced.
        a, b = Signal(width * n, reset_less=True), Signal(8 * n, reset_less=True)
        latch, swap = Signal(2 * n), Signal(n)
        m.d.sync += [
            a.eq(Cat(self.a, a)),
            b.eq(Cat(self.b, b)),
            latch.eq(Cat(self.latch, latch)),
            swap.eq(Cat(self.swap, swap)),
        ]
        m.d.comb += [self.latch_below.eq(latch[0]), self.swap_below.eq(swap[0])]
        for c in range(n):
            shadow = Signal(8, name=f"shadow{c}", reset_less=True)
            active = Signal(signed(8), name=f"active{c}", reset_less=True)
            # As 255 * 128 is below 2**15, the ninth bit of activations does not make products wider.
            product = Signal(signed(16), name=f"product{c}", reset_less=True)
            psum = Signal(signed(self.psum_width), name=f"psum{c}", reset_less=True)
            with m.If(latch[2 * c - 1] if c else self.latch):
                m.d.sync += shadow.eq(b.word_select(c - 1, 8) if c else self.b)
            with m.If(swap[c - 1] if c else self.swap):
                m.d.sync += active.eq(shadow)
            m.d.sync += [
                product.eq(a.word_select(c, width).as_signed() * active),
                psum.eq(self.above[c] + product),
            ]
            m.d.comb += self.below[c].eq(psum)
        return m
