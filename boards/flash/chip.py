"""The SPI flash chip beside an FPGA: its commands, its timings and the pads to it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

WINDOW = 1 << 24
"""Address of the chip's first byte for core and link, and the most bytes that it may have: below is the RAM."""
HEADER_CLOCKS = 40
"""Clocks of a `Command.DUAL_READ` ahead of its data: command, 24 bits of address, 8 clocks to turn the pads around."""


class FlashCommand(enum.IntEnum):
    """Commands, which go to the chip on its first data pad, most significant bit first."""

    DUAL_READ = 0x3B  # a 24-bit address, 8 clocks, then two bits a clock on both pads, as long as clocks come
    RELEASE = 0xAB  # from deep power-down, in which an iCE40 leaves its flash once it has read its bitstream


@dataclass(frozen=True)
class SpiFlash:
    """A chip: its `size` in bytes, and the `offset` from which on it is ours, behind the bitstream.

    The timings are the slowest of the data sheets of W25Q128JV, GD25Q32C and P25Q32U: `deselect` and `release` in
    seconds, how long the chip must be deselected between two commands, and after `Command.RELEASE`; `fastest` in Hz,
    for `Command.DUAL_READ`.
    """

    size: int
    offset: int
    deselect: float = 100e-9
    release: float = 30e-6
    fastest: float = 80e6

    def __post_init__(self) -> None:
        if not 0 <= self.offset < self.size <= WINDOW:
            raise ValueError(f"a flash chip has up to {WINDOW} bytes and ours begin in it, not {self}")

    @property
    def room(self) -> int:
        """Bytes that are ours."""
        return self.size - self.offset

    def cycles(self, seconds: float, clock: float) -> int:
        """Whole cycles of a clock in Hz that are at least so long."""
        return math.ceil(seconds * clock)


def spi_flash_pads() -> wiring.Signature:
    """The pads of a chip, seen from the controller; each has a register in the pad.

    Members
    -------
    cs : Out(1)
        Select the chip.
    clk : Out(1)
        The chip gets a clock pulse in the second half of the cycle.
    dq_o, dq_oe : Out(1), Out(1)
        The first data pad.
    dq_i : In(2)
        Both data pads.
    """
    return wiring.Signature({"cs": Out(1), "clk": Out(1), "dq_o": Out(1), "dq_oe": Out(1), "dq_i": In(2)})
