"""A host's session with the model of a board, over a simulated line."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.board_model import BoardModel
from support.simulated_line import SimulatedLine
from weft.boards.bus.memory import BoardMemory
from weft.boards.link.session import Session


def connected(model: BoardModel, rate: float = 0.0, seed: int = 1) -> tuple[BoardMemory, SimulatedLine]:
    """The memory of a board, and the line to it, which loses and breaks bytes at a `rate`."""
    line = SimulatedLine(model.feed, random.Random(seed))
    line.rate = rate
    session = Session(line, "line", timeout=0.23, adaptive=True, clock=line.clock)
    session.buffer = model.identity.buffer
    return BoardMemory(session, len(model.memory)), line


def tired(model: BoardModel, most: int) -> Callable[[bytes], bytes]:
    """What a board answers that is lost when it has heard `most` bytes."""
    heard = 0

    def feed(data: bytes) -> bytes:
        nonlocal heard
        heard += len(data)
        return model.feed(data) if heard < most else b""

    return feed
