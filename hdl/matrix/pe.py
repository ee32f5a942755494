"""Rows of processing elements, each of which multiplies by one element of the contraction."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Cat, Instance, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out


class PeRow(wiring.Component):
    """Row r of the array, which multiplies element r of the activations by the weights of all columns.

    Weights, activations and `swap` move one column a cycle, `latch` one column in two cycles. A latch pulse that enters
    with word 0 of a tile therefore meets word c in column c, and stores it in the shadow register. A swap pulse that
    enters with the first activation of a tile makes the shadow the active weight, for that activation and all later
    ones. A weight may be latched in the cycle in which the shadow is taken.

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
        Columns of a group, which an activation reaches in the same cycle (here 1), and the number of groups.
    cycles : int
        Cycles from an activation's entry to the result of `sums`, for group 0; group g is g cycles later.
    due : int
        Cycles from an activation's entry to the addition of `above` to its product, for group 0.

    Members
    -------
    a : In(signed(activation_width))
        Activation, at least -255.
    b : In(8)
        Weight byte.
    latch, swap : In(1)
    above : In(signed(psum_width)).array(columns)
        Partial sums of the row above. For the activation of cycle t, column c reads it in cycle t + c + 2.
    below : Out(signed(psum_width)).array(columns)
        `above` plus the product. For the activation of cycle t, column c is valid in cycle t + c + 3.
    latch_below, swap_below : Out(1)
        The pulses, delayed by one cycle for the row below.
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
        """Return the parts of a group's `below` that make up its first column, each with its delay in cycles."""
        return [(sums, 0)]

    def sums(self, m: Module, group: int) -> list[Value]:
        """Return the sums of a group's columns, from `below` of the array's last row."""
        return [self.below[group]]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n, width = self.groups, self.activation_width
        # Each is one wide shift register; slice c is the output of column c. Data needs no reset, because it has no
        # effect without a pulse.
        a_stages = Signal(width * n, reset_less=True)
        b_stages = Signal(8 * n, reset_less=True)
        latch_stages = Signal(2 * n)
        swap_stages = Signal(n)
        m.d.sync += [
            a_stages.eq(Cat(self.a, a_stages)),
            b_stages.eq(Cat(self.b, b_stages)),
            latch_stages.eq(Cat(self.latch, latch_stages)),
            swap_stages.eq(Cat(self.swap, swap_stages)),
        ]
        m.d.comb += [self.latch_below.eq(latch_stages[0]), self.swap_below.eq(swap_stages[0])]
        for c in range(n):
            shadow = Signal(8, name=f"shadow{c}", reset_less=True)
            active = Signal(signed(8), name=f"active{c}", reset_less=True)
            # 16 bits suffice for activations of 9 bits too: 255 * 128 is below 2**15.
            product = Signal(signed(16), name=f"product{c}", reset_less=True)
            psum = Signal(signed(self.psum_width), name=f"psum{c}", reset_less=True)
            with m.If(latch_stages[2 * c - 1] if c else self.latch):
                m.d.sync += shadow.eq(b_stages.word_select(c - 1, 8) if c else self.b)
            with m.If(swap_stages[c - 1] if c else self.swap):
                m.d.sync += active.eq(shadow)
            m.d.sync += [
                product.eq(a_stages.word_select(c, width).as_signed() * active),
                psum.eq(self.above[c] + product),
            ]
            m.d.comb += self.below[c].eq(psum)
        return m


SPLIT = 9
"""Bits between the two weights in a packed multiplication. With 10, an 18-bit operand cannot hold two weights if the
upper weight is -128; with 9, `_HIGH` needs one more bit."""
_HIGH = 16 - SPLIT
"""Bits of the lower weight's product that overlap the upper weight's product."""


