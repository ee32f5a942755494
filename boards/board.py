"""What a board is: its FPGA, memory, clock and pads. Boards of a kind are one file in `weft.boards.targets`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.boards.families.family import Family, Resources
from weft.boards.flash.chip import SpiFlash
from weft.boards.link.uart import MIN_DIVISOR, Led
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config

if TYPE_CHECKING:
    from weft.boards.families.family import Pll
    from weft.sim.memories import Sdram, TimedFlash


RATES = (3_000_000, 2_000_000, 1_500_000, 1_000_000, 500_000, 250_000, 115_200)
"""Baud rates that the boards' USB bridges can do, and hosts as well, the highest first."""
RATE_ERROR = 0.02
"""How far the rate that a board's clock makes may be from one of these, as a share: what both ends' receivers bear."""


class BoardError(WeftError, ValueError):
    """A board, or a wish for one, that cannot be met; one sentence that says what to change."""


class MemoryKind(enum.StrEnum):
    """Where tensors live."""

    SDRAM = "sdram"
    """A 16-bit SDR SDRAM on the board."""
    SPRAM = "spram"
    """The single-port memories inside the iCE40UP."""
    BLOCK = "block"
    """Block RAM that the core leaves."""


class CoreKind(enum.StrEnum):
    """What computes: both give the same results."""

    PIPELINED = "pipelined"
    """`weft.hdl.core.Core`."""
    SEQUENTIAL = "sequential"
    """`weft.hdl.sequential.core.SequentialCore`."""


@dataclass(frozen=True)
class Memory:
    """The board's memory for tensors: `size` in bytes."""

    kind: MemoryKind
    size: int

    @property
    def modelled(self) -> tuple[int, float | None]:
        """Latency in cycles and bytes a cycle of a plain memory that comes near to it, which is what programs for the
        board are planned for; None for as many bytes as the bus is wide. `Board.sdram` is exact.

        Refreshes, and changes between reading and writing, take a part of the SDRAM's two bytes a cycle. Memories
        inside the FPGA move a word of the bus in every cycle.
        """
        return (20, 1.9) if self.kind is MemoryKind.SDRAM else (4, None)

    @property
    def peak(self) -> float | None:
        """Bytes that its pins move in a cycle; None for as many as the bus is wide."""
        return 2.0 if self.kind is MemoryKind.SDRAM else None


@dataclass(frozen=True)
class Line:
    """The serial link at one clock: `baud` is what to tell the host, `divisor` the clock cycles a bit."""

    baud: int
    divisor: int


class DspSites(Protocol):
    """Where the DSP blocks of an FPGA are, for arrays whose multipliers nextpnr places badly."""

    def pin(self, netlist: Path, n: int) -> None:
        """Write the places of the multipliers of an n x n array into a netlist of Yosys (JSON)."""


@dataclass(frozen=True)
class Board:
    """One board with one FPGA.

    Parameters
    ----------
    name : str
        What the command line calls it.
    title : str
        What its maker calls it.
    family : Family
    synthesis : str
        The Yosys command for the FPGA.
    place, pack : tuple of str
        The FPGA's options for nextpnr and for the bitstream writer.
    available : Resources
    memory : Memory
    clock : float
        Hz of the ``sync`` domain that the default configuration meets.
    baud : int
        The highest rate of the serial link that the board's USB bridge manages, one of `RATES`.
    config : Config
        The default configuration.
    programmer : str
        The board's name in `weft.boards.flash.image.PROGRAMMERS`: that for openFPGALoader, where it has one.
    platform : callable
        Makes the board's `amaranth.build.Platform`. Needs the extra ``boards``.
    pll : callable
        Dividers from the board's clock in Hz to a wanted one.
    core : CoreKind
    seed : int
        Of nextpnr: a placement in which the default configuration meets its clock.
    dsp : DspSites, optional
    leds : tuple of Led
    held : tuple of (str, str, int)
        Pads that nothing here uses but that must not float: resource, its member, level. Not those for which the
        FPGA's own pull-ups and pull-downs will do, which all tools here leave on at unused pads.
    flash : SpiFlash, optional
        The chip that holds the bitstream, where code and constants of programs may lie behind it: see `window` and
        `copies`.
    """

    name: str
    title: str
    family: Family
    synthesis: str
    place: tuple[str, ...]
    pack: tuple[str, ...]
    available: Resources
    memory: Memory
    clock: float
    baud: int
    config: Config
    programmer: str
    platform: Callable[[], Any]
    pll: Callable[[float, float], Pll]
    core: CoreKind = CoreKind.PIPELINED
    seed: int = 1
    dsp: DspSites | None = None
    leds: tuple[Led, ...] = ()
    held: tuple[tuple[str, str, int], ...] = ()
    flash: SpiFlash | None = None

    @property
    def copies(self) -> bool:
        """Whether a program in `flash` is copied to memory when the FPGA starts, which boards with SDRAM do."""
        return self.flash is not None and self.memory.kind is MemoryKind.SDRAM

    @property
    def window(self) -> SpiFlash | None:
        """The chip where core and link read it, from `weft.boards.flash.chip.WINDOW` on; None if they do not."""
        return None if self.copies else self.flash

    def sdram(self, clock: float) -> Sdram | None:
        """The memory at a clock in Hz as the cycle model, `weft.sim.timing.TimingDevice`, takes it; None if it is no
        SDRAM. Raises `BoardError` if it cannot run at that clock."""
        from weft.boards.timed_memories import timed_sdram

        return timed_sdram(clock, self.family.fabric) if self.memory.kind is MemoryKind.SDRAM else None

    def timed_flash(self, config: Config, clock: float) -> TimedFlash | None:
        """The same of the flash chip beside a core with a configuration; None if there is none."""
        from weft.boards.timed_memories import timed_spi_flash

        return timed_spi_flash(self.window, config.bus_bytes, clock) if self.window else None

    def line(self, clock: float) -> Line:
        """The serial link at a clock in Hz: the highest rate up to `baud` that the clock makes within `RATE_ERROR`.

        Raises `BoardError` if there is none.
        """
        for baud in RATES:
            least = max(MIN_DIVISOR, int(clock / baud))
            error, divisor = min((abs(clock / count / baud - 1), count) for count in (least, least + 1))
            if baud <= self.baud and error <= RATE_ERROR:
                return Line(baud, divisor)
        raise BoardError(
            f"{self.name} at {clock / 1e6:g} MHz makes none of the baud rates up to {self.baud:,} within "
            f"{RATE_ERROR:.0%}: choose another clock"
        )

    def divisor(self, clock: float) -> int:
        """Clock cycles a bit of the serial link at a clock in Hz. Raises as `line` does."""
        return self.line(clock).divisor
