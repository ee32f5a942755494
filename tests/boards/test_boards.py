"""The boards: their numbers against the tools', their constraints, what a top component is given."""

from __future__ import annotations

import re

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.board import Board, BoardError, Family, MemoryKind
from weft.boards.build import elaborate
from weft.boards.registry import BOARDS, find
from weft.boards.sdram_chip import sdram_pads
from weft.hdl.config import Config
from weft.hdl.parts import check_part

CONFIG = Config.load("tiny")
PINS = {
    "ulx3s-85f": {"clk25_0__io": "G2", "uart_0__rx__io": "M1", "uart_0__tx__io": "L4"},
    "icebreaker": {"clk12_0__io": "35", "uart_0__rx__io": "6", "uart_0__tx__io": "9"},
    "tang-nano-9k": {"clk27_0__io": "52", "uart_0__rx__io": "18", "uart_0__tx__io": "17"},
    "tang-primer-20k": {"clk27_0__io": "H11", "uart_0__rx__io": "T13", "uart_0__tx__io": "M11"},
}
LOCATION = re.compile(r'^(?:LOCATE COMP|set_io|IO_LOC) "?([\w\[\]]+)"? (?:SITE )?"?(\w+)', re.M)


class Echo(wiring.Component):
    """The smallest top component; with SDRAM pads that do nothing if `sdram`."""

    def __init__(self, sdram: bool = False) -> None:
        super().__init__({"rx": In(1), "tx": Out(1)} | ({"sdram": Out(sdram_pads())} if sdram else {}))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.tx.eq(self.rx)
        if hasattr(self, "sdram"):
            m.d.sync += [self.sdram.dq_o.eq(self.sdram.dq_i), self.sdram.a.eq(self.sdram.dq_i)]
        return m


def constraints(board: Board, top: Echo) -> str:
    design = elaborate(board, CONFIG, board.clock, lambda *given: top)
    return next(text for name, text in design.files.items() if not name.endswith(".il"))


@pytest.mark.parametrize("name", PINS)
def test_pins_and_clocks_are_constrained(name: str) -> None:
    text = constraints(BOARDS[name], Echo())
    assert dict(LOCATION.findall(text)) == PINS[name]
    board = BOARDS[name]
    if board.family is Family.ECP5:
        assert 'FREQUENCY PORT "clk25_0__io" 25000000.0 HZ;' in text
    if board.family is Family.ICE40:
        assert "set_frequency clk12_0__io 12.0" in text
        assert f"set_frequency clk {1e3 / (1e9 / board.clock - 2.4):.3f}" in text


def test_all_pads_of_the_sdram_are_constrained() -> None:
    pins = dict(LOCATION.findall(constraints(BOARDS["ulx3s-85f"], Echo(sdram=True))))
    pads = {pad.split("[")[0] for pad in pins if pad.startswith("sdram")}
    names = ("clk", "clk_en", "cs", "ras", "cas", "we", "ba", "a", "dqm", "dq")
    assert pads == {f"sdram_0__{name}__io" for name in names}
    assert sum(pad.startswith("sdram") for pad in pins) == 1 + 1 + 4 + 2 + 13 + 2 + 16
    assert (pins["sdram_0__clk__io"], pins["sdram_0__dq__io[0]"]) == ("F19", "J16")


def test_the_sdram_gets_a_shifted_clock() -> None:
    board = BOARDS["ulx3s-85f"]
    design = elaborate(board, CONFIG, board.clock, lambda *given: Echo(sdram=True)).files["top.il"]
    assert "cell \\EHXPLLL" in design
    first, second = (
        int(re.search(rf"\\{name}_CPHASE [\w']*?(\d+)$", design, re.M)[1]) for name in ("CLKOP", "CLKOS")
    )  # type: ignore[index]
    divider = int(re.search(r"\\CLKOS_DIV [\w']*?(\d+)$", design, re.M)[1])  # type: ignore[index]
    fine = int(re.search(r"\\CLKOS_FPHASE [\w']*?(\d+)$", design, re.M)[1])  # type: ignore[index]
    assert (second - first + fine / 8) / divider == 0.5


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_a_board_can_do_what_it_says(board: Board) -> None:
    check_part(board.config, board.family.value)
    source = board.platform().default_clk_frequency
    assert board.pll(source, board.clock).output == pytest.approx(board.clock, rel=0.005)
    # A receiver bears a few per cent; both sides may be off.
    assert board.clock / board.divisor(board.clock) == pytest.approx(board.baud, rel=0.02)
    words = board.memory.size // board.config.bus_bytes
    assert words & (words - 1) == 0
    if board.memory.kind is MemoryKind.BLOCK:
        assert board.memory.size * 8 < board.available.ram * 18 * 1024
    assert find(board.name) is board


def test_an_unknown_board_is_named_with_those_there_are() -> None:
    with pytest.raises(BoardError, match=r"^unknown board 'arty'; choose ulx3s-12f, .*, tang-primer-20k$"):
        find("arty")
