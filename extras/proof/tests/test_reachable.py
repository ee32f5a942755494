"""Proofs by induction that a mutant equals its core after a reset."""

from __future__ import annotations

import re

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.mutants.equivalence import prove_equal, prove_equal_from_reset
from weft.extras.proof.mutants.mutated import PLAIN, Mutant, MutatedCore, MutationError, mutate_core
from weft.hdl.lib.loopnest import LoopNest
from weft.sim.rtl.library import TOP


class Walker(wiring.Component):
    """Nest of two loops that starts only after its end, and advances only while it is active."""

    def __init__(self) -> None:
        super().__init__(
            {"start": In(1), "go": In(1), "outer": In(3), "inner": In(3), "value": Out(4), "busy": Out(1)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.nest = nest = LoopNest({"outer": 3, "inner": 3}, {"at": (4, {"outer": 4, "inner": 4})})
        m.d.comb += [
            nest.load.eq(self.start & ~nest.active),
            nest.step.eq(self.go & nest.active),
            nest.counts.outer.eq(self.outer),
            nest.counts.inner.eq(self.inner),
            nest.strides.at.outer.eq(5),
            nest.strides.at.inner.eq(1),
            self.busy.eq(nest.active),
            self.value.eq(nest.values.at),
        ]
        return m


@pytest.fixture(scope="module")
def core() -> MutatedCore:
    return mutate_core(Walker(), 4, 1)


def invert_bit(core: MutatedCore, register: str) -> Mutant:
    text = (core.folder / PLAIN).read_text()
    cell = re.search(rf"cell \$\w*dff\w* (\S+)\n(?:    .*\n)*?    connect \\Q \\nest\.{register}\n", text)
    assert cell is not None
    return Mutant(1, "nest", f"mutate -mode inv -module {TOP} -cell {cell[1]} -port Q -portbit 0 -ctrlbit 1")


def test_an_unused_register_is_proven_equal(core: MutatedCore) -> None:
    """The mutated register is the outermost loop's reload value, which is never used."""
    mutant = invert_bit(core, "reload_outer")
    assert prove_equal(core.folder / PLAIN, [mutant]) == {1: False}
    assert prove_equal_from_reset(core.folder / PLAIN, [mutant]) == {1: True}


@pytest.mark.parametrize("register", ["reload_inner", "left_outer", "near_outer", "single_inner"])
def test_a_used_register_is_not(core: MutatedCore, register: str) -> None:
    assert prove_equal_from_reset(core.folder / PLAIN, [invert_bit(core, register)]) == {1: False}


def test_errors_of_yosys_are_reported(core: MutatedCore) -> None:
    wrong = Mutant(1, "core", f"mutate -mode inv -module {TOP} -cell nothing -port A -portbit 0")
    with pytest.raises(MutationError, match="yosys failed"):
        prove_equal_from_reset(core.folder / PLAIN, [wrong])
