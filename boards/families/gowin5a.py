"""Gowin Arora V: Yosys, nextpnr-himbaechel and Apicula as for earlier families, with other multipliers and another PLL.

Public sources disagree on the limits of the PLL. These limits are within those of Apicula 0.32, LiteX and NSL, which
generate clocks with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, Value
from amaranth.lib import io

from weft.boards.families.family import Fabric, Resources, choose_nearest, count_cells
from weft.boards.families.gowin import GOWIN
from weft.hdl.lib.arithmetic import Multipliers


@dataclass(frozen=True)
class PllA:
    """PLLA of the GW5A-25A with one output: the oscillator runs at ``input / i * m``, the output at 1/`o` of that."""

    input: float
    i: int
    m: int
    o: int

    OSCILLATOR: ClassVar = (800e6, 1300e6)
    DETECTOR: ClassVar = (19e6, 81.25e6)

    @property
    def output(self) -> float:
        return self.oscillator / self.o

    @property
    def oscillator(self) -> float:
        return self.input * self.m / self.i

    @classmethod
    def solve(cls, source: float, wanted: float) -> PllA:
        """Return settings for `wanted` Hz from `source` Hz. Raises `PllError`."""
        return choose_nearest(cls._candidates(source, wanted), wanted, "PLL of the GW5A-25A")

    @classmethod
    def _candidates(cls, source: float, wanted: float) -> Iterator[tuple[float, PllA]]:
        low, high = cls.OSCILLATOR
        for i in range(1, 65):
            if not cls.DETECTOR[0] <= source / i <= cls.DETECTOR[1]:
                continue
            # Any output divider is allowed, so the nearest to the requested ratio is best.
            for m in range(2, 129):
                oscillator = source * m / i
                if low <= oscillator <= high:
                    pll = cls(source, i, m, min(128, max(1, round(oscillator / wanted))))
                    yield pll.output, pll

    def cell(self, m: Module, port: io.SingleEndedPort, clock: Signal, locked: Signal) -> None:
        m.submodules.clock_buffer = buffer = io.Buffer("i", port)
        # The bitstream writer has no defaults for parameters, so all that it reads are set here.
        others = {f"p_ODIV{k}_SEL": 8 for k in range(1, 7)} | {
            f"p_CLKOUT{k}_EN": "FALSE" for k in range(1, 7)
        }
        shifts = {f"p_CLKOUT{k}_PE_{kind}": 0 for k in range(7) for kind in ("COARSE", "FINE")}
        m.submodules.pll = Instance(
            "PLLA",
            p_FCLKIN=f"{self.input / 1e6:g}", p_IDIV_SEL=self.i, p_FBDIV_SEL=1, p_MDIV_SEL=self.m,
            p_MDIV_FRAC_SEL=0, p_ODIV0_SEL=self.o, p_ODIV0_FRAC_SEL=0, p_CLKOUT0_EN="TRUE",
            p_CLKFB_SEL="INTERNAL", **others, **shifts,
            i_CLKIN=buffer.i, i_CLKFB=Const(0), i_RESET=Const(0), i_PLLPWD=Const(0), i_RESET_I=Const(0),
            i_RESET_O=Const(0), i_PSSEL=Const(0, 3), i_PSDIR=Const(0), i_PSPULSE=Const(0), i_SSCPOL=Const(0),
            i_SSCON=Const(0), i_SSCMDSEL=Const(0, 7), i_SSCMDSEL_FRAC=Const(0, 3), i_MDCLK=Const(0),
            i_MDOPC=Const(0, 2), i_MDAINC=Const(0), i_MDWDI=Const(0, 8), o_CLKOUT0=clock, o_LOCK=locked,
        )  # fmt: skip


BLOCKS = 56
"""Number of 12-bit multipliers in the GW5A-25A, the smallest device of the family."""


def mult12x12(a: Value, b: Value, product: Signal) -> Instance:
    """Return a `weft.hdl.lib.arithmetic.NarrowBlock`. Yosys 0.70 does not map products to this family's multipliers.

    Two multipliers share their clocks and clock enables, so all multipliers have the same.
    """
    upper = Signal(24 - len(product), name=f"{product.name}_upper")
    stages = {"A": "CLK0", "B": "BYPASS", "P": "BYPASS", "O": "CLK0"}
    return Instance(
        "MULT12X12",
        **{f"p_{stage}REG_CLK": clock for stage, clock in stages.items()},
        i_A=_sign_extend(a, 12),
        i_B=_sign_extend(b, 12),
        i_CLK=Cat(ClockSignal(), Const(0)),
        i_CE=Const(3, 2),
        i_RESET=Const(0, 2),
        o_DOUT=Cat(product, upper),
    )


def _sign_extend(value: Value, bits: int) -> Value:
    return Cat(value, value[-1].replicate(bits - len(value)))


_CELLS = {
    "lut": {"LUT1": 1, "LUT2": 1, "LUT3": 1, "LUT4": 1, "ALU": 1},
    "ff": {f"DFF{kind}": 1 for kind in ("", "E", "S", "SE", "R", "RE", "P", "PE", "C", "CE")},
    "dsp": {"MULT12X12": 1},
    "ram": {"SP": 1, "SPX9": 1, "SDPB": 1, "SDPX9B": 1, "DPB": 1, "DPX9B": 1, "pROM": 1, "pROMX9": 1},
}


def _needs(counts: Mapping[str, int], netlist: Path) -> Resources:
    """Count resources. nextpnr splits a block RAM with a read port and a write port in two where a port has 32 or 36
    bits."""
    cells = json.loads(netlist.read_text())["modules"]["top"]["cells"].values()
    wide = sum(
        cell["type"] in ("SDPB", "SDPX9B")
        and any(int(cell["parameters"][f"BIT_WIDTH_{port}"], 2) >= 32 for port in (0, 1))
        for cell in cells
    )
    need = count_cells(_CELLS)(counts, netlist)
    return replace(need, ram=need.ram + wide)


GOWIN5A = replace(
    GOWIN,
    name="gowin5a",
    # Parity bits are not counted, because all memories consist of bytes.
    geometries=((16, 1024), (8, 2048), (4, 4096), (2, 8192), (1, 16384)),
    needs=_needs,
    fabric=Fabric(
        multipliers=Multipliers("gowin5a", narrow=mult12x12, narrow_blocks=BLOCKS),
        input_only_pads=False,
        lut_ram=False,
    ),
    placed={"lut": "LUT4", "ff": "DFF", "dsp": "MULT12X12", "ram": "BSRAM"},
    models=(Path(__file__).with_name("gowin5a.v"),),
)
"""A DSP block is a MULT12X12, which is half of Gowin's DSP block; a block RAM has 18 kbit."""
