"""Mutants of a skid buffer: the property of its words sees them, a weaker one does not."""

from __future__ import annotations

from amaranth.hdl import Module

from weft.hdl.formal import queues
from weft.hdl.formal.property import Bench, Property
from weft.hdl.lib.skid_buffer import SkidBuffer
from weft.sim.formal.mutants import mutants


class Weak(Bench):
    """Claims that a buffer that shows no word takes one, which is little."""

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        self.claim("takes one", self.dut.i.ready | self.dut.o.valid)


def test_a_strong_property_kills_all() -> None:
    strong = next(queues.properties())
    found = mutants(strong, 12, 3)
    assert (found.killed, found.count) == (12, 12)


def test_a_weak_one_does_not() -> None:
    found = mutants(
        Property("lib/skid_buffer", "weak", "It takes a word.", lambda: Weak(SkidBuffer(3))), 12, 3
    )
    assert 0 < len(found.survivors) < found.count == 12
    assert all(command.startswith("mutate ") for command in found.survivors)
