"""SPI flash chip next to an FPGA: its commands, timings and pads."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

WINDOW = 1 << 24
"""Address of the chip's first byte for core and link, and the largest size of a chip. RAM is below this address."""
HEADER_CLOCKS = 40
"""Clocks of a `FlashCommand.DUAL_READ` before its data: command, 24-bit address, and 8 clocks to turn the pads
around."""


class FlashCommand(enum.IntEnum):
    """Commands, which are sent on the first data pad, most significant bit first."""

    DUAL_READ = 0x3B  # 24-bit address, 8 clocks, then two bits per clock on both pads until the clock stops
    RELEASE = 0xAB  # wake from deep power-down, in which an iCE40 leaves its flash after the bitstream


@dataclass(frozen=True)
class SpiFlash:
    """Flash chip: its `size` in bytes, and the `offset` after the bitstream from which programs are stored.

    The timings are the slowest of the data sheets of W25Q128JV, GD25Q32C and P25Q32U. `deselect` is the time in seconds
    between two commands, `release` the time in seconds after `FlashCommand.RELEASE`, and `fastest` the highest clock of
    `FlashCommand.DUAL_READ` in Hz.
    """

    size: int
    offset: int
    deselect: float = 100e-9
    release: float = 30e-6
    fastest: float = 80e6

    def __post_init__(self) -> None:
        if not 0 <= self.offset < self.size <= WINDOW:
            raise ValueError(
                f"a flash chip has up to {WINDOW} bytes, and its offset lies inside: {self} is invalid"
            )

    @property
    def room(self) -> int:
        """Bytes from `offset` to the end of the chip."""
        return self.size - self.offset

    def cycles(self, seconds: float, clock: float) -> int:
        """Return the number of cycles of a clock in Hz that last at least `seconds`."""
        return math.ceil(seconds * clock)


def spi_flash_pads() -> wiring.Signature:
    """Return the signature of the chip's pads, seen from the controller; each pad has a register.

    Members
    -------
    cs : Out(1)
        Select the chip.
    clk : Out(1)
        Pulse the chip's clock in the second half of the cycle.
    dq_o, dq_oe : Out(1), Out(1)
        First data pad.
    dq_i : In(2)
        Both data pads.
    """
    return wiring.Signature({"cs": Out(1), "clk": Out(1), "dq_o": Out(1), "dq_oe": Out(1), "dq_i": In(2)})
