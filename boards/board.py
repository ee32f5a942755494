"""Boards: the FPGA, memory, clock and pads of each. Similar boards share one file in `weft.boards.targets`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from weft.boards.bus.axi import PIECE_BYTES
from weft.boards.bus.port import PAGE
from weft.boards.errors import BoardError
from weft.boards.families.family import Family, Pll, Resources
from weft.boards.flash.chip import HEADER_CLOCKS, WINDOW, SpiFlash
from weft.boards.flash.controller import PAD_CYCLES
from weft.boards.link.uart import MIN_DIVISOR, Led
from weft.boards.sdram.chip import COLUMN_BITS, ROW_BITS, SdramTiming
from weft.boards.sdram.controller import READ_WORDS, read_latency
from weft.boards.sdram.eye import CAS_LATENCY, best_eye
from weft.boards.sdram.schedule import UNIT
from weft.hdl.isa.config import Config
from weft.sim.memories import Sdram, TimedFlash

RATES = (3_000_000, 2_000_000, 1_500_000, 1_000_000, 500_000, 250_000, 115_200)
"""Baud rates that the boards' USB bridges and host systems support, highest first."""
RATE_ERROR = 0.02
"""Largest relative error of the baud rate that a board's clock makes. Receivers on both ends tolerate it."""


class MemoryKind(enum.StrEnum):
    """Kind of memory that holds tensors."""

    SDRAM = "sdram"
    """16-bit single-data-rate SDRAM on the board."""
    SPRAM = "spram"
    """Single-port memories inside the iCE40UP."""
    BLOCK = "block"
    """Block RAM that the core leaves free."""


class CoreKind(enum.StrEnum):
    """Kind of core. Both kinds give the same results."""

    PIPELINED = "pipelined"
    """`weft.hdl.core.Core`."""
    SEQUENTIAL = "sequential"
    """`weft.hdl.sequential.core.SequentialCore`."""


@dataclass(frozen=True)
class Memory:
    """A board's memory for tensors: its kind, and its `size` in bytes."""

    kind: MemoryKind
    size: int

    @property
    def planning_model(self) -> tuple[int, float | None]:
        """Latency in cycles, and bytes per cycle (None: the bus width), of a plain memory that approximates this one.

        Programs for the board are planned for this model; `Board.sdram` is exact. Refreshes and changes between reads
        and writes take a part of the SDRAM's two bytes per cycle. Memories inside the FPGA move one bus word per cycle.
        """
        return (20, 1.9) if self.kind is MemoryKind.SDRAM else (4, None)

    @property
    def peak_bytes_per_cycle(self) -> float | None:
        """Bytes per cycle that the memory's pins can move; None for the bus width."""
        return 2.0 if self.kind is MemoryKind.SDRAM else None


@dataclass(frozen=True)
class Line:
    """Settings of the serial link at one clock: `baud` for the host, and `divisor` in clock cycles per bit."""

    baud: int
    divisor: int


class DspSites(Protocol):
    """Sites of an FPGA's DSP blocks, for arrays whose multipliers nextpnr places badly."""

    def pin(self, netlist: Path, n: int) -> None:
        """Add the sites of the multipliers of an n x n array to a Yosys netlist (JSON)."""


