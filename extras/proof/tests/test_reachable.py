"""A mutant that differs only while nobody asks is the same hardware from a reset on; one that can be told is not."""

from __future__ import annotations

import re

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.mutants.equivalence import prove_equal, prove_equal_from_reset
from weft.extras.proof.mutants.mutated import PLAIN, Mutant, MutatedCore, MutationError, mutate_core
from weft.hdl.lib.loopnest import LoopNest
from weft.sim.rtl.device import TOP


class Walker(wiring.Component):
    """A nest of two loops that begins again only where it has ended, and goes on only where it is active."""

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
def found() -> MutatedCore:
    return mutate_core(Walker(), 4, 1)


def inverted(found: MutatedCore, register: str) -> Mutant:
    """The lowest bit of what a register of the nest holds."""
    text = (found.folder / PLAIN).read_text()
    cell = re.search(rf"cell \$\w*dff\w* (\S+)\n(?:    .*\n)*?    connect \\Q \\nest\.{register}\n", text)
    assert cell is not None
    return Mutant(1, "nest", f"mutate -mode inv -module {TOP} -cell {cell[1]} -port Q -portbit 0 -ctrlbit 1")


def test_what_is_never_asked_for_is_the_same_hardware(found: MutatedCore) -> None:
    """What the outermost loop would begin anew with."""
    mutant = inverted(found, "reload_outer")
    assert prove_equal(found.folder / PLAIN, [mutant]) == {1: False}
    assert prove_equal_from_reset(found.folder / PLAIN, [mutant]) == {1: True}


@pytest.mark.parametrize("register", ["reload_inner", "left_outer", "near_outer", "single_inner"])
def test_what_can_be_seen_is_not(found: MutatedCore, register: str) -> None:
    assert prove_equal_from_reset(found.folder / PLAIN, [inverted(found, register)]) == {1: False}


def test_a_mutation_that_yosys_refuses_is_said(found: MutatedCore) -> None:
    wrong = Mutant(1, "core", f"mutate -mode inv -module {TOP} -cell nothing -port A -portbit 0")
    with pytest.raises(MutationError, match="yosys failed"):
        prove_equal_from_reset(found.folder / PLAIN, [wrong])
