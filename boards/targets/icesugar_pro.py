"""MuseLab iCESugar-Pro: an LFE5U-25F with 32 MB of SDRAM on a SODIMM-sized module."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Board
from weft.boards.families.ecp5 import ECP5
from weft.boards.families.ecp5_sdram import FLASH, MEMORY, RESOURCES, SMALLEST, pll, with_flash


def _platform() -> Any:
    from amaranth_boards.icesugar_pro import ICESugarProPlatform

    return with_flash(ICESugarProPlatform(), cs="N8", dq="T8 T7", wp="M7", hold="N7")


BOARDS = [
    Board(
        name="icesugar-pro",
        title="iCESugar-Pro",
        family=ECP5,
        synthesis="synth_ecp5",
        place=("--25k", "--package", "CABGA256", "--speed", "6"),
        pack=("--compress",),
        available=RESOURCES["25"],
        memory=MEMORY,
        clock=80e6,
        # Programs for its USB bridge, iCELink, use this rate. No source confirms that higher rates work.
        baud=115_200,
        config=SMALLEST,
        programmer="icesugar-pro",
        platform=_platform,
        pll=pll,
        flash=FLASH,
    )
]
