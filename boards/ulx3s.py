"""Radiona ULX3S: an ECP5 with 32 MB of SDRAM."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Board, Family, Memory, MemoryKind, Resources
from weft.boards.pll import Ecp5Pll
from weft.hdl.config import Config

RESOURCES = {
    # The 12F is a 25F with another name on it; the open tools use all of it.
    "12": Resources(lut=24288, ff=24288, dsp=28, ram=56),
    "25": Resources(lut=24288, ff=24288, dsp=28, ram=56),
    "45": Resources(lut=43848, ff=43848, dsp=72, ram=108),
    "85": Resources(lut=83640, ff=83640, dsp=156, ram=208),
}
# With softmax, but few lanes and short queues.
_SMALLEST = Config.load("tiny").replace(lanes=1, mantissa_bits=16, queue_depth=2, table_depth=512, row_states=32,
                                        alignments=128)  # fmt: skip
CONFIGS = {
    "12": _SMALLEST,
    "25": _SMALLEST,
    "45": Config.load("small"),
    "85": Config.load("small"),
}
SDRAM_PHASE = 180
"""Degrees by which the SDRAM's clock is late: commands leave in the middle between its edges."""


def board(size: str) -> Board:
    """The ULX3S with an LFE5U-12F, -25F, -45F or -85F."""

    def platform() -> Any:
        from amaranth_boards import ulx3s

        return getattr(ulx3s, f"ULX3S_{size}F_Platform")()

    return Board(
        name=f"ulx3s-{size}f",
        title=f"ULX3S {size}F",
        family=Family.ECP5,
        synthesis="synth_ecp5",
        place=(f"--{size}k", "--package", "CABGA381", "--speed", "6"),
        pack=("--compress",),
        available=RESOURCES[size],
        memory=Memory(MemoryKind.SDRAM, 32 << 20),
        clock=70e6,
        baud=3e6,
        config=CONFIGS[size],
        programmer="ulx3s",
        platform=platform,
        pll=lambda source, wanted: Ecp5Pll.solve(source, wanted, SDRAM_PHASE),
    )


BOARDS = [board(size) for size in RESOURCES]
