"""Serial divider for NORMALISE, multiplier blocks of the FPGA families, and parity coding of memories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Instance, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import DIVISION_LATENCY

LEAD = 3
"""Minimum number of cycles from `Divider.issue` to `Divider.take`."""
QUOTIENT_BITS = 16
_SUM_BITS = 32
_SUM_LATENCY = 2
"""Cycles from a row's address to its sum."""

RESULT = data.StructLayout({"mantissa": QUOTIENT_BITS, "shift": signed(8), "bias": signed(32)})
"""In the terms of `weft.hdl.isa.Normalise`: ``r``, ``E + exponent``, and ``-z`` modulo 2**32."""


class Divider(wiring.Component):
    """Serial divider that computes the reciprocal of a row's sum, and the bias due to the zero point of V.

    It works two rows ahead: while the vectors of one row are in flight, it divides for the next row and normalises the
    sum of the row after that.

    Members
    -------
    start : In(1)
        Begin a new instruction, whose rows are available from the next cycle on.
    scale, exponent, v_zero : In
        Fields of the instruction, stable from the cycle after `start` to the last result.
    row : In(1)
        High while there is a current row.
    sum : In(32)
        ``l`` of the row that was current two cycles ago.
    step : Out(1)
        Request to make the next row current from the next cycle on.
    ready : Out(1)
        A row may be issued: its result will be valid `LEAD` cycles later.
    issue : In(1)
        Issue the row. Only while `ready`.
    take : In(1)
        `result` is read in this cycle and may change afterwards. Once for each row, at least `LEAD` cycles after
        `issue`.
    result : Out(RESULT)
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1),
                "scale": In(QUOTIENT_BITS),
                "exponent": In(signed(7)),
                "v_zero": In(signed(8)),
                "row": In(1),
                "sum": In(_SUM_BITS),
                "step": Out(1),
                "ready": Out(1),
                "issue": In(1),
                "take": In(1),
                "result": Out(RESULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        operand = Signal(_SUM_BITS, reset_less=True)
        size = Signal(range(_SUM_BITS + 1), reset_less=True)
        normal = self._normalise(m, operand, size)

        left = Signal(range(DIVISION_LATENCY + 1))
        occupied = Signal()
        issued = Signal()
        changes = Signal()
        m.d.comb += [
            self.step.eq(normal & (~occupied | self.take)),
            changes.eq(self.start | self.step | self.take | self.issue),
        ]
        # `occupied`: a row is in the divider. `issued`: its result has been requested. `left`: remaining steps.
        with m.If(self.take):
            m.d.sync += occupied.eq(0)
        with m.If(self.issue):
            m.d.sync += issued.eq(1)
        with m.If(self.step):
            # Quotient and bias take equally long: 16 bits two by two, and the 8 bits of `v_zero` one by one.
            m.d.sync += [left.eq(DIVISION_LATENCY), occupied.eq(1), issued.eq(0)]
        with m.Elif(left.any()):
            m.d.sync += left.eq(left - 1)
        with m.If(self.start):
            m.d.sync += [left.eq(0), occupied.eq(0)]
        # occupied & ~issued & (left <= LEAD), computed a cycle early: a register, because a loop nest waits for it.
        m.d.sync += self.ready.eq(~changes & occupied & ~issued & (left <= LEAD + 1))
        with m.If(self.step):
            m.d.sync += self.result.shift.eq(size + self.exponent)
        self._divide(m, operand, left)
        self._multiply(m, left)
        return m

    def _normalise(self, m: Module, operand: Signal, size: Signal) -> Signal:
        """Read the sum of the current row, and shift it left until its top bit is set or it is exhausted.

        Returns the flag of completion, a register because loop nests depend on it.
        """
        age = Signal(range(_SUM_LATENCY + 1))
        fetched = Signal()
        normal = Signal()
        with m.If(self.start | self.step):
            m.d.sync += [age.eq(0), fetched.eq(0), normal.eq(0)]
        with m.Elif(self.row & ~fetched):
            m.d.sync += age.eq(age + 1)
            with m.If(age == _SUM_LATENCY):
                m.d.sync += [fetched.eq(1), operand.eq(self.sum), size.eq(_SUM_BITS), normal.eq(self.sum[-1])]
        with m.Elif(fetched & ~normal):
            # Shift by a byte while the top byte is 0, then bit by bit.
            with m.If(operand[-8:].any()):
                m.d.sync += [operand.eq(operand << 1), size.eq(size - 1), normal.eq(operand[-2])]
            with m.Else():
                m.d.sync += [
                    operand.eq(operand << 8),
                    size.eq(size - 8),
                    normal.eq(operand[-9] | (size == 8)),
                ]
        return normal

    def _divide(self, m: Module, operand: Signal, left: Signal) -> None:
        """Compute ``floor(scale * 2**16 / top)`` for ``scale < top``, or 0 for a sum of 0, by restoring division in
        radix 4."""
        bits = QUOTIENT_BITS + 1
        top = Signal(bits, reset_less=True)
        rest = Signal(bits, reset_less=True)
        triple = Signal(bits + 2, reset_less=True)
        quotient = self.result.mantissa
        # Each step finds a digit from 0 to 3: the last multiple of `top` whose difference is not negative wins.
        following: Value = (rest << 2)[:bits]
        digit: Value = Const(0, 2)
        for value, multiple in enumerate((top, top << 1, triple), start=1):
            less = Signal(signed(bits + 3), name=f"less_{value}")
            m.d.comb += less.eq((rest << 2) - multiple)
            following, digit = Mux(less[-1], following, less[:bits]), Mux(less[-1], digit, value)
        with m.If(self.step):
            divisor = operand[-bits:]
            m.d.sync += [top.eq(divisor), triple.eq((divisor << 1) + divisor), rest.eq(self.scale)]
        with m.Elif(left.any()):
            # A normalised divisor has its top bit set, unless the sum is 0.
            m.d.sync += [rest.eq(following), quotient.eq((quotient << 2) | Mux(top[-1], digit, 0))]

    def _multiply(self, m: Module, left: Signal) -> None:
        """Compute ``-v_zero * rsh(sum, 8)`` modulo 2**32, one bit of `v_zero` a cycle from its sign bit down."""
        factor = Signal(_SUM_BITS - 7, reset_less=True)
        zero = Signal(len(self.v_zero), reset_less=True)
        product = self.result.bias
        term = Mux(zero[-1], factor, 0)
        with m.If(self.step):
            # Adding the highest bit that is shifted out rounds half up.
            m.d.sync += [factor.eq(self.sum[8:] + self.sum[7]), zero.eq(self.v_zero), product.eq(0)]
        with m.Elif(left.any()):
            m.d.sync += [
                zero.eq(zero << 1),
                # The sign bit counts negatively, so its term is added to the negative product.
                product.eq(Mux(left == DIVISION_LATENCY, term, (product << 1) - term)),
            ]


WideBlock = Callable[[Value, Value, Signal], Instance]
"""``block(a, b, product)`` multiplies two signed values of up to 18 bits. The low bits of the result appear in
`product` three cycles later."""
DualBlock = Callable[[Value, Value, Value, Value], Instance]
"""``block(a, b, hold_b, products)`` multiplies the signed byte `a` by each of the two signed bytes of `b`. Two products
of 16 bits appear in `products` two cycles later. The block registers its operands; `hold_b` stalls the register of
`b`."""

NarrowBlock = Callable[[Value, Value, Signal], Instance]
"""``block(a, b, product)`` multiplies two signed values of up to 9 bits. The low bits of the result appear in `product`
two cycles after `a` and one cycle after `b`: the block registers `a` and the product."""


@dataclass(frozen=True)
class Multipliers:
    """Multiplier blocks of an FPGA family that have to be instantiated, because synthesis does not infer them.

    At most one of `wide` and `dual` is given.

    Parameters
    ----------
    family : str
        Name of the FPGA family, for messages.
    wide : WideBlock, optional
        Makes a block whose single product packs the products of two weights with one activation.
    dual : DualBlock, optional
        Makes a block that multiplies two weights by an activation of 8 bits. The array takes all blocks of the FPGA:
        the pipelined core then requantises without multipliers, unless it has softmax.
    narrow : NarrowBlock, optional
        Makes a block with one product, for the array of the sequential core. Its remaining products, and all
        products of the pipelined core, are inferred.
    narrow_blocks : int
        Number of `narrow` blocks to instantiate: as many as the smallest FPGA of the family has.
    """

    family: str
    wide: WideBlock | None = None
    dual: DualBlock | None = None
    narrow: NarrowBlock | None = None
    narrow_blocks: int = 0

    def narrow_count(self, products: int) -> int:
        """Return how many of a sequential core's `products` use a multiplier block, instantiated or inferred."""
        return min(products, self.narrow_blocks) if self.narrow else products

    def check(self, config: Config) -> None:
        """Raise `ConfigError` if an array of these blocks cannot multiply the activations of `config`."""
        if self.dual and config.wide_activations:
            raise ConfigError(
                f"configuration field 'probability_bits' must be 7 or 0 for {self.family}, whose multipliers take "
                f"signed bytes, not {config.probability_bits}"
            )


