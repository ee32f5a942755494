"""A host's session with a board model, over a simulated line."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.board_model import BoardModel
from support.simulated_line import SimulatedLine
from weft.boards.bus.memory import BoardMemory
from weft.boards.link.session import Session


def connect(model: BoardModel, rate: float = 0.0, seed: int = 1) -> tuple[BoardMemory, SimulatedLine]:
    """Return a board's memory and the line to it, which loses and corrupts bytes at a `rate`."""
    line = SimulatedLine(model.feed, random.Random(seed))
    line.rate = rate
    session = Session(line, "line", timeout=0.23, adaptive=True, clock=line.clock)
    session.buffer = model.identity.buffer
    return BoardMemory(session, len(model.memory)), line


def stop_answering_after(model: BoardModel, most: int) -> Callable[[bytes], bytes]:
    """Return a board whose answers are lost after it has received `most` bytes."""
    heard = 0

    def feed(data: bytes) -> bytes:
        nonlocal heard
        heard += len(data)
        return model.feed(data) if heard < most else b""

    return feed
