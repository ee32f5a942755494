"""Sipeed Tang Primer 20K: a Gowin GW2A-18C, whose block RAM holds tensors."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Board, CoreKind, Memory, MemoryKind
from weft.boards.families.family import Resources
from weft.boards.families.gowin import GOWIN, GowinPll
from weft.boards.flash.chip import SpiFlash
from weft.hdl.isa.config import Config


def _platform() -> Any:
    from amaranth_boards.tang_primer_20k import TangPrimer20kPlatform

    return TangPrimer20kPlatform()


BOARDS = [
    Board(
        name="tang-primer-20k",
        title="Tang Primer 20K",
        family=GOWIN,
        synthesis="synth_gowin -family gw2a",
        place=("--device", "GW2A-LV18PG256C8/I7", "--vopt", "family=GW2A-18C"),
        pack=("-d", "GW2A-18C", "--mspi_as_gpio", "--sspi_as_gpio", "--ready_as_gpio", "--done_as_gpio"),
        available=Resources(lut=20736, ff=15552, dsp=96, ram=46),
        memory=Memory(MemoryKind.BLOCK, 32 << 10),
        clock=54e6,
        baud=1_500_000,
        config=Config(
            n=8,
            lanes=1,
            scratchpad_banks=4,
            scratchpad_depth=256,
            accumulator_banks=2,
            accumulator_depth=64,
            bus_bytes=8,
            mantissa_bits=24,
            queue_depth=2,
            probability_bits=8,
            row_states=32,
            alignments=128,
            table_depth=2048,
            lookup_tables=4,
            multiply=1,
            kernel=256,
        ),
        programmer="tangprimer20k",
        platform=_platform,
        core=CoreKind.SEQUENTIAL,
        pll=lambda source, wanted: GowinPll.solve(source, wanted, "GW2A-18C"),
        flash=SpiFlash(4 << 20, offset=1 << 20),
    )
]
