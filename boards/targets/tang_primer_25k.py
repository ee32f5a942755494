"""Sipeed Tang Primer 25K on its dock: a Gowin GW5A-25A, whose block RAM holds tensors.

Pads are from ``litex_boards/platforms/sipeed_tang_primer_25k.py`` of github.com/litex-hub/litex-boards and from
``examples/gw5a/primer25k.cst`` of github.com/YosysHQ/apicula. The size of the flash chip is from wiki.sipeed.com.
"""

from __future__ import annotations

from typing import Any, ClassVar

from weft.boards.board import Board, CoreKind, Memory, MemoryKind
from weft.boards.families.family import Resources
from weft.boards.families.gowin5a import GOWIN5A, PllA
from weft.boards.flash.chip import SpiFlash
from weft.hdl.isa.config import Config


def _platform() -> Any:
    from amaranth.build import Attrs, Clock, Pins, Resource
    from amaranth.vendor import GowinPlatform
    from amaranth_boards.resources import SPIFlashResources, UARTResource

    pads = Attrs(IO_TYPE="LVCMOS33")

    class TangPrimer25KPlatform(GowinPlatform):
        part = "GW5A-LV25MG121NC1/I0"
        family = "GW5A-25A"
        default_clk = "clk50"
        connectors: ClassVar[list[Any]] = []
        resources: ClassVar[list[Any]] = [
            Resource("clk50", 0, Pins("E2", dir="i"), Clock(50e6), pads),
            UARTResource(0, rx="B3", tx="C3", attrs=Attrs(PULL_MODE="UP", IO_TYPE="LVCMOS33")),
            *SPIFlashResources(0, cs_n="E6", clk="E7", cipo="E5", copi="D6", attrs=pads),
        ]

        def parse_part(self) -> None:
            # Amaranth 0.5 does not recognise part names of this series. It needs only the series here.
            self.series = "GW5A"

    return TangPrimer25KPlatform()


BOARDS = [
    Board(
        name="tang-primer-25k",
        title="Tang Primer 25K",
        family=GOWIN5A,
        # The board has version A of the FPGA, which has no LUT RAM.
        synthesis="synth_gowin -family gw5a -nolutram",
        place=("--device", "GW5A-LV25MG121NC1/I0", "--vopt", "sspi_as_gpio"),
        pack=("-d", "GW5A-25A", "--sspi_as_gpio", "--mspi_as_gpio", "--cpu_as_gpio"),
        available=Resources(lut=23040, ff=23040, dsp=56, ram=56),
        memory=Memory(MemoryKind.BLOCK, 32 << 10),
        clock=60e6,
        baud=1_500_000,
        config=Config(
            n=8,
            lanes=1,
            scratchpad_banks=4,
            scratchpad_depth=512,
            accumulator_banks=2,
            accumulator_depth=256,
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
        programmer="tangprimer25k",
        platform=_platform,
        core=CoreKind.SEQUENTIAL,
        pll=PllA.solve,
        flash=SpiFlash(8 << 20, offset=2 << 20),
    )
]