class PairRow(wiring.Component):
    """Row of the array like `PeRow` that multiplies by pairs of columns; a pair is a group.

    Weights, activations and `swap` move one pair a cycle, `latch` one pair in three cycles. A latch pulse therefore
    meets words 2p and 2p + 1 in pair p, in consecutive cycles.

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
    sums_layout : data.StructLayout
        Layout of a pair's partial sums.
    cycles : int
        Cycles from an activation's entry to the result of `sums`, for pair 0; pair p is p cycles later.
    due : int
        Cycles from an activation's entry to the addition of `above` to its product, for pair 0.

    Members
    -------
    a, b, latch, swap, latch_below, swap_below
        See `PeRow`.
    above : In(sums_layout).array(groups), below : Out(sums_layout).array(groups)
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
                "above": In(self.sums_layout).array(self.groups),
                "below": Out(self.sums_layout).array(self.groups),
                "latch_below": Out(1),
                "swap_below": Out(1),
            }
        )

    @property
    def sums_layout(self) -> data.StructLayout:
        raise NotImplementedError

    @staticmethod
    def even(sums: data.View) -> list[tuple[Value, int]]:
        """Return the parts of a pair's `below` that make up its first column, each with its delay in cycles."""
        raise NotImplementedError

    def sums(self, m: Module, group: int) -> list[Value]:
        """Return the sums of a pair's columns, from `below` of the array's last row; adds logic to `m`."""
        raise NotImplementedError

    def _pair(self, m: Module, p: int, entering: Value, a: Value, weights: list[Signal], swap: Value) -> None:
        """Multiply and add: drive ``below[p]``.

        `a` is the register of the activation, whose input is `entering`. In a cycle in which `swap` is 1, the active
        weights become `weights`; otherwise they stay.
        """
        raise NotImplementedError

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n, width = self.groups, self.activation_width
        a_stages = Signal(width * n, reset_less=True)
        b_stages = Signal(8 * n, reset_less=True)
        latch_stages = Signal(3 * n)
        swap_stages = Signal(n)
        m.d.sync += [
            a_stages.eq(Cat(self.a, a_stages)),
            b_stages.eq(Cat(self.b, b_stages)),
            latch_stages.eq(Cat(self.latch, latch_stages)),
            swap_stages.eq(Cat(self.swap, swap_stages)),
        ]
        m.d.comb += [self.latch_below.eq(latch_stages[0]), self.swap_below.eq(swap_stages[0])]
        for p in range(n):
            # Word 2p of a tile is latched first, word 2p + 1 one cycle later.
            shadow = [Signal(signed(8), name=f"shadow{2 * p + c}", reset_less=True) for c in range(2)]
            for c in range(2):
                with m.If(latch_stages[3 * p + c - 1] if p or c else self.latch):
                    m.d.sync += shadow[c].eq(b_stages.word_select(p - 1, 8) if p else self.b)
            entering = a_stages.word_select(p - 1, width) if p else self.a
            self._pair(
                m, p, entering, a_stages.word_select(p, width), shadow, swap_stages[p - 1] if p else self.swap
            )
        return m


class PackedRow(PairRow):
    """Row of wide blocks, each of which multiplies both weights of a pair, ``w1 * 2**SPLIT + w0``, by the activation.

    The product p holds ``w0 * a`` modulo ``2**SPLIT``, and above it ``w1 * a + h``, where h is the rest of ``w0 * a``:
    signed, with `_HIGH` bits. The low bits of ``w1 * a``, multiplied in logic, therefore give h. This is exact for all
    bytes and all activations from -255 to 255.

    Rows accumulate both parts of p, and h, separately. Only after the last row is h subtracted from the upper sum and
    added to the lower sum. The sums of h are one cycle later than the others.
    """

    # Registers: the activation's, three in the multiplier, h, the sum of h, and one in `sums`.
    cycles = 7
    due = 4

    @property
    def sums_layout(self) -> data.StructLayout:
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
        sums = Signal(self.sums_layout, name=f"sums{p}", reset_less=True)
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
        """Return ``a * weight`` modulo ``2**_HIGH``, with the three cycles of latency of a multiplier block."""

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
        # `upper` and `lower` wait one cycle for the sum of h.
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
    """Row of dual blocks, each of which multiplies both weights of a pair, and registers operands and products.

    Activations are 8 bits wide.
    """

    cycles = 3
    due = 2

    @property
    def sums_layout(self) -> data.StructLayout:
        return data.StructLayout({"even": signed(self.psum_width), "odd": signed(self.psum_width)})

    def _pair(self, m: Module, p: int, entering: Value, a: Value, weights: list[Signal], swap: Value) -> None:
        products = Signal(data.ArrayLayout(signed(16), 2), name=f"products{p}")
        m.submodules[f"multiplier{p}"] = self.block(entering, Cat(*weights), ~swap, products.as_value())
        sums = Signal(self.sums_layout, name=f"sums{p}", reset_less=True)
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
