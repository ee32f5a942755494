"""Phase-locked loops of the three families: dividers for a wanted clock, and the cell with them.

Limits are those of the data sheets (Lattice FPGA-TN-02200, iCE40 FPGA-DS-02008, Gowin DS117 and DS226); all
frequencies are in Hz.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from amaranth.hdl import Const, Instance, Module, Signal
from amaranth.lib import io

from weft.hdl.errors import WeftError

TOLERANCE = 0.02
"""How far the nearest clock may be from the wanted one, as a share."""


class PllError(WeftError, ValueError):
    """A clock that no dividers make; the message names it and the nearest one that works."""


class Pll(Protocol):
    """Dividers of one loop."""

    @property
    def output(self) -> float:
        """The clock it makes."""

    def cell(self, m: Module, port: io.SingleEndedPort, clock: Signal, locked: Signal) -> None:
        """Add the loop to `m`, from the board's clock pad to `clock`; `locked` is asynchronous."""


def _nearest(found: Iterator[tuple[float, Any]], wanted: float, kind: str) -> Any:
    """The candidate (its clock, itself) nearest to `wanted`, the first of equals. Raises `PllError`."""
    best: tuple[float, Any] | None = None
    for output, candidate in found:
        if best is None or abs(output - wanted) < abs(best[0] - wanted):
            best = (output, candidate)
    if best is None or abs(best[0] - wanted) > TOLERANCE * wanted:
        nearest = f"; the nearest is {best[0] / 1e6:.3f} MHz" if best else ""
        raise PllError(f"the {kind} cannot make a clock of {wanted / 1e6:g} MHz{nearest}")
    return best[1]


@dataclass(frozen=True)
class Ecp5Pll:
    """EHXPLLL with feedback from its first output; the second one has the same rate and a phase of its own.

    Parameters
    ----------
    input : float
    input_divider, feedback_divider, output_divider : int
        The oscillator runs at ``input / input_divider * feedback_divider * output_divider``.
    phase : float
        Degrees by which the second output is late, a multiple of 45 / `output_divider`.
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
    """The largest coarse phase, which the first output needs a part of."""

    @property
    def output(self) -> float:
        return self.input * self.feedback_divider / self.input_divider

    @property
    def step(self) -> float:
        """Degrees between two phases."""
        return 45 / self.output_divider

    def late(self, phase: float) -> Ecp5Pll:
        """The same clocks, the second one late by what comes nearest to `phase` degrees. Raises `PllError`."""
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
        """Dividers from `source` to `wanted`, the oscillator as near to the middle of its range as it gets.

        Raises `PllError`.
        """
        return _nearest(cls._candidates(source, wanted, phase), wanted, "PLL of the ECP5")

    @classmethod
    def _candidates(cls, source: float, wanted: float, phase: float) -> Iterator[tuple[float, Ecp5Pll]]:
        low, high = cls.OSCILLATOR
        for divider in range(1, 129):
            if not cls.DETECTOR[0] <= source / divider <= cls.DETECTOR[1]:
                continue
            feedback = min(80, max(1, round(wanted * divider / source)))
            output = source * feedback / divider
            if not cls.OUTPUT[0] <= output <= cls.OUTPUT[1]:
                continue
            outputs = [value for value in range(1, 129) if low <= output * value <= high]
            if outputs:
                middle = min(outputs, key=lambda value: abs(output * value - (low + high) / 2))
                yield output, cls(source, divider, feedback, middle, phase)

    @property
    def phases(self) -> tuple[int, int, int]:
        """Coarse phase of the first output, coarse and fine (eighths) phase of the second, in oscillator periods."""
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
    ) -> None:
        """As `Pll.cell`; `shifted` is the second output."""
        m.submodules.clock_buffer = buffer = io.Buffer("i", port)
        first, coarse, fine = self.phases
        second = {} if shifted is None else {
            "p_CLKOS_ENABLE": "ENABLED", "p_CLKOS_DIV": self.output_divider, "p_CLKOS_CPHASE": coarse,
            "p_CLKOS_FPHASE": fine, "o_CLKOS": shifted,
        }  # fmt: skip
        m.submodules.pll = Instance(
            "EHXPLLL",
            p_PLLRST_ENA="DISABLED", p_INTFB_WAKE="DISABLED", p_STDBY_ENABLE="DISABLED", p_DPHASE_SOURCE="DISABLED",
            p_OUTDIVIDER_MUXA="DIVA", p_OUTDIVIDER_MUXB="DIVB", p_OUTDIVIDER_MUXC="DIVC", p_OUTDIVIDER_MUXD="DIVD",
            p_CLKI_DIV=self.input_divider, p_CLKFB_DIV=self.feedback_divider, p_FEEDBK_PATH="CLKOP",
            p_CLKOP_ENABLE="ENABLED", p_CLKOP_DIV=self.output_divider, p_CLKOP_CPHASE=first, p_CLKOP_FPHASE=0,
            a_ICP_CURRENT="12", a_LPF_RESISTOR="8", a_MFG_ENABLE_FILTEROPAMP="1", a_MFG_GMCREF_SEL="2",
            i_CLKI=buffer.i, i_CLKFB=clock, i_RST=0, i_STDBY=0, i_ENCLKOP=0, i_PLLWAKESYNC=0,
            i_PHASESEL0=0, i_PHASESEL1=0, i_PHASEDIR=1, i_PHASESTEP=1, i_PHASELOADREG=1,
            o_CLKOP=clock, o_LOCK=locked, **second,
        )  # fmt: skip


@dataclass(frozen=True)
class Ice40Pll:
    """SB_PLL40_PAD with simple feedback: ``input * (f + 1) / (r + 1) / 2**q``, the oscillator before the 2**q."""

    input: float
    r: int
    f: int
    q: int

    OSCILLATOR: ClassVar = (533e6, 1066e6)
    DETECTOR: ClassVar = (10e6, 133e6)
    OUTPUT: ClassVar = (16e6, 275e6)
    FILTERS: ClassVar = (17e6, 26e6, 44e6, 66e6, 101e6)
    """Rates of the phase detector at which the next filter begins; the first filter is 1."""

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
        """Dividers from `source` to `wanted`. Raises `PllError`."""
        return _nearest(cls._candidates(source), wanted, "PLL of the iCE40")

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


@dataclass(frozen=True)
class GowinPll:
    """rPLL: ``input * (f + 1) / (i + 1)``; the oscillator runs `o` times as fast.

    `device` is the value of the cell's ``DEVICE`` parameter, and selects the limits.
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
        """Dividers from `source` to `wanted`. Raises `PllError`."""
        return _nearest(cls._candidates(source, wanted, device), wanted, f"PLL of the {device}")

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
