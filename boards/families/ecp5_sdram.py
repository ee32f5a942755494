"""Common parts of boards with an ECP5 and a 16-bit SDRAM: FPGA sizes, smallest configuration, memory, flash, PLL."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Memory, MemoryKind
from weft.boards.families.ecp5 import Ecp5Pll
from weft.boards.families.family import Resources
from weft.boards.flash.chip import SpiFlash
from weft.boards.sdram.eye import best_eye
from weft.boards.top import CONFIGURATION_FLASH
from weft.hdl.isa.config import Config

RESOURCES = {
    # The 12F is a 25F under another name, and the open-source tools use all of it.
    "12": Resources(lut=24288, ff=24288, dsp=28, ram=56),
    "25": Resources(lut=24288, ff=24288, dsp=28, ram=56),
    "45": Resources(lut=43848, ff=43848, dsp=72, ram=108),
    "85": Resources(lut=83640, ff=83640, dsp=156, ram=208),
}
"""Resources of an LFE5U by its size."""
# It has softmax, look-up tables and products, but few lanes and short queues.
SMALLEST = Config.load("tiny").replace(
    lanes=1, mantissa_bits=16, queue_depth=1, table_depth=512, row_states=32, alignments=128
)
"""Configuration of boards with an LFE5U-12F or -25F."""
MEMORY = Memory(MemoryKind.SDRAM, 32 << 20)
"""SDRAM of 32 MB, for which the controller is made: four banks of 8192 rows of 512 words of 16 bits."""

FLASH = SpiFlash(16 << 20, offset=2 << 20)
"""Flash chip of 16 MB. An uncompressed bitstream for the LFE5U-85F takes 1.9 MB."""


def with_flash(platform: Any, cs: str, dq: str, wp: str, hold: str) -> Any:
    """Return the platform with the resource `CONFIGURATION_FLASH` at these pads.

    The resources of amaranth-boards are not usable: some name the clock's pad, which nextpnr does not know; others have
    no bidirectional data pads.
    """
    from amaranth.build import Attrs, Pins, PinsN, Resource, Subsignal

    attributes = Attrs(IO_TYPE="LVCMOS33", DRIVE="4", PULLMODE="UP")
    pads = (
        Subsignal("cs", PinsN(cs, dir="o")),
        Subsignal("dq", Pins(dq, dir="io")),
        Subsignal("wp", PinsN(wp, dir="o")),
        Subsignal("hold", PinsN(hold, dir="o")),
    )
    platform.add_resources([Resource(CONFIGURATION_FLASH, 0, *pads, attributes)])
    return platform


def pll(source: float, wanted: float) -> Ecp5Pll:
    """Return PLL settings for the board's clock and for the SDRAM's clock, with the phase of `best_eye`.

    Raises `weft.boards.errors.PllError`, or `weft.boards.errors.BoardError` if no phase works.
    """
    dividers = Ecp5Pll.solve(source, wanted)
    return dividers.with_phase(best_eye(dividers.output).phase)
