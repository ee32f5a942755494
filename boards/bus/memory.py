"""Host access to a board's memory: reads, writes, updates of changed pages, and memory tests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.boards.link.frames import CHECK_BLOCK, CHECK_BYTES, Operation, Request, fill_pattern
from weft.boards.link.framing import crc64
from weft.boards.link.session import Session, blocks
from weft.sim.device import check_range

SAMPLED_PAGES = 8
"""Pages that are checked first. If none of them is correct, all pages are written without further checks."""


@dataclass
class Transfer:
    """Bytes of an update: `written` now, or `kept` because memory already held them."""

    written: int = 0
    kept: int = 0


class BoardMemory:
    """Memory of the board behind a session.

    Parameters
    ----------
    session : Session
    size : int
        Bytes.
    """

    def __init__(self, session: Session, size: int) -> None:
        self.session, self.size = session, size

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload`. Raises `DeviceError` if it is not inside memory."""
        check_range(address, len(payload), self.size)
        view = memoryview(bytes(payload))
        requests = (
            Request(0, Operation.WRITE_MEMORY, at, size, bytes(view[at - address : at - address + size]))
            for at, size in self._blocks(address, len(payload))
        )
        for _ in self.session.exchange(requests):
            pass

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes. Raises `DeviceError` if they are not inside memory."""
        check_range(address, size, self.size)
        return self.fetch(address, size)

    def fetch(self, address: int, size: int) -> bytes:
        """Read `size` bytes from any address that the board maps, such as its flash."""
        contents = bytearray(size)
        for request, answer in self.session.exchange(
            Request(0, Operation.READ_MEMORY, at, length) for at, length in self._blocks(address, size)
        ):
            start = request.address - address
            contents[start : start + request.size] = answer.payload
        return bytes(contents)

    def update(self, address: int, payload: bytes) -> Transfer:
        """Make memory hold `payload`, writing only pages that differ.

        The board computes a CRC of each page, see `weft.boards.link.framing`. Raises `DeviceError` as `write` does.
        """
        check_range(address, len(payload), self.size)
        pages = list(blocks(address, len(payload), CHECK_BLOCK))
        # If no sample is correct, checking the other pages would only take time.
        samples = pages[:: max(1, len(pages) // SAMPLED_PAGES)]
        wrong = self._find_differing_from(address, payload, samples)
        if len(wrong) < len(samples):
            wrong += self._find_differing_from(address, payload, sorted(set(pages) - set(samples)))
        else:
            wrong = pages
        for at, size in _merge_ranges(sorted(wrong)):
            self.write(at, payload[at - address : at - address + size])
        written = sum(size for _, size in wrong)
        return Transfer(written, len(payload) - written)

    def holds(self, address: int, payload: bytes) -> bool:
        """Return whether memory holds `payload`, by the board's CRCs. Raises `DeviceError` as `write` does."""
        check_range(address, len(payload), self.size)
        return not self._find_differing_from(
            address, payload, list(blocks(address, len(payload), CHECK_BLOCK))
        )

    def _find_differing_from(
        self, address: int, payload: bytes, pages: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the `pages` whose contents differ from `payload`, which starts at `address`."""
        return self.find_differing(expected_checks(address, payload, pages), pages)

    def find_differing(
        self, expected: Mapping[int, bytes], pages: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the `pages` whose CRC on the board differs from `expected`.

        Pages are (address, size) pairs inside blocks of `CHECK_BLOCK`; `expected` has the CRC by address.
        """
        requests = (Request(0, Operation.CHECK_MEMORY, at, size) for at, size in pages)
        return [
            (request.address, request.size)
            for request, answer in self.session.exchange(requests)
            if answer.payload != expected[request.address]
        ]

    def _blocks(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield (address, size) of the requests for `size` bytes from `address`, sized for the line's current
        quality."""
        end = address + size
        while address < end:
            at, length = next(blocks(address, end - address, self.session.payload))
            yield at, length
            address += length


def expected_checks(address: int, payload: bytes, pages: list[tuple[int, int]]) -> dict[int, bytes]:
    """Return the CRCs by address that boards compute for `pages` that hold `payload`, which starts at `address`."""
    # `crc64` processes pages of equal length at once.
    checks: dict[int, bytes] = {}
    for length in {size for _, size in pages}:
        addresses = [at for at, size in pages if size == length]
        joined = b"".join(payload[at - address : at - address + length] for at in addresses)
        rows = np.frombuffer(joined, np.uint8).reshape(len(addresses), length)
        for at, crc in zip(addresses, crc64(rows).tolist(), strict=True):
            checks[at] = crc.to_bytes(CHECK_BYTES, "little")
    return checks


def _merge_ranges(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Merge adjacent ranges, given as ascending (address, size) pairs."""
    start = end = 0
    for at, size in ranges:
        if at != end or start == end:
            if start != end:
                yield start, end - start
            start = at
        end = at + size
    if start != end:
        yield start, end - start


WORD = 8
"""Bytes per test word."""
CRC_BATCH = 1 << 18
"""Bytes whose CRCs are computed at once."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class MemoryTest:
    """Result of a memory test.

    Attributes
    ----------
    tested, size : int
        Bytes tested, and bytes of memory.
    wrong : tuple of (int, int, int), or None
        Address, expected value and read value of a wrong byte; None if there is none.
    restored : bool or None
        True if the previous contents were restored; None if this was not attempted.
    seconds : float
    cause : str
        Likely cause of the error; empty if unknown, or if there is no error.
    """

    tested: int
    size: int
    wrong: tuple[int, int, int] | None
    restored: bool | None
    seconds: float
    cause: str = ""

    def __str__(self) -> str:
        if self.wrong is None:
            return "no error"
        return describe_error(*self.wrong, self.cause)


def describe_error(address: int, expected: int, actual: int, cause: str = "") -> str:
    """Describe a wrong byte in words."""
    bits = [bit for bit in range(8) if (expected ^ actual) >> bit & 1]
    if not bits:
        return f"the byte at {address:#x} changes by itself"
    numbers = f"{'bit' if len(bits) == 1 else 'bits'} {', '.join(map(str, bits))}"
    return f"at {address:#x} {actual:#04x} is read instead of {expected:#04x} ({numbers})" + (
        f": {cause}" if cause else ""
    )


def guess_cause(address: int, expected: bytes, actual: bytes, elsewhere: int | None) -> str:
    """Return the likely cause of an error in `WORD` bytes at `address`; empty if unknown.

    `actual` was read instead of `expected`. `elsewhere` is the address where `actual` was written; None if nowhere.
    """
    if elsewhere is not None and elsewhere != address:
        lines = [bit for bit in range(32) if (address ^ elsewhere) >> bit & 1]
        numbers = f"{'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, lines))}"
        return f"this value was written to {elsewhere:#x}, so address {numbers} may be stuck or shorted"
    differ = int.from_bytes(expected, "little") ^ int.from_bytes(actual, "little")
    if differ.bit_count() == 1:
        stuck = int.from_bytes(actual, "little") & differ
        return f"a data bit may be stuck at {1 if stuck else 0}"
    return ""


def sample_addresses(size: int) -> list[int]:
    """Return addresses of the first and last `WORD` bytes, and of words that differ from the first in one address line.

    A stuck address line, or two shorted lines, map two of these words to one. Every bank of a chip contains one of
    them.
    """
    lines = [1 << bit for bit in range(WORD.bit_length() - 1, (size - 1).bit_length())]
    return sorted({0, *(at for at in lines if at + WORD <= size), size - WORD})


def sample_memory(memory: BoardMemory, clock: Clock = time.monotonic) -> MemoryTest:
    """Test the words at `sample_addresses` with distinct random numbers, alternating with their inverses.

    Every data line is thus 0 and 1. All words are written before any is read, and the previous contents are restored.
    This takes about a hundred short requests.

    Raises `DeviceError` if the connection is lost.
    """
    begun = clock()
    addresses = sample_addresses(memory.size)
    random_numbers = random.sample(range(1 << 62), -(-len(addresses) // 2))
    numbers = [number ^ mask for number in random_numbers for mask in (0, (1 << 64) - 1)]
    words = {at: number.to_bytes(WORD, "little") for at, number in zip(addresses, numbers, strict=False)}
    previous = _read(memory, addresses)
    _write(memory, words)
    wrong = _compare(words, _read(memory, addresses))
    _write(memory, previous)
    first, cause = wrong or (None, "")
    return MemoryTest(WORD * len(addresses), memory.size, first, None, clock() - begun, cause)


def _write(memory: BoardMemory, words: Mapping[int, bytes]) -> None:
    requests = (Request(0, Operation.WRITE_MEMORY, at, len(word), word) for at, word in words.items())
    for _ in memory.session.exchange(requests):
        pass


def _read(memory: BoardMemory, addresses: Iterable[int]) -> dict[int, bytes]:
    words = {at: bytearray(WORD) for at in addresses}
    for request, answer in memory.session.exchange(
        Request(0, Operation.READ_MEMORY, at, WORD) for at in words
    ):
        start = request.address % WORD
        words[request.address - start][start : start + request.size] = answer.payload
    return {at: bytes(word) for at, word in words.items()}


def _compare(
    written: Mapping[int, bytes], read: Mapping[int, bytes]
) -> tuple[tuple[int, int, int], str] | None:
    """Return the first wrong byte and its likely cause; None if all words are correct."""
    sources = {word: at for at, word in written.items()}
    for at, word in written.items():
        if read[at] != word:
            return find_first_error(at, word, read[at]), guess_cause(
                at, word, read[at], sources.get(read[at])
            )
    return None


def find_first_error(address: int, expected: bytes, actual: bytes) -> tuple[int, int, int]:
    """Return address, expected value and actual value of the first byte that differs."""
    for at, (expected_byte, actual_byte) in enumerate(zip(expected, actual, strict=True)):
        if expected_byte != actual_byte:
            return address + at, expected_byte, actual_byte
    return address, expected[0], actual[0]


def fill_memory(
    memory: BoardMemory,
    progress: Callable[[str], None] = lambda text: None,
    clock: Clock = time.monotonic,
) -> MemoryTest:
    """Test all of memory with `weft.boards.link.frames.fill_pattern` and its inverse. Previous contents are lost.

    The board writes the pattern, and its CRCs are compared. No program may be running, and the board must have
    `Feature.FILLS`.

    Raises `DeviceError` if the connection is lost.
    """
    begun = clock()
    wrong = None
    for inverse in (False, True):
        extent = f"{memory.size:,} bytes of memory, {1 + inverse} of 2"
        pages = list(blocks(0, memory.size, CHECK_BLOCK))
        requests = (Request(0, Operation.FILL_MEMORY, at, size, inverse=inverse) for at, size in pages)
        for count, _ in enumerate(memory.session.exchange(requests)):
            progress(f"filling {extent}: {count / len(pages):.0%}")
        page = _find_wrong_page(memory, pages, inverse, progress, f"testing {extent}")
        if page is not None:
            wrong = _locate_error(memory, page, inverse)
            break
    first, cause = wrong or (None, "")
    return MemoryTest(memory.size, memory.size, first, None, clock() - begun, cause)


def _find_wrong_page(
    memory: BoardMemory,
    pages: list[tuple[int, int]],
    inverse: bool,
    progress: Callable[[str], None],
    text: str,
) -> int | None:
    """Return the address of the first page whose contents are wrong; None if there is none."""
    for start in range(0, memory.size, CRC_BATCH):
        progress(f"{text}: {start / memory.size:.0%}")
        batch = [(at, size) for at, size in pages if start <= at < start + CRC_BATCH]
        content = fill_pattern(start, sum(size for _, size in batch), inverse=inverse)
        wrong = memory.find_differing(expected_checks(start, content, batch), batch)
        if wrong:
            return min(wrong)[0]
    return None


def _locate_error(memory: BoardMemory, page: int, inverse: bool) -> tuple[tuple[int, int, int], str]:
    size = min(CHECK_BLOCK, memory.size - page)
    actual, expected = memory.read(page, size), fill_pattern(page, size, inverse=inverse)
    for at in range(0, size, WORD):
        word, read = expected[at : at + WORD], actual[at : at + WORD]
        if word != read:
            # Each word of the pattern holds its own number, so a misplaced word tells its address.
            source = WORD * int.from_bytes(bytes(byte ^ 0xFF * inverse for byte in read[:4]), "little")
            inside = source + WORD <= memory.size and fill_pattern(source, WORD, inverse=inverse) == read
            error = find_first_error(page + at, word, read)
            return error, guess_cause(page + at, word, read, source if inside else None)
    # The board's CRC differs, but the bytes read are correct.
    return (page, expected[0], actual[0]), ""
