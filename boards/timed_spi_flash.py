"""What the cycle model is told of a board's SPI flash."""

from __future__ import annotations

from weft.boards.port import PAGE
from weft.boards.spi_flash import PAD_CYCLES
from weft.boards.spi_flash_chip import HEADER_CLOCKS, WINDOW, SpiFlash
from weft.sim.spi_flash import TimedFlash


def timed_spi_flash(chip: SpiFlash, bus_bytes: int, clock: float) -> TimedFlash:
    """Chip and controller as `weft.boards.top.Top` has them at a clock in Hz."""
    word = 4 * bus_bytes + PAD_CYCLES + 1
    jump = chip.cycles(chip.deselect, clock) + HEADER_CLOCKS - 1 + word
    return TimedFlash(window=WINDOW, first=chip.offset, end=chip.size, jump=jump, word=word, page=PAGE)
