"""What a board is and whether it is sound: its core, its memory, and the link to it."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from weft.boards.bus.memory import WORD, BoardMemory, MemoryTest, cause_of, first_wrong
from weft.boards.link.frames import CHECKED, IDENTITY_BYTES, PAYLOAD, Operation, Request
from weft.boards.link.session import Session
from weft.hdl.isa.memmap import MAGIC, VERSION, Reg, Status
from weft.sim.device import DeviceError

ROUND_TRIPS = 50
PASSES = 4
"""How often a memory test moves each byte over the link: read, two patterns, and back."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Registers:
    """The registers of a core that tell what it is, and its status."""

    magic: int
    version: int
    digest: int
    status: Status

    @property
    def sound(self) -> bool:
        """Whether they are of a core that this weft knows."""
        return self.magic == MAGIC and self.version == VERSION


@dataclass(frozen=True)
class LinkQuality:
    """How good the link is.

    Attributes
    ----------
    round_trip : tuple of float
        Seconds for the shortest request: least, median, most.
    write_rate, read_rate : float
        Bytes a second.
    requests, repeated, damaged : int
        Requests that were answered, those that were sent again, and damaged frames that came back.
    error_rate : float
        Estimated share of bytes on the line that are spoilt.
    """

    round_trip: tuple[float, float, float]
    write_rate: float
    read_rate: float
    requests: int
    repeated: int
    damaged: int
    error_rate: float


def read_registers(session: Session) -> Registers:
    """Raises `DeviceError` if the board is lost, as all functions here do."""
    answer = session.request(Request(0, Operation.READ_REGISTERS, Reg.MAGIC, 20))
    values = [int.from_bytes(answer.payload[at : at + 4], "little") for at in range(0, 20, 4)]
    return Registers(values[0], values[1], values[2], Status(values[4]))


def try_link(
    memory: BoardMemory, most: int, clock: Clock = time.monotonic, seconds: float = math.inf
) -> LinkQuality:
    """Measure round trips, and read the first bytes of memory and write them back as they were.

    Each way takes up to about `seconds`, and moves up to `most` bytes.
    """
    session = memory.session
    before = session.quality.exchanges, session.repeated, session.damaged
    trips = []
    for _ in range(ROUND_TRIPS):
        begun = clock()
        session.request(Request(0, Operation.IDENTIFY, size=IDENTITY_BYTES))
        trips.append(clock() - begun)
    size = min(PAYLOAD, most)
    while True:
        begun = clock()
        content = memory.read(0, size)
        read = clock()
        if size == most or read - begun > seconds / 4:
            break
        size = min(2 * size, most)
    memory.write(0, content)
    written = clock()
    return LinkQuality(
        round_trip=(min(trips), statistics.median(trips), max(trips)),
        write_rate=size / max(written - read, 1e-9),
        read_rate=size / max(read - begun, 1e-9),
        requests=session.quality.exchanges - before[0],
        repeated=session.repeated - before[1],
        damaged=session.damaged - before[2],
        error_rate=session.quality.error_rate,
    )


def chosen_blocks(size: int, most: int, seed: int = 1) -> tuple[int, list[int]]:
    """Bytes and addresses of blocks to test if that may be `most` bytes of `size`: all of memory, or the first block,
    those that differ from it in one address line, the last one, and some drawn between them. They are smaller where
    `most` is little."""
    block = min(CHECKED if most >= 32 * CHECKED or most >= size else PAYLOAD, size)
    blocks = size // block
    wanted = max(1, min(most // block, blocks))
    lines = [1 << bit for bit in reversed(range((blocks - 1).bit_length()))]
    drawn = random.Random(seed).sample(range(blocks), wanted)
    chosen = list(dict.fromkeys([0, blocks - 1, *lines, *drawn]))[:wanted]
    return block, sorted(at * block for at in (range(blocks) if wanted == blocks else chosen))


def check_memory(
    memory: BoardMemory,
    most: int,
    progress: Callable[[str], None] = lambda text: None,
    clock: Clock = time.monotonic,
) -> MemoryTest:
    """Test up to `most` bytes with what is drawn for each block, then its inverse; all of it is written before any is
    looked at, so that no address stands for another. What was there is written back.

    Nothing may run on the board.
    """
    begun = clock()
    length, blocks = chosen_blocks(memory.size, most)
    extent = f"{len(blocks) * length:,} bytes of memory"
    kept = {
        block: memory.read(block, length)
        for block in reported(blocks, f"reading {extent} to keep them", progress)
    }
    wrong = None
    seed = random.randrange(1 << 32)
    try:
        try:
            for turn, inverse in ((1, 0x00), (2, 0xFF)):
                for block in reported(blocks, f"writing to {extent}, {turn} of 2", progress):
                    memory.write(block, pattern(seed, block, length, inverse))
                for block in reported(blocks, f"testing {extent}, {turn} of 2", progress):
                    wrong = wrong or _difference(memory, block, pattern(seed, block, length, inverse))
        finally:
            for block in reported(blocks, f"writing back {extent}", progress):
                memory.write(block, kept[block])
    except DeviceError as error:
        raise DeviceError(f"{error}; parts of its memory may hold what the test has written") from None
    restored = all(_difference(memory, block, content) is None for block, content in kept.items())
    first, cause = wrong or (None, "")
    return MemoryTest(len(blocks) * length, memory.size, first, restored, clock() - begun, cause)


def reported(blocks: Iterable[int], text: str, progress: Callable[[str], None]) -> Iterator[int]:
    """The blocks one after the other, with a word to `progress` before each."""
    blocks = list(blocks)
    for index, block in enumerate(blocks):
        progress(f"{text}: {index / len(blocks):.0%}")
        yield block


def pattern(seed: int, address: int, size: int, inverse: int) -> bytes:
    """What is written to a block: drawn from its address."""
    drawn = random.Random(seed << 32 | address).randbytes(size)
    return bytes(byte ^ inverse for byte in drawn) if inverse else drawn


def _difference(
    memory: BoardMemory, address: int, expected: bytes
) -> tuple[tuple[int, int, int], str] | None:
    """The first byte that is not as expected, its address, what it should be, and what it is; and what that tells."""
    if memory.holds(address, expected):
        return None
    found = memory.read(address, len(expected))
    for at in range(0, len(expected), WORD):
        word, is_ = expected[at : at + WORD], found[at : at + WORD]
        if word != is_:
            return first_wrong(address + at, word, is_), cause_of(address + at, word, is_, None)
    # The board's check says that it differs, what it reads does not: it changes by itself, or the check is wrong.
    return (address, expected[0], found[0]), ""
