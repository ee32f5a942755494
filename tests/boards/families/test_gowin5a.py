"""Gowin's Arora V: what a netlist needs, and the cells that are made for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.build import estimate
from weft.boards.build.build import elaborate
from weft.boards.families.family import Resources
from weft.boards.flash.chip import spi_flash_pads
from weft.boards.registry import BOARDS

BOARD = BOARDS["tang-primer-25k"]


class Echo(wiring.Component):
    """The smallest top component with pads of a flash chip, which do nothing of use."""

    def __init__(self) -> None:
        super().__init__({"rx": In(1), "tx": Out(1), "flash": Out(spi_flash_pads())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += [self.tx.eq(self.rx), self.flash.clk.eq(self.flash.dq_i[0]), self.flash.dq_oe.eq(self.rx)]
        return m


def test_memories_with_a_port_each_way_take_two_blocks_where_they_are_wide(tmp_path: Path) -> None:
    widths = [
        ("SDPX9B", "_0", 36, 2), ("SDPX9B", "_0", 18, 1), ("SDPB", "_0", 32, 2), ("SDPB", "_0", 16, 1),
        ("DPX9B", "_0", 18, 1), ("SPX9", "", 36, 1), ("SP", "", 32, 1),
    ]  # fmt: skip
    cells = {
        f"{kind}{bits}": {
            "type": kind,
            "parameters": {f"BIT_WIDTH{suffix.replace('0', end)}": f"{bits:032b}" for end in "01"},
        }
        for kind, suffix, bits, _ in widths
    }
    path = tmp_path / "top.json"
    path.write_text(json.dumps({"modules": {"top": {"cells": cells}}}))
    counts = {"LUT4": 5, "ALU": 2, "DFFRE": 3, "MULT12X12": 4, "MUX2_LUT5": 9}
    for kind, *_ in widths:
        counts[kind] = counts.get(kind, 0) + 1
    need = BOARD.family.needs(counts, path)
    assert need == Resources(lut=7, ff=3, dsp=4, ram=sum(blocks for *_, blocks in widths))


def test_the_estimate_of_the_boards_own_configuration() -> None:
    """The weights were not fitted to it; the estimate is within a fifteenth of synthesis."""
    need = estimate.estimate(BOARD, BOARD.config)
    assert need is not None
    for kind, count in Resources(lut=9930, ff=3356, dsp=56, ram=52).items():
        assert getattr(need, kind) == pytest.approx(count, rel=1 / 15), kind


def test_products_beyond_the_blocks_are_estimated_as_luts() -> None:
    small, large = (estimate.estimate(BOARD, BOARD.config.replace(n=n, bus_bytes=n)) for n in (4, 16))
    assert small is not None
    assert large is not None
    assert (small.dsp, large.dsp) == (16, BOARD.available.dsp)
    assert large.lut > small.lut + (16 * 16 - 56) * 80


@pytest.mark.parametrize("clock", [48e6, 60e6, 72e6])
def test_the_loop_makes_the_clock(clock: float) -> None:
    """All parameters of its cell must be given: the bitstream writer cannot read its own defaults."""
    design = elaborate(BOARD, BOARD.config, clock, lambda *given: Echo())
    text = design.files["top.il"]
    found = {
        name: int(value)
        for name, value in re.findall(r"parameter \\(\w+DIV\w*_SEL) [\w']*?(\d+)$", text, re.M)
    }
    made = 50e6 / found["IDIV_SEL"] * found["FBDIV_SEL"] * found["MDIV_SEL"] / found["ODIV0_SEL"]
    assert made == pytest.approx(clock, rel=0.005)
    assert design.clock == pytest.approx(made)
    assert {f"ODIV{k}_SEL" for k in range(7)} <= found.keys()


def test_the_pads_of_the_flash() -> None:
    """They are configuration pins, which become pads only if both tools are told so."""
    design = elaborate(BOARD, BOARD.config, BOARD.clock, lambda *given: Echo())
    pads = dict(re.findall(r'^IO_LOC "spi_flash_2x_0__([\w\[\]]+)" (\w+)', design.files["top.cst"], re.M))
    assert pads == {"clk__io": "E7", "cs__io": "E6", "dq__io[0]": "D6", "dq__io[1]": "E5"}
    assert "sspi_as_gpio" in BOARD.place
    assert {"--sspi_as_gpio", "--mspi_as_gpio", "--cpu_as_gpio"} <= set(BOARD.pack)