@dataclass(frozen=True)
class Board:
    """One board with one FPGA.

    Parameters
    ----------
    name : str
        Name on the command line.
    title : str
        The maker's name for it.
    family : Family
    synthesis : str
        Yosys command for the FPGA.
    place, pack : tuple of str
        The FPGA's options for nextpnr and for the bitstream writer.
    available : Resources
    memory : Memory
    clock : float
        Frequency of the ``sync`` domain, in Hz, that the default configuration meets.
    baud : int
        Highest rate of the serial link that the board's USB bridge supports, one of `RATES`.
    config : Config
        Default configuration.
    programmer : str
        Key in `weft.boards.flash.image.PROGRAMMERS`: openFPGALoader's name of the board, if it has one.
    platform : callable
        Returns the board's `amaranth.build.Platform`. Needs the extra ``boards``.
    pll : callable
        Returns the PLL settings for the board's clock in Hz and a requested clock in Hz.
    core : CoreKind
    seed : int
        nextpnr seed with which the default configuration meets its clock.
    dsp : DspSites, optional
    leds : tuple of Led
    driven_pads : tuple of (str, str, int)
        Unused pads that must not float: resource, member of it, and level. Pads for which the FPGA's default pull-up or
        pull-down is enough are not listed.
    flash : SpiFlash, optional
        Chip that holds the bitstream. Code and constants of programs may follow it: see `flash_window` and
        `copies_flash`.
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
    driven_pads: tuple[tuple[str, str, int], ...] = ()
    flash: SpiFlash | None = None

    @property
    def copies_flash(self) -> bool:
        """True if the FPGA copies a program from `flash` to memory when it starts. Boards with SDRAM do."""
        return self.flash is not None and self.memory.kind is MemoryKind.SDRAM

    @property
    def flash_window(self) -> SpiFlash | None:
        """Flash chip that core and link read at addresses from `weft.boards.flash.chip.WINDOW`; None if they read
        none."""
        return None if self.copies_flash else self.flash

    def sdram(self, clock: float) -> Sdram | None:
        """Return the SDRAM's parameters for `weft.sim.timing.TimingDevice` at a clock in Hz; None without SDRAM.

        They describe chip, controller and bridge as in `weft.boards.top.Top`. Raises `BoardError` if the SDRAM cannot
        run at that clock.
        """
        if self.memory.kind is not MemoryKind.SDRAM:
            return None
        cycles = SdramTiming().cycles(clock)
        pieces, commands = self.family.fabric.queue_depths
        return Sdram(
            rcd=cycles.rcd,
            rp=cycles.rp,
            ras=cycles.ras,
            rc=cycles.rc,
            rrd=cycles.rrd,
            rfc=cycles.rfc,
            wr=cycles.wr,
            refresh=cycles.refresh,
            cas_latency=CAS_LATENCY,
            read_latency=read_latency(CAS_LATENCY, best_eye(clock).capture),
            row_bits=ROW_BITS,
            column_bits=COLUMN_BITS,
            unit_bytes=UNIT,
            read_words=READ_WORDS,
            piece_bytes=PIECE_BYTES,
            page_bytes=PAGE,
            pieces=pieces,
            commands=commands,
        )

    def timed_flash(self, config: Config, clock: float) -> TimedFlash | None:
        """Return the flash chip's parameters for `weft.sim.timing.TimingDevice` at a clock in Hz; None without a flash
        window."""
        chip = self.flash_window
        if chip is None:
            return None
        # Two bits per cycle, the way through the pads, and one cycle in which the word is taken.
        word = 4 * config.bus_bytes + PAD_CYCLES + 1
        # A jump to another address deselects the chip, sends the header and reads the first word.
        jump = chip.cycles(chip.deselect, clock) + HEADER_CLOCKS - 1 + word
        return TimedFlash(window=WINDOW, first=chip.offset, end=chip.size, jump=jump, word=word, page=PAGE)

    def line(self, clock: float) -> Line:
        """Return the link settings at a clock in Hz: the highest rate up to `baud` that the clock makes within
        `RATE_ERROR`.

        Raises `BoardError` if there is none.
        """
        # The divisor is one of the two integers next to the exact ratio.
        for baud in RATES:
            below = max(MIN_DIVISOR, int(clock / baud))
            error, divisor = min((abs(clock / count / baud - 1), count) for count in (below, below + 1))
            if baud <= self.baud and error <= RATE_ERROR:
                return Line(baud, divisor)
        raise BoardError(
            f"at {clock / 1e6:g} MHz {self.name} makes no baud rate up to {self.baud:,} within "
            f"{RATE_ERROR:.0%}: choose another clock"
        )

    def divisor(self, clock: float) -> int:
        """Return the link's clock cycles per bit at a clock in Hz. Raises `BoardError` as `line` does."""
        return self.line(clock).divisor
