"""Icepi Zero: an LFE5U-25F with 32 MB of SDRAM in the form factor of a Raspberry Pi Zero. Pads of revision 1.3."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Board
from weft.boards.families.ecp5 import ECP5
from weft.boards.families.ecp5_sdram import FLASH, MEMORY, RESOURCES, SMALLEST, pll, with_flash
from weft.boards.link.uart import SIGNS, Led


def _platform() -> Any:
    from amaranth_boards.icepi_zero import IcepiZero1_3Platform

    return with_flash(IcepiZero1_3Platform(), cs="N8", dq="T8 T7", wp="M7", hold="N7")


BOARDS = [
    Board(
        name="icepi-zero",
        title="Icepi Zero",
        family=ECP5,
        synthesis="synth_ecp5",
        place=("--25k", "--package", "CABGA256", "--speed", "6"),
        pack=("--compress",),
        available=RESOURCES["25"],
        memory=MEMORY,
        clock=80e6,
        baud=3_000_000,
        config=SMALLEST,
        programmer="icepi-zero",
        platform=_platform,
        pll=pll,
        flash=FLASH,
        seed=2,
        leds=tuple(Led("led", number, (sign,)) for number, sign in enumerate(SIGNS)),
    )
]
