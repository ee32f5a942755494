"""Parameters of boards' SDRAM and flash chips for the cycle model."""

from __future__ import annotations

from weft.boards.bus.axi import PIECE_BYTES
from weft.boards.bus.port import PAGE
from weft.boards.families.family import Fabric
from weft.boards.flash.chip import HEADER_CLOCKS, WINDOW, SpiFlash
from weft.boards.flash.controller import PAD_CYCLES
from weft.boards.sdram.chip import COLUMN_BITS, ROW_BITS, SdramTiming
from weft.boards.sdram.controller import READ_WORDS, read_latency
from weft.boards.sdram.eye import CAS_LATENCY, best_eye
from weft.boards.sdram.schedule import UNIT
from weft.sim.memories import Sdram, TimedFlash


def timed_sdram(clock: float, fabric: Fabric) -> Sdram:
    """Return the parameters of chip, controller and bridge as in `weft.boards.top.Top` at a clock in Hz.

    Raises `weft.boards.errors.BoardError` if the SDRAM cannot run at that clock.
    """
    cycles = SdramTiming().cycles(clock)
    pieces, commands = fabric.queue_depths
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


def timed_spi_flash(chip: SpiFlash, bus_bytes: int, clock: float) -> TimedFlash:
    """Return the parameters of flash chip and controller as in `weft.boards.top.Top` at a clock in Hz."""
    # Two bits per cycle, the way through the pads, and one cycle in which the word is taken.
    word = 4 * bus_bytes + PAD_CYCLES + 1
    # A jump to another address deselects the chip, sends the header and reads the first word.
    jump = chip.cycles(chip.deselect, clock) + HEADER_CLOCKS - 1 + word
    return TimedFlash(window=WINDOW, first=chip.offset, end=chip.size, jump=jump, word=word, page=PAGE)
