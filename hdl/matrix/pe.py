"""One row of processing elements: all multiplications by one element of the contraction."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Cat, Instance, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
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
        Columns that activations reach together (`weft.hdl.matrix.pe` has two), and how many such groups there
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


SPLIT = 9
"""Bits from one weight to the other in a packed multiplication. With 10, an 18-bit operand would not hold two weights
of which one is -128; with 9, `_HIGH` needs another bit."""
_HIGH = 16 - SPLIT
"""Bits of the lower weight's product that overlap the upper one's."""


class PairRow(wiring.Component):
    """A row that does what `weft.hdl.matrix.pe.PeRow` does, by pairs of columns; a pair is a `group` of the array.

    Weights and activations pass one pair a cycle, `swap` with them; `latch` takes three cycles a pair, so that it
    meets words 2p and 2p + 1, which are p cycles behind it and one more, in pair p.

    Parameters
    ----------
    columns : int
        Even.
    activation_width : int
    psum_width : int
    block : callable
        Makes a multiplier block, see `weft.hdl.lib.arithmetic`.

    Attributes
    ----------
    width, groups : int
        2, and the number of pairs.
    passed : data.StructLayout
        What a pair hands down.
    cycles : int
        From an activation's entry to what `sums` returns, for pair 0; pair p is p cycles later.
    due : int
        From an activation's entry to the cycle in which `above` is added to its product, for pair 0.

    Members
    -------
    a, b, latch, swap, latch_below, swap_below
        See `weft.hdl.matrix.pe.PeRow`.
    above : In(passed).array(groups), below : Out(passed).array(groups)
    """

    width = 2
    cycles: int
    due: int

    def __init__(
        self, columns: int, activation_width: int, psum_width: int, block: Callable[..., Instance]
    ) -> None:
        self.groups = columns // 2
        self.activation_width = activation_width
        self.psum_width = psum_width
        self.block = block
        super().__init__(
            {
                "a": In(signed(activation_width)),
                "b": In(8),
                "latch": In(1),
                "swap": In(1),
                "above": In(self.passed).array(self.groups),
                "below": Out(self.passed).array(self.groups),
                "latch_below": Out(1),
                "swap_below": Out(1),
            }
        )

    @property
    def passed(self) -> data.StructLayout:
        raise NotImplementedError

    @staticmethod
    def even(sums: data.View) -> list[tuple[Value, int]]:
        """The parts of what a pair hands down that make up its first column, and how many cycles each is behind."""
        raise NotImplementedError

    def sums(self, m: Module, group: int) -> list[Value]:
        """The columns' sums from what the array's last row hands down; adds to `m`."""
        raise NotImplementedError

    def _pair(self, m: Module, p: int, entering: Value, a: Value, weights: list[Signal], swap: Value) -> None:
        """Multiply and add: drive ``below[p]``.

        `a` is the register that takes the activation `entering`; the weights to use with it are `weights` in a cycle
        where `swap` is 1, and those of before in any other.
        """
        raise NotImplementedError

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n, width = self.groups, self.activation_width
        a, b = Signal(width * n, reset_less=True), Signal(8 * n, reset_less=True)
        latch, swap = Signal(3 * n), Signal(n)
        m.d.sync += [
            a.eq(Cat(self.a, a)),
            b.eq(Cat(self.b, b)),
            latch.eq(Cat(self.latch, latch)),
            swap.eq(Cat(self.swap, swap)),
        ]
        m.d.comb += [self.latch_below.eq(latch[0]), self.swap_below.eq(swap[0])]
        for p in range(n):
            shadow = [Signal(signed(8), name=f"shadow{2 * p + c}", reset_less=True) for c in range(2)]
            for c in range(2):
                with m.If(latch[3 * p + c - 1] if p or c else self.latch):
                    m.d.sync += shadow[c].eq(b.word_select(p - 1, 8) if p else self.b)
            entering = a.word_select(p - 1, width) if p else self.a
            self._pair(m, p, entering, a.word_select(p, width), shadow, swap[p - 1] if p else self.swap)
        return m


class PackedRow(PairRow):
    """For wide blocks: one multiplies both weights of a pair, ``w1 * 2**SPLIT + w0``, by the activation.

    The product p holds ``w0 * a`` modulo ``2**SPLIT``, and above it ``w1 * a + h``, h being the rest of ``w0 * a``:
    `_HIGH` bits and signed, so the low bits of ``w1 * a``, multiplied in logic, tell what it is. Exact for all bytes
    and any activation from -255 to 255.

    Rows add up the parts of p and h; only below the last one is h taken out of the one and put into the other. The
    sums of h are a cycle behind.
    """

    # The activation's register, three in the multiplier, the sum of h's register and its own, and one for `sums`.
    cycles = 7
    due = 4

    @property
    def passed(self) -> data.StructLayout:
        carries = self.psum_width - 16
        return data.StructLayout(
            {"upper": self.psum_width, "lower": SPLIT + carries, "high": signed(_HIGH + carries)}
        )

    def _pair(self, m: Module, p: int, entering: Value, a: Value, weights: list[Signal], swap: Value) -> None:
        active = [Signal(signed(8), name=f"active{2 * p + c}", reset_less=True) for c in range(2)]
        with m.If(swap):
            m.d.sync += [register.eq(weight) for register, weight in zip(active, weights, strict=True)]
        above, below = self.above[p], self.below[p]
        product = Signal(SPLIT + 18, name=f"product{p}")
        packed = Signal(signed(18), name=f"packed{p}")
        m.d.comb += packed.eq((active[1] << SPLIT) + active[0])
        m.submodules[f"multiplier{p}"] = self.block(a.as_signed(), packed, product)
        low = self._low_product(m, a, active[1], p)
        high = Signal(signed(_HIGH), name=f"high{p}", reset_less=True)
        sums = Signal(self.passed, name=f"sums{p}", reset_less=True)
        m.d.sync += [
            high.eq(product[SPLIT : SPLIT + _HIGH] - low),
            sums.upper.eq(above.upper + product[SPLIT:].as_signed()),
            sums.lower.eq(above.lower + product[:SPLIT]),
            sums.high.eq(above.high + high),
        ]
        m.d.comb += below.eq(sums)

    @staticmethod
    def even(sums: data.View) -> list[tuple[Value, int]]:
        return [(sums.lower, 0), (sums.high, 1)]

    @staticmethod
    def _low_product(m: Module, a: Value, weight: Value, p: int) -> Signal:
        """``a * weight`` modulo ``2**_HIGH``, three registers later like a multiplier's."""

        def register(value: Value, width: int, name: str) -> Signal:
            result = Signal(width, name=f"{name}{p}", reset_less=True)
            m.d.sync += result.eq(value)
            return result

        def partial(bit: int) -> Value:
            return Mux(weight[bit], a[: _HIGH - bit], 0)

        first = register(partial(0) + (partial(1) << 1), _HIGH, "low01_")
        second = register(partial(2) + (partial(3) << 1), _HIGH - 2, "low23_")
        third = register(partial(4) + (partial(5) << 1) + (partial(6) << 2), _HIGH - 4, "low456_")
        lower = register(first + (second << 2), _HIGH, "low0123_")
        upper = register(third, _HIGH - 4, "upper_")
        return register(lower + (upper << 4), _HIGH, "low")

    def sums(self, m: Module, group: int) -> list[Value]:
        last = self.below[group]
        upper = Signal(self.psum_width, name=f"upper{group}", reset_less=True)
        lower = Signal(len(last.lower), name=f"lower{group}", reset_less=True)
        columns = [
            Signal(signed(self.psum_width), name=f"column{2 * group + c}", reset_less=True) for c in range(2)
        ]
        rest = Signal(signed(self.psum_width - SPLIT), name=f"rest{group}")
        m.d.comb += rest.eq(last.high + lower[SPLIT:])
        m.d.sync += [
            upper.eq(last.upper),
            lower.eq(last.lower),
            columns[0].eq(Cat(lower[:SPLIT], rest)),
            columns[1].eq(upper - last.high),
        ]
        return list(columns)


class DualRow(PairRow):
    """For dual blocks: one multiplies both weights of a pair, and keeps activation, weights and products.

    Activations are 8 bits wide.
    """

    cycles = 3
    due = 2

    @property
    def passed(self) -> data.StructLayout:
        return data.StructLayout({"even": signed(self.psum_width), "odd": signed(self.psum_width)})

    def _pair(self, m: Module, p: int, entering: Value, a: Value, weights: list[Signal], swap: Value) -> None:
        products = Signal(data.ArrayLayout(signed(16), 2), name=f"products{p}")
        m.submodules[f"multiplier{p}"] = self.block(entering, Cat(*weights), ~swap, products.as_value())
        sums = Signal(self.passed, name=f"sums{p}", reset_less=True)
        m.d.sync += [
            sums.even.eq(self.above[p].even + products[0]),
            sums.odd.eq(self.above[p].odd + products[1]),
        ]
        m.d.comb += self.below[p].eq(sums)

    @staticmethod
    def even(sums: data.View) -> list[tuple[Value, int]]:
        return [(sums.even, 0)]

    def sums(self, m: Module, group: int) -> list[Value]:
        return [self.below[group].even, self.below[group].odd]
