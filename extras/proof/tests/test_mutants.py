"""Mutants of a skid buffer: its property detects them, a weaker property does not."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.engine import engines, netlist
from weft.extras.proof.engine.mutants import mutants
from weft.extras.proof.hardware import queues, transfers
from weft.extras.proof.hardware.instructions import load
from weft.extras.proof.hardware.property import Bench, Property
from weft.extras.proof.hardware.registry import of_module
from weft.extras.proof.hardware.softmax import rows
from weft.hdl.lib.queues import SkidBuffer


class Weak(Bench):
    """Claims only that a buffer without a word accepts one."""

    def watch(self, m: Module) -> None:
        self.claim("takes one", self.dut.i.ready | self.dut.o.valid)


def test_a_strong_property_kills_all() -> None:
    strong = next(queues.properties())
    actual = mutants(strong, 12, 3)
    assert (actual.killed, actual.count) == (12, 12)


def test_a_weak_property_misses_some() -> None:
    actual = mutants(
        Property("lib/skid_buffer", "weak", "It takes a word.", lambda: Weak(SkidBuffer(3))), 6, 3
    )
    assert 0 < len(actual.survivors) < actual.count == 6
    assert all(command.startswith("mutate ") for command in actual.survivors)


class Sum(wiring.Component):
    """``a + b`` and its parity, each a cycle later. A term does not influence the parity."""

    def __init__(self) -> None:
        super().__init__({"a": In(2), "b": In(2), "sum": Out(3), "odd": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        odd = self.a[0] ^ self.b[0]
        m.d.sync += [self.sum.eq(self.a + self.b), self.odd.eq(odd | (odd & self.a[1]))]
        return m


class Part(Bench):
    """Claims the value of one output of a `Sum`."""

    def __init__(self, about: str) -> None:
        super().__init__(Sum())
        self.about = about

    def watch(self, m: Module) -> None:
        dut = self.dut
        total, known = Signal(3), Signal()
        m.d.sync += [total.eq(dut.a + dut.b), known.eq(1)]
        if self.about == "sum":
            self.claim("sum", ~known | (dut.sum == total))
        else:
            self.claim("odd", ~known | (dut.odd == total[0]))


def part(about: str) -> Property:
    return Property("lib/sum", about, f"The {about} is right.", partial(Part, about))


def test_properties_of_parts_kill_together() -> None:
    actual = mutants(part("sum"), 10, 1, beside=[part("sum"), part("odd"), next(queues.properties())])
    assert (actual.killed, actual.others, actual.survivors, actual.undecided) == (5, 5, [], [])


def test_mutants_without_effect_are_no_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    either = re.search(r"cell \$or (\S+)", netlist.logic(netlist.source(Part("sum"))))
    assert either is not None
    term = f"mutate -mode {{}} -module top.dut -cell {either[1]} -port B -portbit 0"
    listed = [term.format("const0"), term.format("const1")]
    monkeypatch.setattr(netlist, "mutations", lambda *given: listed)
    actual = mutants(part("sum"), 2, 1)
    assert (actual.same, actual.survivors, actual.count) == (listed[:1], listed[1:], 1)


def test_timeouts_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other results are cached."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    with monkeypatch.context() as hurried:
        hurried.setattr(engines, "decide", lambda *given: engines.Verdict(None, "no time"))
        assert len(mutants(part("sum"), 3, 1).undecided) == 3
    actual = mutants(part("sum"), 3, 1)
    assert (actual.seen, len(actual.survivors), actual.undecided) == (2, 1, [])
    monkeypatch.setattr(engines, "decide", lambda *given: engines.Verdict(None, "no time"))
    assert mutants(part("sum"), 3, 1) == actual


class Half(wiring.Component):
    """The lower of two bits, a cycle later; the upper bit is registered but never read."""

    def __init__(self) -> None:
        super().__init__({"a": In(2), "o": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        kept = Signal(2)
        m.d.sync += kept.eq(self.a)
        m.d.comb += self.o.eq(kept[0])
        return m


class Watched(Bench):
    """Claims nothing."""

    def watch(self, m: Module) -> None:
        pass


@pytest.mark.parametrize("bit", [0, 1])
def test_unread_bits_are_no_faults(bit: int, tmp_path: Path) -> None:
    source = netlist.source(Watched(Half()))
    register = re.search(r"cell \$s?dff (\S+)", netlist.logic(source))
    assert register is not None
    mutation = f"mutate -mode inv -module top.dut -cell {register[1]} -port Q -portbit {bit}"
    assert netlist.changes_nothing(source, tmp_path, mutation) == (bit == 1)


def test_other_units_are_not_shown_the_mutants() -> None:
    logic = netlist.logic(netlist.source(Part("sum")))
    assert logic == netlist.logic(netlist.source(Part("odd")))
    assert logic != netlist.logic(netlist.source(next(queues.properties()).bench()))


@pytest.mark.parametrize(
    "titles",
    [
        ("vector/row_states: update", "vector/row_states: memory of 4"),
        (
            "load/pages: words of 4 bytes, base registers",
            "load/pages: entries in words of 4 bytes, base registers",
        ),
        ("load/unpack: places of vectors", "load/unpack: bytes of vectors"),
    ],
)
def test_observed_signals_do_not_change_the_unit(titles: tuple[str, str]) -> None:
    """Amaranth then reorders connections and renumbers unnamed signals."""
    every = {item.title: item for module in (rows, transfers, load) for item in of_module(module)}
    first, second = (netlist.logic(netlist.source(every[title].bench())) for title in titles)
    assert first == second


class Outer(wiring.Component):
    """A `Sum`, and beside it a register."""

    def __init__(self) -> None:
        super().__init__({"a": In(2), "b": In(2), "sum": Out(3), "kept": Out(2)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.inner = inner = Sum()
        m.d.comb += [inner.a.eq(self.a), inner.b.eq(self.b), self.sum.eq(inner.sum)]
        m.d.sync += self.kept.eq(self.a ^ self.b)
        return m


class Kept(Bench):
    def watch(self, m: Module) -> None:
        self.claim("little", self.dut.kept == self.dut.kept)


def test_submodules_are_left_out(tmp_path: Path) -> None:
    actual = netlist.source(Kept(Outer()))
    every = netlist.mutations(actual, tmp_path, 12, 1)
    assert any("top.dut.inner" in command for command in every)
    some = netlist.mutations(actual, tmp_path, 12, 1, but=("inner",))
    assert {command.split(" -module ")[1].split()[0] for command in some} == {"top.dut"}
