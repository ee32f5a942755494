"""Coverage of a small design, counted by Verilator, and what explanations of the rest must be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from weft.sim.rtl.coverage import CoverageError, Explanation, Point, close, explanations, merge, read
from weft.sim.verilate import Model

DESIGN = r"""
module weft(input clk, input rst, input never, output reg [2:0] count, output \$3 );
  initial count = 0;
  wire \$12 ;
  assign \$12 = count[0];
  assign \$3 = never ? rst : \$12 ;
  always @(posedge clk)
    count <= count == 3 ? 3'd0 : count + 3'd1;
endmodule
"""
DRIVER = r"""
#include "Vtop.h"
#include "verilated.h"
#include "verilated_cov.h"
double sc_time_stamp() { return 0; }
int main(int, char** arguments) {
    VerilatedContext context;
    Vtop top(&context);
    for (int cycle = 0; cycle < 10; cycle++) top.clk = 0, top.eval(), top.clk = 1, top.eval();
    context.coveragep()->write(arguments[1]);
}
"""


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[Point, int]:
    folder = tmp_path_factory.mktemp("coverage")
    (folder / "driver.cpp").write_text(DRIVER)
    model = Model(verilog=DESIGN, top="weft", driver=folder / "driver.cpp", output="run", coverage=True)
    subprocess.run([model.build(), folder / "found.dat"], check=True)
    return read(folder / "found.dat", DESIGN)


def test_events_are_counted(counts: dict[Point, int]) -> None:
    assert counts[Point("toggle", "core", "count[1]:0->1")] > 1
    assert counts[Point("toggle", "core", "count[2]:0->1")] == 0
    assert counts[Point("toggle", "core", "never:0->1")] == 0
    sides = {point.name: count for point, count in counts.items() if point.kind == "branch"}
    assert sides["$3 cond_then 1"] == 0
    assert sides["$3 cond_else 1"] > 0
    assert all(count for point, count in counts.items() if point.kind == "line")


def test_results_within_expressions_are_no_points(counts: dict[Point, int]) -> None:
    names = {point.name for point in counts if point.kind == "toggle"}
    assert not [name for name in names if name.startswith(("$12", "$3"))]


def test_uncovered_points_must_be_explained(counts: dict[Point, int]) -> None:
    why = [Explanation(1, "*", "toggle", "core", "count[2:2]", "it stops at 3")]
    found = close("some", counts, {("core", "rst")}, why)
    assert Point("toggle", "core", "never:0->1") in found.unexplained
    assert not [point for point in found.unexplained if point.name.startswith(("count", "rst"))]
    assert found.count_explained("toggle") == 2
    assert found.covered["line"] == found.total["line"]
    assert found.units["core"]["toggle"] == (found.covered["toggle"], found.total["toggle"])


def test_an_explanation_is_of_its_core_unit_and_bits_only() -> None:
    item = Explanation(1, "big", "toggle", "axi*", "address[31:18]", "memory is smaller")
    assert item.matches("big", Point("toggle", "axi.skid", "address[31]:0->1"))
    for core, unit, name in (("small", "axi", "address[31]:0->1"), ("big", "load", "address[31]:0->1"),
                             ("big", "axi", "address[17]:0->1"), ("big", "axi", "other[31]:0->1")):  # fmt: skip
        assert not item.matches(core, Point("toggle", unit, name))


def test_counts_are_added() -> None:
    one, two = Point("line", "core", "a block 1"), Point("line", "core", "b block 1")
    assert merge([{one: 0, two: 1}, {one: 2}]) == {one: 2, two: 1}
    assert merge([{one: 0}]) == {one: 0}


def test_explanations_are_read(tmp_path: Path) -> None:
    path = tmp_path / "why.txt"
    path.write_text("# about\n\n* branch store o cond_then 1 | it is never full\n")
    assert explanations(path) == [Explanation(3, "*", "branch", "store", "o cond_then 1", "it is never full")]


@pytest.mark.parametrize("line", ["big toggle axi address", "big toggle axi address | ", "big toggle | why"])
def test_a_line_that_explains_nothing_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "why.txt").write_text(line + "\n")
    with pytest.raises(CoverageError, match=r"line 1: .* is not of the form"):
        explanations(tmp_path / "why.txt")


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "found.dat").write_text("hello\n")
    with pytest.raises(CoverageError, match="is no file of Verilator's coverage"):
        read(tmp_path / "found.dat", DESIGN)
    (tmp_path / "found.dat").write_text("# SystemC::Coverage-3\nC 'x' y\n")
    with pytest.raises(CoverageError, match="is no count of coverage"):
        read(tmp_path / "found.dat", DESIGN)
