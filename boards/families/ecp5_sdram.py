"""What boards with an ECP5 and a 16-bit SDRAM have in common: the LFE5U's sizes, the smallest one's configuration, the
clock."""

from __future__ import annotations

from weft.boards.board import Memory, MemoryKind
from weft.boards.families.ecp5 import Ecp5Pll
from weft.boards.family import Resources
from weft.boards.sdram_eye import best_eye
from weft.hdl.isa.config import Config

RESOURCES = {
    # The 12F is a 25F with another name on it; the open tools use all of it.
    "12": Resources(lut=24288, ff=24288, dsp=28, ram=56),
    "25": Resources(lut=24288, ff=24288, dsp=28, ram=56),
    "45": Resources(lut=43848, ff=43848, dsp=72, ram=108),
    "85": Resources(lut=83640, ff=83640, dsp=156, ram=208),
}
"""By size."""
# With softmax, look-up tables and products, but few lanes and short queues.
SMALLEST = Config.load("tiny").replace(lanes=1, mantissa_bits=16, queue_depth=2, table_depth=512, row_states=32,
                                       alignments=128)  # fmt: skip
"""The configuration of boards with an LFE5U-12F or -25F."""
MEMORY = Memory(MemoryKind.SDRAM, 32 << 20)
"""A chip of 32 MB: four banks of 8192 rows of 512 words of 16 bits, for which the controller is made."""


def pll(source: float, wanted: float) -> Ecp5Pll:
    """The board's clock, and the SDRAM's, late by what its set-up and hold times ask for at that clock.

    Raises `weft.boards.pll.PllError`, or `weft.boards.board.BoardError` if there is no such time.
    """
    dividers = Ecp5Pll.solve(source, wanted)
    return dividers.late(best_eye(dividers.output).phase)
