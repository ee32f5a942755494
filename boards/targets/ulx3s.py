"""Radiona ULX3S: an ECP5 with 32 MB of SDRAM."""

from __future__ import annotations

from typing import Any

from weft.boards.board import Board
from weft.boards.families.ecp5 import ECP5, DspRows
from weft.boards.families.ecp5_sdram import FLASH, MEMORY, RESOURCES, SMALLEST, pll, with_flash
from weft.boards.link.uart import SIGNS, Led
from weft.hdl.isa.config import Config

# Depthwise convolutions and requantisation after short contractions need four lanes and sums along rows. With a kernel
# engine, or with four banks of the scratchpad, the design does not route.
_LARGEST = Config.load("default").replace(
    lanes=4,
    queue_depth=1,
    scratchpad_banks=2,
    scratchpad_depth=4096,
    accumulator_banks=2,
    row_states=128,
    alignments=1024,
    lookup_tables=0,
    multiply=0,
    kernel=0,
    depthwise_taps=3,
)
# Decoders need loops, kernels and blocks of 4-bit weights. The 8 x 8 array consumes twice as many weights per cycle as
# the SDRAM delivers at 4 bits each.
_LANGUAGE = Config.load("small").replace(
    loops=1,
    kernel=256,
    int4=2,
    scratchpad_banks=4,
    scratchpad_depth=4096,
    accumulator_banks=2,
    accumulator_depth=512,
)
CONFIGS = {
    "12f": (SMALLEST, 80e6, 1),
    "25f": (SMALLEST, 80e6, 1),
    "45f": (Config.load("small").replace(queue_depth=1, lookup_tables=0, multiply=0), 70e6, 1),
    "85f": (_LARGEST, 60e6, 1),
    "85f-lm": (_LANGUAGE, 60e6, 1),
}
"""Configuration, clock and seed by FPGA size, with the suffix ``-lm`` for language models."""
# Only the 85F needs sites: the 12F and 25F have too few DSP blocks for arrays of more than one row of blocks, and the
# 45F's array fits one row.
_DSP = {"85f": DspRows(rows=(10, 34, 58), groups=(4, 13, 22, 31, 40, 49, 58, 69, 78, 87, 96, 105, 114))}


def board(kind: str) -> Board:
    """Return the ULX3S with an LFE5U-12F, -25F, -45F or -85F, and one of `CONFIGS`."""
    config, clock, seed = CONFIGS[kind]
    size = kind[:2]

    def platform() -> Any:
        from amaranth_boards import ulx3s

        # Sites of flash_* in the constraints of github.com/emard/ulx3s.
        base = getattr(ulx3s, f"ULX3S_{size}F_Platform")()
        return with_flash(base, cs="R2", dq="W2 V2", wp="Y2", hold="W1")

    return Board(
        name=f"ulx3s-{kind}",
        title=f"ULX3S {size}F" + " for language models" * kind.endswith("lm"),
        family=ECP5,
        synthesis="synth_ecp5",
        place=(f"--{size}k", "--package", "CABGA381", "--speed", "6"),
        pack=("--compress",),
        available=RESOURCES[size],
        memory=MEMORY,
        clock=clock,
        baud=3_000_000,
        config=config,
        programmer="ulx3s",
        platform=platform,
        pll=pll,
        flash=FLASH,
        seed=seed,
        dsp=_DSP.get(kind),
        leds=tuple(Led("led", number, (sign,)) for number, sign in enumerate(SIGNS)),
        # The ECP5 pulls unused pads low. A low level here makes the board's ESP32 restart the board. The pad is site
        # L2, named wifi_gpio0 in the constraints of github.com/emard/ulx3s.
        driven_pads=(("esp32", "gpio0", 1),),
    )


BOARDS = [board(kind) for kind in CONFIGS]
