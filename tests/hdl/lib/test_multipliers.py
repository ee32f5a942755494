"""Multiplier blocks of FPGA families: which cells multiply, and what is refused."""

from __future__ import annotations

import re

import pytest

from weft.boards.registry import BOARDS, FAMILIES
from weft.hdl.core import Core
from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.core import SequentialCore
from weft.hdl.verilog import generate

TINY = PRESETS["tiny"]
PLAIN = TINY.replace(probability_bits=0)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("config", "family", "cell", "count"),
    [
        (TINY, "ecp5", "MULT18X18D", 8),
        (TINY.replace(n=8, bus_bytes=8), "ecp5", "MULT18X18D", 32),
        (PLAIN.replace(multiply=0), "ice40", "SB_MAC16", 8),
        (PLAIN, "gowin", "MULT9X9", 0),
    ],
)
def test_cells(config: Config, family: str, cell: str, count: int) -> None:
    verilog = generate(Core(config, FAMILIES[family].fabric.multipliers), name="top")
    assert verilog.count(f"  {cell} #(") == count
    # On iCE40 nothing is left to multiply but by constants, as the array takes all there is.
    assert bool(re.search(r" \* (?!\d+'h)", verilog)) == (family != "ice40")


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("n", "count", "inferred"), [(2, 4, 0), (4, 16, 0), (8, 56, 8)])
def test_narrow_cells_are_used_first(n: int, count: int, inferred: int) -> None:
    """By the sequential core."""
    config = PLAIN.replace(n=n, lanes=1, bus_bytes=max(4, n))
    verilog = generate(SequentialCore(config, FAMILIES["gowin5a"].fabric.multipliers), name="top")
    assert verilog.count("  MULT12X12 #(") == count == min(n * n, BOARDS["tang-primer-25k"].available.dsp)
    assert len(re.findall(r" \* (?!\d+'h)", verilog)) == inferred


def test_impossible_products_are_refused() -> None:
    message = r"^configuration field 'probability_bits' must be 7 or 0 for ice40, .* not 8$"
    with pytest.raises(ConfigError, match=message):
        FAMILIES["ice40"].fabric.multipliers.check(TINY)
