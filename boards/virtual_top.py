"""A board's top component with the memory chip behind it, for simulation: what is left out are PLL and pads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.board import Board, MemoryKind
from weft.boards.families.family import GENERIC
from weft.boards.flash.model import Rule as FlashRule
from weft.boards.flash.model import SpiFlashModel
from weft.boards.sdram.calibration import Sweep
from weft.boards.sdram.model import Rule
from weft.boards.sdram.phased_chip import ChipBehindPads, eye_of, usual_eye
from weft.boards.top import Top
from weft.hdl.isa.config import Config

PHASES = 16
"""Of a cycle of the SDRAM's clock: fewer than PLLs have, so that a simulated board does not take longer to start than
it has to wait for the chip."""
SIMULATED = replace(GENERIC, sweep=Sweep(lambda clock: PHASES, blocks=2))
"""What simulated boards are made of."""


class VirtualTop(wiring.Component):
    """A `weft.boards.top.Top` with its memory. An SDRAM's eye is the one that the delays of `weft.boards.sdram.eye`
    make, if the simulator's command line gives no other, see `weft.boards.sdram.phased_chip`.

    Parameters
    ----------
    board : Board
    config : Config
    divisor : int
        Clock cycles a bit of the serial line.

    Members
    -------
    rx : In(1), tx : Out(1)
        The serial line.
    violation : Out(len(Rule))
        What the memory controller has done wrong, see `weft.boards.sdram.model`; 0 without SDRAM.
    flash_violation : Out(len(FlashRule))
        The same of the SPI flash chip, see `weft.boards.flash.model`; 0 without one.
    """

    def __init__(self, board: Board, config: Config, divisor: int) -> None:
        self.board, self.config, self.divisor = board, config, divisor
        members: dict[str, Any] = {"rx": In(1, init=1), "tx": Out(1, init=1), "violation": Out(len(Rule))}
        super().__init__(members | {"flash_violation": Out(len(FlashRule))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        board = self.board
        m.submodules.top = top = Top(board, self.config, board.clock, self.divisor, SIMULATED)
        m.d.comb += [top.rx.eq(self.rx), self.tx.eq(top.tx)]
        if board.memory.kind is MemoryKind.SDRAM:
            m.submodules.chip = chip = ChipBehindPads(board.clock, phases=PHASES)
            m.submodules.eye = usual_eye(eye_of(board.clock, PHASES), chip.eye)
            m.d.comb += [self.violation.eq(chip.violation), chip.step.eq(top.sdram_step)]
            wiring.connect(m, top.sdram, chip.pads)
        if board.flash is not None:
            m.submodules.flash = flash = SpiFlashModel(board.flash, board.clock, levels=board.copies)
            m.d.comb += self.flash_violation.eq(flash.violation)
            wiring.connect(m, top.flash, flash.pads)
        return m
