"""Simulated boards whose memory is written and read directly, bypassing the serial line's 40 cycles a byte."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.boards.board import Board
from weft.boards.link.host import BoardDevice
from weft.boards.sdram.chip import ARRAY_VERILOG
from weft.boards.sdram.model import EYE_VERILOG
from weft.boards.virtual_top import VirtualTop
from weft.hdl.isa.config import Config
from weft.hdl.verilog import generate
from weft.run import virtual
from weft.sim.device import check_range
from weft.sim.verilate import Model

_WORDS = """
#include "Vtop___024root.h"

extern "C" uint16_t* board_words(void* handle) {
    return &static_cast<Board*>(handle)->top->rootp->board__DOT__chip__DOT__chip__DOT__array__DOT__words[0];
}
"""
COLUMN_BITS, BANK_BITS, ROW_BITS = 9, 2, 13
"""Address bits of the boards' chips."""


def build(board: Board, config: Config) -> Path:
    """Build a board like `weft.run.virtual.build_board`, with the function ``board_words`` in it."""
    board = replace(board, flash=None)  # what it does when it starts is not looked at
    driver = Path(virtual.__file__).with_name("virtual_board.cpp").read_text() + _WORDS
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "preloaded_board.cpp")
        source.write_text(driver)
        return Model(
            verilog=generate(VirtualTop(board, config, virtual.DIVISOR), name="board")
            + ARRAY_VERILOG
            + EYE_VERILOG,
            top="board",
            driver=source,
            output="board.so",
            visible={"weft_sdram_array": ["words"]},
            link=["-Wl,-Bsymbolic"],
        ).build()


class Preloaded(BoardDevice):
    """A board whose SDRAM is written at once, and which counts the requests in between."""

    words: np.ndarray[Any, np.dtype[np.uint16]]
    """Words by row, bank and column, in address order; a view of the chip's own order."""

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to memory. Raises `DeviceError` if it does not lie inside."""
        check_range(address, len(payload), self.memory_bytes)
        self.contents.forget(address, len(payload))
        first, end = address // 2, (address + len(payload) + 1) // 2
        words = self._words(first, end)
        raw = words.view(np.uint8)
        raw[address - 2 * first :][: len(payload)] = np.frombuffer(payload, np.uint8)
        index = np.arange(first, end)
        self.words[_places(index)] = words

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes of memory. Raises `DeviceError` if they do not lie inside."""
        check_range(address, size, self.memory_bytes)
        first = address // 2
        return self._words(first, (address + size + 1) // 2).tobytes()[address - 2 * first :][:size]

    def _words(self, first: int, end: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
        return self.words[_places(np.arange(first, end))]


def _places(words: np.ndarray) -> np.ndarray:
    """Return the indices of words in the chip's model, which stores bank after bank, not row after row."""
    column = words & ((1 << COLUMN_BITS) - 1)
    bank = words >> COLUMN_BITS & ((1 << BANK_BITS) - 1)
    row = words >> (COLUMN_BITS + BANK_BITS)
    return column | row << COLUMN_BITS | bank << (COLUMN_BITS + ROW_BITS)


@contextmanager
def preloaded_board(board: Board, config: Config) -> Iterator[Preloaded]:
    """Return a simulated board with SDRAM."""
    library = build(board, config)
    held, virtual.build_board = virtual.build_board, lambda board, config: library
    try:
        simulated = virtual.VirtualBoard(board, config)
    finally:
        virtual.build_board = held
    with simulated, Preloaded.open(simulated.port, config, baud=board.baud, timeout=30.0) as device:
        function = simulated._library.board_words
        function.restype, function.argtypes = ctypes.POINTER(ctypes.c_uint16), [ctypes.c_void_p]
        device.words = np.ctypeslib.as_array(function(simulated._model), (board.memory.size // 2,))
        yield device
        assert simulated.violations == []
