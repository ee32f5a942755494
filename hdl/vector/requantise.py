"""The arithmetic of the vector unit: reduce, add the bias, scale, round and clamp, for `lanes` columns a cycle."""

from __future__ import annotations

from functools import reduce
from operator import add

from amaranth.hdl import Cat, Module, Mux, Shape, ShapeLike, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Reduce
from weft.hdl.isa.config import Config
from weft.hdl.lib.arithmetic import INFERRED, Multipliers

LATENCY = 9
"""Cycles from the last element of a reduction to its result."""

_LOW = 17
"""Low bits of a mantissa that go to hardware multipliers: 18 x 18 signed on every FPGA family that matters. The few
upper bits are multiplied in logic, which halves the number of multipliers for a 24-bit mantissa."""
SCORE_BITS = 16
"""Bits of a score, a result for softmax."""


def _narrow(config: Config) -> int:
    """Return the bits to which the rounded quotient is saturated.

    A quotient that does not fit is outside of int8 with any zero point, or outside of a score without a zero point.
    """
    return SCORE_BITS + 1 if config.softmax else 9


def settings_layout(config: Config) -> data.StructLayout:
    """Return the layout of the settings for all elements of an instruction.

    Fields are those of `weft.hdl.isa.Vec`, but ``add`` is 0 if the second operand is a factor.
    """
    optional = {"subtract": 1} if config.multiply else {}
    return data.StructLayout(
        optional
        | {
            "reduce": 2,
            "add": 1,
            "b_mantissa": config.mantissa_bits,
            "b_zero": signed(8),
            "zero": signed(8),
            "low": signed(8),
            "high": signed(8),
        }
    )


def column_layout(config: Config) -> data.StructLayout:
    """Return the layout of the requantisation parameters of one column, see `weft.hdl.isa.Vec`."""
    return data.StructLayout({"bias": signed(32), "mantissa": config.mantissa_bits, "shift": 6})


