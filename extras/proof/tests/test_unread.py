"""Bits that no output depends on, in a unit that has such bits by construction."""

from __future__ import annotations

from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.extras.proof.mutants.constants import unread_mutants
from weft.extras.proof.mutants.equivalence import prove_equal
from weft.extras.proof.mutants.mutated import PLAIN, Mutant, MutatedCore, MutationError, mutate_core

LOW = 4
"""Bits of words that are read."""


class Words(wiring.Component):
    """Memory of four words of 8 bits, sums of a word read before and an input; only low bits are outputs."""

    def __init__(self) -> None:
        super().__init__({"at": In(2), "a": In(8), "y": Out(LOW)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = words = Memory(shape=8, depth=4, init=[])
        read, write = words.read_port(domain="comb"), words.write_port()
        held = Signal(8)
        m.d.sync += held.eq(read.data)
        m.d.comb += [
            read.addr.eq(self.at),
            write.addr.eq(self.at),
            write.en.eq(1),
            write.data.eq(held + self.a),
            self.y.eq(held[:LOW] ^ read.data[:LOW]),
        ]
        return m


@pytest.fixture(scope="module")
def core() -> MutatedCore:
    return mutate_core(Words(), 60, 1)


def test_upper_bits_of_words_are_unread(core: MutatedCore) -> None:
    """Only these are unread: not addresses, and not operands of low bits."""
    unread = unread_mutants(core.folder / PLAIN, core.mutants)
    upper = set()
    for mutant in core.mutants:
        _, port, bit = mutant.pin
        if port not in ("RD_ADDR", "WR_ADDR", "RD_EN", "S") and bit >= LOW:
            upper.add(mutant.number)
    assert unread == upper
    assert 0 < len(unread) < len(core.mutants) - 10


def test_sat_alone_does_not_see_it(core: MutatedCore) -> None:
    """SAT treats inputs of registers and memories as outputs."""
    unread = unread_mutants(core.folder / PLAIN, core.mutants)
    stored = next(
        mutant for mutant in core.mutants if mutant.number in unread and "WR_DATA" in mutant.command
    )
    assert prove_equal(core.folder / PLAIN, [stored]) == {stored.number: False}


def test_an_invalid_netlist(tmp_path: Path) -> None:
    (tmp_path / PLAIN).write_text("nonsense")
    with pytest.raises(MutationError, match="yosys failed"):
        unread_mutants(
            tmp_path / PLAIN, [Mutant(1, "core", "mutate -mode inv -module top -cell $1 -port Y -portbit 0")]
        )
