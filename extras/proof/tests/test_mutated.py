"""Mutants of a small unit in one build: each differs from the unit, or is proven equal."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from amaranth.hdl import Fragment

from weft.extras.proof.mutants.equivalence import prove_equal
from weft.extras.proof.mutants.mutated import (
    PLAIN,
    Mutant,
    MutatedCore,
    MutationError,
    apportion,
    mutate_core,
    select_mutant,
    unit_of,
)
from weft.hdl.lib.queues import SkidBuffer
from weft.sim.rtl.library import TOP
from weft.sim.verilate import Model

COUNT = 12
DRIVER = r"""
#include <cstdint>
#include <cstdio>
#include "Vtop.h"
#include "verilated.h"
double sc_time_stamp() { return 0; }
int main() {
    VerilatedContext context;
    Vtop top(&context);
    uint32_t random = 1;
    for (int cycle = 0; cycle < 400; cycle++) {
        random = random * 1664525 + 1013904223;
        top.rst = cycle < 2 || cycle % 100 == 50;
        top.i___05Fvalid = random >> 30 & 1, top.i___05Fpayload = random >> 24 & 7, top.o___05Fready = random >> 20 & 1;
        top.clk = 0, top.eval();
        std::printf("%d%d%d", top.i___05Fready, top.o___05Fvalid, top.o___05Fvalid ? top.o___05Fpayload : 0);
        top.clk = 1, top.eval();
    }
    top.final();
}
"""


def outputs(core: MutatedCore, folder: Path) -> dict[int, str]:
    """Return traces of ports over 400 cycles, by the number of the mutant; 0 for the unit itself."""
    (folder / "driver.cpp").write_text(DRIVER)
    model = Model(verilog=core.verilog, top=TOP, driver=folder / "driver.cpp", output="run").build()
    traces = {}
    for number in range(len(core.mutants) + 1):
        with select_mutant(number):
            traces[number] = subprocess.run([model], capture_output=True, text=True, check=True).stdout
    return traces


@pytest.fixture(scope="module")
def core() -> MutatedCore:
    return mutate_core(SkidBuffer(3), COUNT, 5)


def test_each_mutant_differs_or_is_proven_equal(core: MutatedCore, tmp_path: Path) -> None:
    traces = outputs(core, tmp_path)
    assert len(core.mutants) == COUNT
    assert len({mutant.command for mutant in core.mutants}) == COUNT
    alive = [mutant for mutant in core.mutants if traces[mutant.number] == traces[0]]
    assert len(alive) < COUNT / 2
    assert all(prove_equal(core.folder / PLAIN, alive).values())


def test_a_mutant_that_differs_is_not_proven_equal(core: MutatedCore, tmp_path: Path) -> None:
    traces = outputs(core, tmp_path)
    killed = next(mutant for mutant in core.mutants if traces[mutant.number] != traces[0])
    assert prove_equal(core.folder / PLAIN, [killed]) == {killed.number: False}


def test_an_unchanged_core_is_proven_equal(core: MutatedCore) -> None:
    """Yosys' mutation `none` changes nothing."""
    first = core.mutants[0].command
    nothing = Mutant(1, "core", " ".join(["mutate", "-mode", "none", *first.split()[3:]]))
    assert prove_equal(core.folder / PLAIN, [nothing]) == {1: True}


def test_mutants_depend_on_the_seed_only(core: MutatedCore) -> None:
    assert mutate_core(SkidBuffer(3), COUNT, 5) == core
    assert mutate_core(SkidBuffer(3), COUNT, 6).mutants != core.mutants


def test_a_wrong_number_is_refused() -> None:
    unit = SkidBuffer(3)
    Fragment.get(unit, None)  # a component that nobody elaborates makes a warning
    with pytest.raises(MutationError, match="the number of mutants is from 1 to 65535, not 0"):
        mutate_core(unit, 0, 1)


def test_errors_of_yosys_are_reported(core: MutatedCore) -> None:
    wrong = Mutant(1, "core", f"mutate -mode inv -module {TOP} -cell nothing -port A -portbit 0")
    with pytest.raises(MutationError, match="yosys failed"):
        prove_equal(core.folder / PLAIN, [wrong])


def test_apportion() -> None:
    assert apportion({"a": 10, "b": 10, "c": 80}, 10) == {"a": 1, "b": 1, "c": 8}
    assert sum(apportion({"a": 1, "b": 1, "c": 1}, 10).values()) == 10


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("\\mm.weights$80.nest.step", "mm.weights"),
        ("$flatten\\mm.\\rows.$12", "mm.rows"),
        ("\\load.based__payload.end", "load"),
        ("\\s_axi_awaddr", ""),
        ("$auto$ff.cc:337:slice$7", ""),
    ],
)
def test_units_of_names(name: str, unit: str) -> None:
    assert unit_of(name, {"mm", "mm.rows", "mm.weights$80", "mm.weights$80.nest", "load"}) == unit
