"""Diagnosis of a board: its core, its memory, and the link to it."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from weft.boards.bus.memory import WORD, BoardMemory, MemoryTest, find_first_error, guess_cause
from weft.boards.link.frames import CHECK_BLOCK, IDENTITY_BYTES, PAYLOAD, Operation, Request
from weft.boards.link.session import Session
from weft.hdl.isa.memmap import MAGIC, VERSION, Reg, Status
from weft.sim.device import DeviceError

ROUND_TRIPS = 50
PASSES = 4
"""Times that a memory test moves each byte over the link: read, two patterns, restore."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Registers:
    """Registers that identify a core, and its status."""

    magic: int
    version: int
    digest: int
    status: Status

    @property
    def sound(self) -> bool:
        """True if this version of weft supports the core."""
        return self.magic == MAGIC and self.version == VERSION


@dataclass(frozen=True)
class LinkQuality:
    """Measured quality of the link.

    Attributes
    ----------
    round_trip : tuple of float
        Seconds of the shortest request: minimum, median, maximum.
    write_rate, read_rate : float
        Bytes per second.
    requests, repeated, damaged : int
        Answered requests, repeated requests, and damaged frames received.
    error_rate : float
        Estimated rate of damaged bytes on the line.
    """

    round_trip: tuple[float, float, float]
    write_rate: float
    read_rate: float
    requests: int
    repeated: int
    damaged: int
    error_rate: float


def read_registers(session: Session) -> Registers:
    """Read the identifying registers. This and all functions here raise `DeviceError` if the connection is lost."""
    answer = session.request(Request(0, Operation.READ_REGISTERS, Reg.MAGIC, 20))
    values = [int.from_bytes(answer.payload[at : at + 4], "little") for at in range(0, 20, 4)]
    return Registers(values[0], values[1], values[2], Status(values[4]))


def measure_link(
    memory: BoardMemory, most: int, clock: Clock = time.monotonic, seconds: float = math.inf
) -> LinkQuality:
    """Measure round trips and transfer rates. The first bytes of memory are read and written back.

    Each direction takes about `seconds` at most and moves up to `most` bytes.
    """
    session = memory.session
    before = session.quality.exchanges, session.retries, session.damaged_frames
    trips = []
    for _ in range(ROUND_TRIPS):
        begun = clock()
        session.request(Request(0, Operation.IDENTIFY, size=IDENTITY_BYTES))
        trips.append(clock() - begun)
    # Double the size until a transfer takes long enough to be measured.
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
        repeated=session.retries - before[1],
        damaged=session.damaged_frames - before[2],
        error_rate=session.quality.error_rate,
    )


def choose_blocks(size: int, most: int, seed: int = 1) -> tuple[int, list[int]]:
    """Choose the block size in bytes and the addresses of blocks to test, for up to `most` bytes of `size`.

    That is all of memory if possible. Otherwise it is the first block, the blocks that differ from it in one address
    line, the last block, and random blocks. Blocks are smaller if `most` is small.
    """
    # Large blocks need fewer requests; small blocks leave room for more addresses.
    block = min(CHECK_BLOCK if most >= 32 * CHECK_BLOCK or most >= size else PAYLOAD, size)
    blocks = size // block
    count = max(1, min(most // block, blocks))
    lines = [1 << bit for bit in reversed(range((blocks - 1).bit_length()))]
    samples = random.Random(seed).sample(range(blocks), count)
    chosen = list(dict.fromkeys([0, blocks - 1, *lines, *samples]))[:count]
    return block, sorted(at * block for at in (range(blocks) if count == blocks else chosen))


def check_memory(
    memory: BoardMemory,
    most: int,
    progress: Callable[[str], None] = lambda text: None,
    clock: Clock = time.monotonic,
) -> MemoryTest:
    """Test up to `most` bytes with a random pattern per block, then with its inverse. The previous contents are
    restored.

    All blocks are written before any is compared, so that aliased addresses are found. No program may be running.
    """
    begun = clock()
    length, blocks = choose_blocks(memory.size, most)
    extent = f"{len(blocks) * length:,} bytes of memory"
    previous = {
        block: memory.read(block, length)
        for block in with_progress(blocks, f"reading {extent} to restore them later", progress)
    }
    wrong = None
    seed = random.randrange(1 << 32)
    try:
        try:
            for turn, inverse in ((1, 0x00), (2, 0xFF)):
                for block in with_progress(blocks, f"writing to {extent}, {turn} of 2", progress):
                    memory.write(block, pattern(seed, block, length, inverse))
                for block in with_progress(blocks, f"testing {extent}, {turn} of 2", progress):
                    wrong = wrong or _difference(memory, block, pattern(seed, block, length, inverse))
        finally:
            for block in with_progress(blocks, f"writing back {extent}", progress):
                memory.write(block, previous[block])
    except DeviceError as error:
        raise DeviceError(f"{error}; parts of its memory may still hold test patterns") from None
    restored = all(_difference(memory, block, content) is None for block, content in previous.items())
    first, cause = wrong or (None, "")
    return MemoryTest(len(blocks) * length, memory.size, first, restored, clock() - begun, cause)


def with_progress(blocks: Iterable[int], text: str, progress: Callable[[str], None]) -> Iterator[int]:
    """Yield the blocks, and report `text` and a percentage to `progress` before each."""
    blocks = list(blocks)
    for index, block in enumerate(blocks):
        progress(f"{text}: {index / len(blocks):.0%}")
        yield block


def pattern(seed: int, address: int, size: int, inverse: int) -> bytes:
    """Return the test pattern of a block, which depends on its address."""
    random_bytes = random.Random(seed << 32 | address).randbytes(size)
    return bytes(byte ^ inverse for byte in random_bytes) if inverse else random_bytes


def _difference(
    memory: BoardMemory, address: int, expected: bytes
) -> tuple[tuple[int, int, int], str] | None:
    """Return address, expected and actual value of the first wrong byte, and its likely cause; None if all are
    correct."""
    if memory.holds(address, expected):
        return None
    actual = memory.read(address, len(expected))
    for at in range(0, len(expected), WORD):
        word, read = expected[at : at + WORD], actual[at : at + WORD]
        if word != read:
            return find_first_error(address + at, word, read), guess_cause(address + at, word, read, None)
    # The board's CRC differs, but the bytes read are correct: a byte changes by itself, or the CRC is wrong.
    return (address, expected[0], actual[0]), ""