class Requantise(wiring.Component):
    """Requantiser: a pipeline without back-pressure that reduces, scales, rounds and clamps elements.

    It takes an element a cycle, and returns a result `LATENCY` cycles after the last element of its reduction. The
    arithmetic is defined by `weft.hdl.isa.Vec`, and exact for all inputs whose mantissas have ``mantissa_bits`` bits.

    Parameters
    ----------
    config : Config
    tag : shape
        Data that accompanies the last element of a reduction to its result.

    Attributes
    ----------
    serial : bool
        A reduction may only end after the result of the previous reduction, as in `SerialRequantise`.

    Members
    -------
    settings : In(struct)
        Must not change while elements are in flight.
    valid : In(1)
        There is an element in each lane. May be 0 in any cycle.
    first, last : In(1)
        The element is the first or last of its reduction.
    elements : In(lanes x int32)
    second : In(lanes x int8)
        Second operand, read with the last element.
    columns : In(lanes x struct)
        Requantisation parameters, read with the last element.
    tag : In(tag)
        Read with the last element.
    result_valid, results, result_tag : Out(1), Out(lanes x int8), Out(tag)
    scores : Out(lanes x int16)
        Only with softmax: results with the zero point added, saturated, but not clamped to ``low`` and ``high``.
    """

    serial = False

    def __init__(self, config: Config, tag: ShapeLike) -> None:
        self.config = config
        lanes = config.lanes
        scores = {"scores": Out(data.ArrayLayout(signed(SCORE_BITS), lanes))} if config.softmax else {}
        super().__init__(
            {
                "settings": In(settings_layout(config)),
                "valid": In(1),
                "first": In(1),
                "last": In(1),
                "elements": In(data.ArrayLayout(signed(32), lanes)),
                "second": In(data.ArrayLayout(signed(8), lanes)),
                "columns": In(data.ArrayLayout(column_layout(config), lanes)),
                "tag": In(tag),
                "result_valid": Out(1),
                "results": Out(data.ArrayLayout(signed(8), lanes)),
                "result_tag": Out(tag),
                **scores,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        valid, tag = self.valid & self.last, Value.cast(self.tag)
        for stage in range(LATENCY):
            valid_next = Signal(name=f"valid_{stage}")
            m.d.sync += valid_next.eq(valid)
            valid, tag = valid_next, _register(m, tag, f"tag_{stage}")
        m.d.comb += [self.result_valid.eq(valid), Value.cast(self.result_tag).eq(tag)]
        for lane in range(self.config.lanes):
            m.d.comb += self.results[lane].eq(self._lane(m, lane))
        return m

    def _lane(self, m: Module, lane: int) -> Value:
        """Build one lane from element to result; the comments number the pipeline stages."""

        def register(value: Value, name: str) -> Signal:
            return _register(m, value, f"{name}_{lane}")

        settings, column = self.settings, self.columns[lane]
        reduced = self._reduce(m, lane)  # 1
        second = register(self.second[lane], "second")
        bias, mantissa = register(column.bias, "bias"), register(column.mantissa, "mantissa_1")
        shift = register(column.shift, "shift_1")

        value = register((reduced + bias)[:32].as_signed(), "value")  # 2
        other = register(Mux(settings.add, self._difference(second), 0), "other")
        mantissa = register(mantissa, "mantissa_2")

        product = self._multiply(m, lane, value, mantissa, other)  # 3, 4, 5
        for stage in range(2, 6):
            shift = register(shift, f"shift_{stage}")

        quotient = shift_and_round(m, product, shift, str(lane), _narrow(self.config))  # 6, 7
        total = register(quotient + settings.zero, "total")  # 8
        if self.config.softmax:
            fits = total[SCORE_BITS - 1 :].all() | ~total[SCORE_BITS - 1 :].any()
            limit = Cat((~total[-1]).replicate(SCORE_BITS - 1), total[-1])
            score = Mux(fits, total[:SCORE_BITS], limit)
            m.d.comb += self.scores[lane].eq(register(score, "score"))
        return register(self._clamp(total), "result")  # 9

    def _difference(self, second: Value) -> Value:
        """Return the second operand minus its zero point, or the negative of this difference, in the same width."""
        other = second - self.settings.b_zero
        if not self.config.multiply:
            return other
        return Mux(self.settings.subtract, self.settings.b_zero - second, other)

    def _clamp(self, total: Signal) -> Value:
        """Clamp `total` to ``low`` and ``high``, as a byte.

        Signs of differences, because they are faster than comparisons.
        """
        settings = self.settings
        below = (total - settings.low)[-1]
        # A result below `low` becomes `low`, which may itself be above `high`.
        above = Mux(below, settings.low > settings.high, (settings.high - total)[-1])
        return Mux(above, settings.high, Mux(below, settings.low, total))[:8]

    def _multiply(self, m: Module, lane: int, value: Signal, mantissa: Signal, other: Signal) -> Signal:
        """Return ``value * mantissa + other * b_mantissa`` in full width, three cycles later."""

        def register(value: Value, name: str) -> Signal:
            return _register(m, value, f"{name}_{lane}")

        b_mantissa = self.settings.b_mantissa
        low, high = _unsigned_low(value), value[_LOW:].as_signed()
        low_product = register(low * _unsigned_low(mantissa), "low_product")
        high_product = register(high * _unsigned_low(mantissa), "high_product")
        other_product = register(other * _unsigned_low(b_mantissa), "other_product")
        # At most four terms before a register.
        middle, top = slice(_LOW, _LOW + 3), slice(_LOW + 3, None)
        value_middle = register(_shift_and_add(value, mantissa[middle]), "value_middle")
        other_middle = register(_shift_and_add(other, b_mantissa[middle]), "other_middle")
        value_top = register(_shift_and_add(value, mantissa[top]), "value_top")
        other_top = register(_shift_and_add(other, b_mantissa[top]), "other_top")

        lower = register(low_product + other_product, "lower")
        upper = register(high_product + value_middle + other_middle, "upper")
        highest = register(value_top + other_top, "highest")

        product = Signal(signed(33 + self.config.mantissa_bits), name=f"product_{lane}", reset_less=True)
        m.d.sync += product.eq(lower + ((upper + (highest << 3)) << _LOW))
        return product

    def _reduce(self, m: Module, lane: int) -> Signal:
        """Return the register with the reduction of all elements up to the previous cycle."""
        reduced = Signal(signed(32), name=f"reduced_{lane}", reset_less=True)
        element = self.elements[lane]
        mode = self.settings.reduce
        total = Signal(signed(33), name=f"reduce_{lane}")
        # The adder also compares, because its sign is earlier than its carry: reduced - 1 - element is negative if the
        # element is at least the maximum so far.
        m.d.comb += total.eq(reduced + Mux(mode == Reduce.MAX, ~element, element))
        replace = self.first | (mode == Reduce.NONE) | (mode == Reduce.MAX) & total[-1]
        with m.If(self.valid & replace):
            m.d.sync += reduced.eq(element)
        with m.Elif(self.valid & (mode == Reduce.SUM)):
            m.d.sync += reduced.eq(total[:32].as_signed())
        return reduced


def _register(m: Module, value: Value, name: str) -> Signal:
    register = Signal(Shape.cast(value.shape()), name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register


def _unsigned_low(value: Value) -> Value:
    """Return the low bits for one multiplier, as a non-negative signed value."""
    return Cat(value[:_LOW], 0).as_signed()


def _shift_and_add(value: Value, factor: Value) -> Value:
    """Return ``value * factor`` without a multiplier; `factor` is unsigned and has few bits, possibly none."""
    terms = [Mux(factor[bit], value, 0) << bit for bit in range(len(factor))]
    return reduce(add, terms) if terms else Cat(0).as_signed()


def shift_and_round(
    m: Module, product: Signal, shift: Signal, lane: str, narrow: int, floor: Value | None = None
) -> Value:
    """Return ``product / 2**shift``, rounded half to even and saturated to `narrow` bits, two cycles later.

    The result is the sum of a quotient and an increment. It is rounded down if `floor` is 1 one cycle after `product`.

    The first stage shifts by whole bytes. It keeps a window of the guard bit, up to 7 bits that remain to be shifted,
    and the quotient; for the bits below the window the flag `sticky` (any is set), and for the bits above the flag
    `fits` (all equal the sign).
    """
    width, size = len(product), 8 + narrow
    # Bit i of `bits` is bit i - 1 of the product, so that a shift by 0 has a guard bit, which is 0.
    # The window of the largest shift by whole bytes begins at bit 56.
    bits = Signal(signed(max(width + 1, 56 + size)), name=f"bits_{lane}")
    m.d.comb += bits.eq(product << 1)
    window = Signal(size, name=f"window_{lane}")
    sticky = Signal(name=f"sticky_{lane}")
    fits = Signal(name=f"fits_{lane}")
    negative = Signal(name=f"negative_{lane}")
    fine, coarse = _register(m, shift[:3], f"fine_{lane}"), shift[3:6]
    m.d.sync += negative.eq(product[-1])
    with m.Switch(coarse):
        for count in range(8):
            with m.Case(count):
                m.d.sync += window.eq(bits[8 * count : 8 * count + size])
    # All bytes are examined before the shift selects the relevant ones, which keeps paths short.
    above = (bits.as_unsigned() ^ product[-1].replicate(len(bits)))[size - 1 :]
    spilled = Cat(
        (coarse <= index // 8) & above[index : index + 8].any() for index in range(0, len(above), 8)
    )
    m.d.sync += [
        sticky.eq(Cat((coarse > index) & bits[8 * index : 8 * index + 8].any() for index in range(7)).any()),
        fits.eq(~spilled.any()),
    ]
    guard = Signal(name=f"guard_{lane}")
    lower = Signal(size - 1, name=f"lower_{lane}")
    m.d.comb += Cat(guard, lower).eq(window.as_signed() >> fine)
    lost = (window & ((1 << fine) - 1)[:7]).any() | sticky
    spare = lower[narrow - 1 :]
    whole = Signal(name=f"whole_{lane}")
    m.d.comb += whole.eq(fits & (spare.all() | ~spare.any()))
    # No increment after saturation, because it would move the result off the least value.
    up = guard & (lost | lower[0]) & whole
    increment = _register(m, up if floor is None else up & ~floor, f"increment_{lane}")
    limit = Mux(negative, -(1 << (narrow - 1)), (1 << (narrow - 1)) - 1)
    saturated = Mux(whole, lower[:narrow].as_signed(), limit)
    return _register(m, saturated, f"quotient_{lane}") + increment


_NARROW = 9
"""Bits to which the quotient is saturated: a quotient that does not fit is outside of int8 with any zero point."""


def requantiser(config: Config, tag: ShapeLike, multipliers: Multipliers = INFERRED) -> Requantise:
    """Return the requantiser for a core with these `multipliers`.

    It is serial if the array takes all of them, unless there is softmax.
    """
    if multipliers.dual and not config.softmax:
        return SerialRequantise(config, tag)
    return Requantise(config, tag)


class SerialRequantise(Requantise):
    """Requantiser without multipliers, like `Requantise` but with one result at a time.

    The last element of a reduction may come only after the result of the previous reduction; other elements may come at
    any time. A result takes one cycle for each bit of the mantissa (two with ``add``), one for every 8 places of
    ``shift``, one for each remaining place, and 4 more.
    """

    serial = True

    def elaborate(self, platform: object) -> Module:
        m = Module()
        add, bits = self.settings.add, self.config.mantissa_bits
        accept = Signal()
        adding = Signal()
        multiplying = Signal()
        shifting = Signal()
        rounding = Signal()
        step = Signal(range(bits))
        other_turn = Signal()
        arrived = Signal()
        m.d.comb += accept.eq(self.valid & self.last)
        m.d.sync += [
            adding.eq(accept),
            rounding.eq(shifting & arrived),
            self.result_valid.eq(rounding),
        ]
        with m.If(accept):
            m.d.sync += Value.cast(self.result_tag).eq(Value.cast(self.tag))
        with m.If(adding):
            m.d.sync += [multiplying.eq(1), step.eq(0), other_turn.eq(0)]
        with m.If(multiplying):
            m.d.sync += other_turn.eq(add & ~other_turn)
            with m.If(other_turn | ~add):
                m.d.sync += step.eq(step + 1)
                with m.If(step == bits - 1):
                    m.d.sync += [multiplying.eq(0), shifting.eq(1)]
        with m.If(shifting & arrived):
            m.d.sync += shifting.eq(0)

        other_bit = self.settings.b_mantissa.bit_select(step, 1)
        # Columns have shifts of their own, so all lanes wait for the slowest.
        finished = []
        for lane in range(self.config.lanes):
            result, done = self._serial_lane(
                m, lane, accept, adding, multiplying, other_turn, other_bit, shifting
            )
            finished.append(done)
            m.d.sync += self.results[lane].eq(result)
        m.d.comb += arrived.eq(Cat(*finished).all())
        return m

    def _serial_lane(
        self,
        m: Module,
        lane: int,
        accept: Signal,
        adding: Signal,
        multiplying: Signal,
        other_turn: Signal,
        other_bit: Value,
        shifting: Signal,
    ) -> tuple[Value, Value]:
        """Build one lane. Returns the input of the result's register, and a flag: the product has been shifted."""

        def state(shape: ShapeLike, name: str) -> Signal:
            return Signal(shape, name=f"{name}_{lane}", reset_less=True)

        settings, column, bits = self.settings, self.columns[lane], self.config.mantissa_bits
        reduced = self._reduce(m, lane)
        value, other = state(signed(32), "value"), state(signed(9), "other")
        # `low` holds the remaining bits of the mantissa and, entering from the top, the low bits of the product.
        high, low = state(signed(34), "high"), state(bits, "low")
        bytes_left, bits_left = state(3, "bytes_left"), state(3, "bits_left")
        guard, sticky = state(1, "guard"), state(1, "sticky")
        with m.If(accept):
            m.d.sync += [
                value.eq(column.bias),
                other.eq(self._difference(self.second[lane])),
                low.eq(column.mantissa),
                Cat(bits_left, bytes_left).eq(column.shift),
                Cat(guard, sticky).eq(0),
                high.eq(0),
            ]
        with m.If(adding):
            m.d.sync += value.eq(value + reduced)

        # Multiply by shift and add: one bit of each mantissa in turn, from bit 0 on.
        term = Signal(signed(33), name=f"term_{lane}")
        total = Signal(signed(34), name=f"total_{lane}")
        m.d.comb += [
            term.eq(Mux(multiplying & Mux(other_turn, other_bit, low[0]), Mux(other_turn, other, value), 0)),
            total.eq(high + term),
        ]
        # With `add`, a bit takes two cycles: the first adds without a shift, the second adds and shifts.
        with m.If(multiplying & settings.add & ~other_turn):
            m.d.sync += high.eq(total)
        with m.Elif(shifting & bytes_left.any()):
            m.d.sync += [
                Cat(low, high).eq(Cat(low, high).as_signed() >> 8),
                bytes_left.eq(bytes_left - 1),
                guard.eq(low[7]),
                sticky.eq(sticky | guard | low[:7].any()),
            ]
        with m.Elif(multiplying | shifting & bits_left.any()):
            m.d.sync += Cat(low, high).eq(Cat(low, total).as_signed() >> 1)
            with m.If(shifting):
                m.d.sync += [bits_left.eq(bits_left - 1), guard.eq(low[0]), sticky.eq(sticky | guard)]

        above = Cat(low[_NARROW - 1 :], high)
        limit = Cat((~high[-1]).replicate(_NARROW - 1), high[-1])
        quotient = Mux(above.all() | ~above.any(), low[:_NARROW], limit).as_signed()
        rounded = state(signed(_NARROW + 2), "rounded")
        m.d.sync += rounded.eq(quotient + (guard & (sticky | low[0])) + settings.zero)
        return self._clamp(rounded), ~(bytes_left.any() | bits_left.any())
