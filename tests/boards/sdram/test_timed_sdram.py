"""The cycle model's SDRAM parameters match the board's hardware."""

from __future__ import annotations

from typing import Any

import pytest
from amaranth.hdl import Fragment

from weft.boards.board import MemoryKind
from weft.boards.bus.axi import AxiBridge
from weft.boards.bus.port import Arbiter
from weft.boards.errors import BoardError
from weft.boards.registry import BOARDS, find
from weft.boards.sdram.controller import ReadWords, SdramController
from weft.boards.top import Top


@pytest.fixture
def build_components(monkeypatch: pytest.MonkeyPatch) -> dict[type, Any]:
    """Return the last component of each of these classes."""
    found: dict[type, Any] = {}

    def spy(kind: type) -> None:
        original = kind.__init__

        def init(self: Any, *given: Any, **named: Any) -> None:
            original(self, *given, **named)
            found[kind] = self

        monkeypatch.setattr(kind, "__init__", init)

    for kind in (SdramController, ReadWords, AxiBridge, Arbiter):
        spy(kind)
    return found


@pytest.mark.drawn(1)
@pytest.mark.parametrize("clock", [25e6, 66e6, 80e6, 130e6])
def test_sdram_is_the_boards(clock: float, build_components: dict[type, Any]) -> None:
    board = find("ulx3s-12f")
    sdram = board.sdram(clock)
    assert sdram is not None
    Fragment.get(Top(board, board.config, clock, 400, board.family.fabric), None)
    controller = build_components[SdramController]
    for name in ("rcd", "rp", "ras", "rc", "rrd", "rfc", "wr", "refresh"):
        assert getattr(sdram, name) == getattr(controller.cycles, name), name
    assert 2 << (sdram.row_bits + sdram.column_bits + 2) == controller.size == board.memory.size
    assert (sdram.row_bits, sdram.column_bits) == (controller.row_bits, controller.column_bits)
    assert sdram.cas_latency == controller.cas_latency
    assert controller.calibrator is not None
    begins = controller.calibrator.signature.members["late"].init
    assert sdram.read_latency == build_components[ReadWords].latency + begins
    assert (sdram.pieces, sdram.commands) == (
        build_components[AxiBridge].pieces,
        build_components[Arbiter].commands,
    )


def test_boards_without_sdram() -> None:
    for board in BOARDS.values():
        assert (board.sdram(board.clock) is None) == (board.memory.kind is not MemoryKind.SDRAM), board.name


def test_a_clock_that_the_sdram_cannot_have() -> None:
    with pytest.raises(BoardError, match=r"^the SDRAM cannot run at 300 MHz: "):
        find("ulx3s-85f").sdram(300e6)
