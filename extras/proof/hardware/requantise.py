"""Properties of requantisation, with and without multipliers."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.memories import small
from weft.extras.proof.hardware.pipelines import ago, implies, settled
from weft.extras.proof.hardware.property import Bench, Bounded, Induction, Property
from weft.hdl.isa import Reduce
from weft.hdl.isa.config import Config
from weft.hdl.vector.requantise import LATENCY, Requantise, SerialRequantise

_LOW_BITS = 17
"""Number of low bits of a factor, whose product is separate: the proof is cut there."""
_TAG = 3


class LaneBench(Bench, unit=Requantise, drives=("settings",)):
    """One lane of the requantiser with free inputs and constant settings.

    The proof is cut at the register for the sum of products, p: `ProductBench` claims that it holds p, `RoundingBench`
    that results follow from it, both for operands of full width.
    """

    def watch(self, m: Module) -> None:
        self.settings = self.dut.settings
        settings = Value.cast(self.dut.settings)
        m.d.comb += settings.eq(self.constant(m, len(settings), "settings"))
        self.product = self.peek("product_0")
        self._watch(m)

    def _watch(self, m: Module) -> None:
        raise NotImplementedError


class ProductBench(LaneBench):
    """The product's register holds the reduction, biased, times the mantissa plus the second operand times its own, as
    a sum of products of parts, for all operands; results and tags come in their cycle.

    The path to p is cut at the unit's registers. Each is claimed to hold its definition of `weft.hdl.isa.Vec`, in terms
    of the registers before it: the reduction, then ``v``, then the sum of products.
    """

    def _watch(self, m: Module) -> None:
        self._claim_timing(m)
        self._claim_reduction(m)
        self._claim_value(m)
        self._claim_product(m)

    def _claim_timing(self, m: Module) -> None:
        """Claim that the result of a last element and its tag come `LATENCY` cycles later, and nothing else does."""
        dut = self.dut
        due = ago(m, dut.valid & dut.last, LATENCY, "due", reset=True)
        self.claim("result comes in its cycle", dut.result_valid == due)
        self.claim("tag", implies(due, dut.result_tag == ago(m, dut.tag, LATENCY, "tag")))
        self.cover("result", dut.result_valid & (dut.results[0] != 0))

    def _claim_reduction(self, m: Module) -> None:
        """Claim that the register holds the element, maximum or sum so far, after the first element of a reduction."""
        dut, mode = self.dut, self.settings.reduce
        element, reduced = dut.elements[0], self.peek("reduced_0")
        before, known = Signal(signed(32), name="so_far", reset_less=True), Signal(name="so_far_known")
        so_far = Signal(signed(32), name="with_element")
        with m.If(dut.first | (mode == Reduce.NONE)):
            m.d.comb += so_far.eq(element)
        with m.Elif(mode == Reduce.MAX):
            m.d.comb += so_far.eq(Mux(element > before, element, before))
        with m.Else():
            m.d.comb += so_far.eq(before + element)
        with m.If(dut.valid):
            m.d.sync += [before.eq(so_far), known.eq(known | dut.first | (mode == Reduce.NONE))]
        self.assume(mode <= Reduce.SUM)
        self.claim("reduction", implies(known, reduced == before))
        self.reduced = reduced

    def _claim_value(self, m: Module) -> None:
        """Claim ``v``, and the second operand less its zero point: negative with `subtract`, and 0 without `add`."""
        dut, settings = self.dut, self.settings
        column = dut.columns[0]
        self.value = self.peek("value_0")
        bias = ago(m, column.bias, 1, "bias")
        self.claim("biased", self.value == ago(m, (self.reduced + bias)[:32].as_signed(), 1, "biased"))
        second = ago(m, dut.second[0], 1, "second").as_signed()
        difference = Mux(settings.subtract, settings.b_zero - second, second - settings.b_zero)
        self.other = self.peek("other_0")
        expected = Mux(settings.add, difference, 0)
        self.claim("other", self.other == ago(m, expected, 1, "other_due").as_signed())
        self.mantissa = self.peek("mantissa_2_0")
        self.claim("mantissa", self.mantissa == ago(m, column.mantissa, 2, "mantissa"))

    def _claim_product(self, m: Module) -> None:
        """Claim ``v * mantissa + other * b_mantissa``, three cycles later.

        The claim is the sum of the products of parts of the factors: of the low 17, the next 3 and all other bits of a
        mantissa, and of 17 and 15 bits of ``v``, each times its power of two. Multiplication is distributive, so this
        is the product.
        """
        v, o, mantissa, factor = self.value, self.other, self.mantissa, self.settings.b_mantissa
        products = {
            "low_product": v[:_LOW_BITS] * mantissa[:_LOW_BITS],
            "high_product": v[_LOW_BITS:].as_signed() * mantissa[:_LOW_BITS],
            "other_product": o * factor[:_LOW_BITS],
        }
        if len(mantissa) > _LOW_BITS:
            products |= {
                "value_middle": v * mantissa[_LOW_BITS : _LOW_BITS + 3],
                "other_middle": o * factor[_LOW_BITS : _LOW_BITS + 3],
                "value_top": v * mantissa[_LOW_BITS + 3 :],
                "other_top": o * factor[_LOW_BITS + 3 :],
            }
        terms: dict[str, Value] = {}
        for name, product in products.items():
            terms[name] = self.peek(f"{name}_0")
            self.claim(name.replace("_", " "), terms[name] == ago(m, product, 1, name))
        places = {"high_product": _LOW_BITS, "value_middle": _LOW_BITS, "other_middle": _LOW_BITS}
        places |= {"value_top": _LOW_BITS + 3, "other_top": _LOW_BITS + 3}
        total: Value = Const(0, signed(1))
        for name, term in terms.items():
            total = total + (term << places.get(name, 0))
        self.claim("product", self.product == ago(m, total[: len(self.product)].as_signed(), 2, "whole"))


class RoundingBench(LaneBench):
    """Any product, shifted by any number, is rounded half to even; with the zero point it is clamped.

    The path from p to the result: p is shifted, rounded to nearest with ties to even, added to ``zero``, and clamped,
    in four cycles; with softmax, the score comes as well.
    """

    def _watch(self, m: Module) -> None:
        settings, dut = self.settings, self.dut
        shift = self.peek("shift_5_0")
        self.claim("shift", shift == ago(m, dut.columns[0].shift, 5, "shift"))
        total = Signal(signed(len(self.product) + 2), name="rounded_total")
        m.d.comb += total.eq(half_even(m, self.product, shift, "rounded") + settings.zero)
        # `low` goes before `high`: with low > high, which no program has, the definition gives `high`.
        result = Mux(total < settings.low, settings.low, total)
        result = Mux(result > settings.high, settings.high, result)
        there = settled(m, 4, "full")
        self.claim("result", implies(there, dut.results[0] == ago(m, result[:8].as_signed(), 4, "result")))
        self.cover("rounded down to even", there & (dut.results[0] == 2) & ago(m, shift == 3, 4, "shifted"))
        if dut.config.softmax:
            most = (1 << 15) - 1
            score = Mux(total > most, most, Mux(total < -most - 1, -most - 1, total))[:16].as_signed()
            self.claim("score", implies(there, dut.scores[0] == ago(m, score, 4, "score")))


def half_even(m: Module, value: Value, shift: Value, name: str) -> Signal:
    """Return ``value / 2**shift``, rounded to nearest with ties to even, by comparing the remainder with a half."""
    below = Signal(signed(len(value)), name=f"{name}_below")
    twice = Signal((1 << len(shift)) + 2, name=f"{name}_twice")  # twice what is left
    unit = Signal((1 << len(shift)) + 1, name=f"{name}_unit")
    result = Signal(signed(len(value) + 1), name=name)
    m.d.comb += [
        below.eq(value >> shift),
        unit.eq(1 << shift),
        twice.eq((value & (unit - 1)) << 1),
        result.eq(below + ((twice > unit) | ((twice == unit) & below[0]))),
    ]
    return result


_SERIAL_BITS = 9
"""Smallest width of mantissas."""
_ENDS = 1 << _SERIAL_BITS - 1 | 1
"""Bits of mantissas that may be 1. The unit treats all bits alike, and a proof of all takes too long."""
_FEW = 4
"""Width of elements and biases."""
_SERIAL_DEPTH = 18


class SerialBench(Bench, unit=SerialRequantise, drives=("settings",)):
    """An element plus its bias, times the mantissa, plus the second operand times its own mantissa, is shifted by any
    number, rounded half to even and clamped. The result comes in the documented number of cycles, with its tag.

    Only the first and last bit of mantissas are free, the others are 0; elements and biases have few bits. Assumed:
    settings do not change; reductions are of one element, because properties of the parallel unit prove longer ones; an
    element comes when the result of the one before is complete.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        settings, column = dut.settings, dut.columns[0]
        m.d.comb += Value.cast(settings).eq(self.constant(m, len(Value.cast(settings)), "settings"))
        self.assume(~dut.valid | dut.first & dut.last)
        for number in (dut.elements[0], column.bias):
            few = number[_FEW - 1 :]
            self.assume(few.all() | ~few.any())
        for mantissa in (column.mantissa, settings.b_mantissa):
            self.assume((mantissa & ~_ENDS) == 0)
        comes, pending, tag = Signal(name="comes"), Signal(name="pending"), Signal(_TAG, name="expected_tag")
        m.d.comb += comes.eq(dut.valid & dut.last)
        self.assume(~comes | ~pending | dut.result_valid)
        value = (dut.elements[0] + column.bias)[:32].as_signed()
        second = dut.second[0]
        difference = Mux(settings.subtract, settings.b_zero - second, second - settings.b_zero)
        product = Signal(signed(33 + _SERIAL_BITS), name="exact")
        shift, left = Signal(6, name="shift"), Signal(range(64), name="left")
        with m.If(comes):
            m.d.sync += [
                product.eq(value * column.mantissa + Mux(settings.add, difference * settings.b_mantissa, 0)),
                shift.eq(column.shift),
                tag.eq(dut.tag),
                left.eq(
                    Mux(settings.add, 2 * _SERIAL_BITS, _SERIAL_BITS)
                    + column.shift[3:]
                    + column.shift[:3]
                    + 4
                ),
            ]
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        m.d.sync += pending.eq(comes | pending & ~dut.result_valid)
        self.claim("a result in its cycle", dut.result_valid == (pending & (left == 1)))
        self.claim("its tag", implies(dut.result_valid, dut.result_tag == tag))
        total = Signal(signed(len(product) + 2), name="rounded_total")
        m.d.comb += total.eq(half_even(m, product, shift, "rounded") + settings.zero)
        result = Mux(total < settings.low, settings.low, total)
        result = Mux(result > settings.high, settings.high, result)
        self.claim("result", implies(dut.result_valid, dut.results[0] == result[:8].as_signed()))
        self.cover("rounded", dut.result_valid & (shift == 3) & (dut.results[0] == 2))


def properties() -> Iterator[Property]:
    for mantissa_bits, softmax in ((24, 8), (16, 0)):
        sizes = {"mantissa_bits": mantissa_bits, "probability_bits": softmax}
        config = Config(n=2, lanes=1, bus_bytes=4, **sizes)
        name = f"mantissas of {mantissa_bits} bits{', softmax' if softmax else ''}"
        whole = mantissa_bits == 16  # products of 24 bits take longer than four minutes
        if whole:
            yield ProductBench.proves("vector/requantise", f"products, {name}", Induction(6), config, _TAG)
        yield RoundingBench.proves(
            "vector/requantise", f"rounding, {name}", Induction(10), config, _TAG, part=not whole
        )
    config = small(n=2, lanes=1, mantissa_bits=_SERIAL_BITS)
    yield SerialBench.proves(
        "vector/requantise_serial", "results", Bounded(_SERIAL_DEPTH), config, _TAG, cover=_SERIAL_DEPTH
    )
