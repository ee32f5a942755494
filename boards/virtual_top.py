"""Simulation top: a board's top component with its memory chips, without PLL and pads."""

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
from weft.boards.sdram.model import ChipBehindPads, Rule, eye_of, usual_eye
from weft.boards.top import Top
from weft.hdl.isa.config import Config

PHASES = 16
"""Phases of the SDRAM's clock per cycle. Fewer than PLLs have, so that calibration in simulation takes no longer than
the chip's power-up."""
SIMULATED = replace(GENERIC, sweep=Sweep(lambda clock: PHASES, blocks=2))
"""Fabric of simulated boards."""


class VirtualTop(wiring.Component):
    """A `weft.boards.top.Top` with its memory chips.

    The SDRAM's eye follows from the delays of `weft.boards.sdram.eye`, unless the simulator's command line sets
    another: see `weft.boards.sdram.model`.

    Parameters
    ----------
    board : Board
    config : Config
    divisor : int
        Clock cycles per bit of the serial line.

    Members
    -------
    rx : In(1), tx : Out(1)
        Serial line.
    violation : Out(len(Rule))
        Rules that the SDRAM controller broke, see `weft.boards.sdram.model`; 0 without SDRAM.
    flash_violation : Out(len(FlashRule))
        Rules that the flash controller broke, see `weft.boards.flash.model`; 0 without flash.
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
            m.submodules.flash = flash = SpiFlashModel(board.flash, board.clock, levels=board.copies_flash)
            m.d.comb += self.flash_violation.eq(flash.violation)
            wiring.connect(m, top.flash, flash.pads)
        return m
