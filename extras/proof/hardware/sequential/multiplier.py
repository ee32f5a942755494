"""Properties of `weft.hdl.sequential.multiplier`."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Bounded, Property
from weft.hdl.sequential.multiplier import Multiplier, digits

_BITS = 4
"""Width of the multiplier. The unit treats all digits alike, and a proof of wide ones takes too long."""
_MULTIPLICAND_BITS = 6
_PRODUCT_BITS = 34 + 2 * digits(_BITS, 0)
_MAGNITUDE_BITS = 30
"""Bits of a saturated result without its sign."""
_DEPTH = 9


class MultiplierBench(Bench):
    """The product, plus the one that is kept, is shifted right by any number, rounded down, and saturated or taken
    modulo 2**32. With it comes its rounding bit, to nearest even or up, in the documented number of cycles.

    Multiplier and multiplicand have few bits; shift and the kept product are unconstrained. Assumed: there is at most
    one command a cycle, and only while the unit is ready; a product that is kept was shifted by 0 and has 34 bits.
    """

    UNIT = Multiplier

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        strobes = Cat(dut.set_multiplicand, dut.set_shift, dut.start)
        self.assume(~strobes.any() | dut.ready & ((strobes & (strobes - 1)[:3]) == 0))
        factor = Signal(signed(_MULTIPLICAND_BITS), name="factor", reset_less=True)
        exact, begun = Signal(signed(_PRODUCT_BITS), name="exact"), Signal(name="begun")
        given_shift, shift = Signal(6, name="given"), Signal(7, name="expected_shift")
        small = exact[33:].all() | ~exact[33:].any()
        self.assume(~(dut.start & dut.keep) | begun & (shift == 0) & small)
        few = dut.value[_MULTIPLICAND_BITS - 1 : 32]
        self.assume(~dut.set_multiplicand | few.all() | ~few.any())
        whole = given_shift | dut.shift
        multiplier = self.dut.value[:_BITS]
        with m.If(dut.set_multiplicand):
            m.d.sync += factor.eq(dut.value)
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
        """Claim the results by their definition, for any shift."""
        dut = self.dut
        low: Value = exact >> shift
        fits = dut.raw | low[_MAGNITUDE_BITS:].all() | ~low[_MAGNITUDE_BITS:].any()
        most = Mux(exact < 0, -(1 << _MAGNITUDE_BITS), 1 << _MAGNITUDE_BITS)
        self.claim("result", implies(there, dut.result == Mux(fits, low[:32], most)[:32]))
        guard = (Cat(0, exact).as_signed() >> shift)[0]
        lost = (Cat(0, exact) & ((1 << shift) - 1)) != 0
        up = fits & guard & (dut.raw | lost | low[0])
        self.claim("what rounds it", implies(there, dut.round == up))


def properties() -> Iterator[Property]:
    yield MultiplierBench.proves(
        "sequential/multiplier", f"products of {_MULTIPLICAND_BITS} and {_BITS} bits", Bounded(_DEPTH), _BITS
    )