INFERRED = Multipliers("any family")
"""For families whose multipliers synthesis infers from products."""


class Coding:
    """Parity coding of memory words: one more bit for each `group` bits, if the configuration has `parity`.

    Parity is even, so that a memory of zeros is valid.
    """

    def __init__(self, config: Config, group: int) -> None:
        self.checked, self.group = bool(config.parity), group

    def width(self, width: int) -> int:
        """Return the bits that memory needs for a word of `width` bits, which is a multiple of the group."""
        return width + width // self.group if self.checked else width

    def encode(self, word: Value) -> Value:
        """Return the encoding of `word`, to be written to memory."""
        if not self.checked:
            return word
        return Cat(Cat(part, part.xor()) for part in _parts(word, self.group))

    def decode(self, word: Value) -> tuple[Value, Value]:
        """Return the word of an encoding, and a flag: an odd number of bits in some group has changed."""
        if not self.checked:
            return word, Const(0)
        parts = _parts(word, self.group + 1)
        return Cat(part[: self.group] for part in parts), Cat(part.xor() for part in parts).any()


def _parts(word: Value, size: int) -> list[Value]:
    if len(word) % size:
        raise ValueError(f"the word's width must be a multiple of {size} bits, not {len(word)}")
    return [word[at : at + size] for at in range(0, len(word), size)]
