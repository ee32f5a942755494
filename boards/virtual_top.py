"""A board's top component with the memory chip behind it, for simulation: what is left out are PLL and pads."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.board import Board, MemoryKind
from weft.boards.sdram_model import Rule, SdramModel
from weft.boards.shell import SDRAM_CAPTURE
from weft.boards.top import Top
from weft.hdl.config import Config


class VirtualTop(wiring.Component):
    """A `weft.boards.top.Top` with its memory.

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
        What the memory controller has done wrong, see `weft.boards.sdram_model`; 0 without SDRAM.
    """

    def __init__(self, board: Board, config: Config, divisor: int) -> None:
        self.board, self.config, self.divisor = board, config, divisor
        members: dict[str, Any] = {"rx": In(1, init=1), "tx": Out(1, init=1), "violation": Out(len(Rule))}
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        board = self.board
        m.submodules.top = top = Top(
            self.config,
            "generic",
            board.memory,
            self.divisor,
            board=board.name,
            clock=board.clock,
            core=board.core,
        )
        m.d.comb += [top.rx.eq(self.rx), self.tx.eq(top.tx)]
        if board.memory.kind is MemoryKind.SDRAM:
            m.submodules.chip = chip = SdramModel(board.clock)
            m.d.comb += self.violation.eq(chip.violation)
            # The registers in the pads; the model's word comes half a cycle into the one that takes it.
            assert SDRAM_CAPTURE == 2
            outputs = ("clk_en", "cs", "ras", "cas", "we", "ba", "a", "dqm", "dq_o", "dq_oe")
            m.d.sync += [getattr(chip.pads, name).eq(getattr(top.sdram, name)) for name in outputs]
            m.d.sync += top.sdram.dq_i.eq(chip.pads.dq_i)
        return m
