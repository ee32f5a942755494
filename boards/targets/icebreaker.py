"""1BitSquared iCEBreaker: an iCE40UP5K, whose single-port RAMs hold tensors."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Board, CoreKind, Memory, MemoryKind
from weft.boards.families.family import Resources
from weft.boards.families.ice40 import ICE40, Ice40Pll
from weft.boards.flash.chip import SpiFlash
from weft.boards.link.uart import Led
from weft.hdl.isa.config import Config


def _platform() -> Any:
    from amaranth_boards.icebreaker import ICEBreakerPlatform

    return ICEBreakerPlatform()


BOARDS = [
    Board(
        name="icebreaker",
        title="iCEBreaker",
        family=ICE40,
        # Flip-flops of a tile share a clock enable. With all 139 enables, placement leaves them far apart, and routing
        # does not end. Enables of fewer than 8 become multiplexers in LUTs that would be empty.
        synthesis="synth_ice40 -dsp -dffe_min_ce_use 8 -device u",
        place=("--up5k", "--package", "sg48"),
        pack=(),
        available=Resources(lut=5280, ff=5280, dsp=8, ram=30),
        memory=Memory(MemoryKind.SPRAM, 128 << 10),
        clock=21e6,
        baud=1_500_000,
        # This configuration uses all block RAMs. Tables and microprogram data exactly fill theirs.
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
            row_states=8,
            alignments=64,
            table_depth=256,
            lookup_tables=1,
            multiply=1,
        ),
        programmer="ice40_generic",
        platform=_platform,
        core=CoreKind.SEQUENTIAL,
        pll=Ice40Pll.solve,
        seed=1,
        flash=SpiFlash(16 << 20, offset=1 << 20),
        # The green and the red LED.
        leds=(Led("led_g", 0, ("alive", "busy")), Led("led_r", 0, ("error",))),
    )
]
