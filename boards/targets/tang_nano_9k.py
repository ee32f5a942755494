"""Sipeed Tang Nano 9K: a Gowin GW1NR-9C, whose block RAM holds tensors."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Board, CoreKind, Memory, MemoryKind
from weft.boards.families.family import Resources
from weft.boards.families.gowin import GOWIN, GowinPll
from weft.boards.flash.chip import SpiFlash
from weft.boards.link.uart import SIGNS, Led
from weft.hdl.isa.config import Config


def _platform() -> Any:
    from amaranth_boards.tang_nano_9k import TangNano9kPlatform

    return TangNano9kPlatform()


BOARDS = [
    Board(
        name="tang-nano-9k",
        title="Tang Nano 9K",
        family=GOWIN,
        synthesis="synth_gowin",
        place=("--device", "GW1NR-LV9QN88PC6/I5", "--vopt", "family=GW1N-9C"),
        pack=("-d", "GW1N-9C", "--sspi_as_gpio", "--mspi_as_gpio"),
        available=Resources(lut=8640, ff=6480, dsp=40, ram=26),
        memory=Memory(MemoryKind.BLOCK, 16 << 10),
        clock=45e6,
        baud=1_500_000,
        config=Config(
            n=4,
            lanes=1,
            scratchpad_banks=4,
            scratchpad_depth=256,
            accumulator_banks=2,
            accumulator_depth=64,
            bus_bytes=4,
            mantissa_bits=16,
            queue_depth=2,
            probability_bits=7,
            row_states=16,
            alignments=64,
            table_depth=512,
            lookup_tables=4,
            multiply=1,
        ),
        programmer="tangnano9k",
        platform=_platform,
        core=CoreKind.SEQUENTIAL,
        leds=tuple(Led("led", number, (sign,)) for number, sign in enumerate(SIGNS)),
        pll=lambda source, wanted: GowinPll.solve(source, wanted, "GW1NR-9C"),
        flash=SpiFlash(4 << 20, offset=1 << 20),
    )
]
