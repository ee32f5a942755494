"""A board's memory as the host sees it: written, read, and brought to what it should hold."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.boards.link.frames import CHECK_BYTES, CHECKED, Operation, Request, filling
from weft.boards.link.framing import crc64
from weft.boards.link.session import Session, blocks
from weft.sim.device import check_range

LOOKS = 8
"""Pages that are checked first: where none is as it should be, the others are not checked but written."""


@dataclass
class Transfer:
    """Bytes that were to be in memory: `written` now, or `kept`, as they were there already."""

    written: int = 0
    kept: int = 0


class BoardMemory:
    """Memory behind a session.

    Parameters
    ----------
    session : Session
    size : int
        Bytes.
    """

    def __init__(self, session: Session, size: int) -> None:
        self.session, self.size = session, size

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload`. Raises `DeviceError` if it does not lie inside memory."""
        check_range(address, len(payload), self.size)
        view = memoryview(bytes(payload))
        requests = (
            Request(0, Operation.WRITE_MEMORY, at, size, bytes(view[at - address : at - address + size]))
            for at, size in self._blocks(address, len(payload))
        )
        for _ in self.session.exchange(requests):
            pass

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes. Raises `DeviceError` if they do not lie inside memory."""
        check_range(address, size, self.size)
        return self.fetch(address, size)

    def fetch(self, address: int, size: int) -> bytes:
        """Read `size` bytes from wherever the board has any, as its flash."""
        found = bytearray(size)
        for request, answer in self.session.exchange(
            Request(0, Operation.READ_MEMORY, at, length) for at, length in self._blocks(address, size)
        ):
            start = request.address - address
            found[start : start + request.size] = answer.payload
        return bytes(found)

    def bring(self, address: int, payload: bytes) -> Transfer:
        """Let memory hold `payload`, whatever it holds now: only pages that differ are written.

        The board computes a CRC of each page, see `weft.boards.link.framing`. Raises as `write`.
        """
        check_range(address, len(payload), self.size)
        pages = list(blocks(address, len(payload), CHECKED))
        few = pages[:: max(1, len(pages) // LOOKS)]
        wrong = self._differing(address, payload, few)
        if len(wrong) < len(few):
            wrong += self._differing(address, payload, sorted(set(pages) - set(few)))
        else:
            wrong = pages
        for at, size in _joined(sorted(wrong)):
            self.write(at, payload[at - address : at - address + size])
        written = sum(size for _, size in wrong)
        return Transfer(written, len(payload) - written)

    def holds(self, address: int, payload: bytes) -> bool:
        """Whether memory holds `payload`, by the board's CRCs. Raises as `write`."""
        check_range(address, len(payload), self.size)
        return not self._differing(address, payload, list(blocks(address, len(payload), CHECKED)))

    def _differing(self, address: int, payload: bytes, pages: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of `pages` that hold something else than `payload` has there, which begins at `address`."""
        return self.differing(expected_checks(address, payload, pages), pages)

    def differing(self, expected: Mapping[int, bytes], pages: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of `pages`, addresses and sizes inside blocks of `CHECKED`, to whose check the board does not answer as
        `expected` has it at their address."""
        requests = (Request(0, Operation.CHECK_MEMORY, at, size) for at, size in pages)
        return [
            (request.address, request.size)
            for request, answer in self.session.exchange(requests)
            if answer.payload != expected[request.address]
        ]

    def _blocks(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        """Addresses and sizes of the requests that `size` bytes from `address` on take, as the line is by then."""
        end = address + size
        while address < end:
            at, length = next(blocks(address, end - address, self.session.payload))
            yield at, length
            address += length


def expected_checks(address: int, payload: bytes, pages: list[tuple[int, int]]) -> dict[int, bytes]:
    """What boards answer to checks of `pages` that hold `payload`, which begins at `address`."""
    found: dict[int, bytes] = {}
    for wanted in {size for _, size in pages}:
        places = [at for at, size in pages if size == wanted]
        joined = b"".join(payload[at - address : at - address + wanted] for at in places)
        rows = np.frombuffer(joined, np.uint8).reshape(len(places), wanted)
        for at, crc in zip(places, crc64(rows).tolist(), strict=True):
            found[at] = crc.to_bytes(CHECK_BYTES, "little")
    return found


def _joined(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ascending addresses and sizes, those that touch as one."""
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
"""Bytes that are written and read at a time."""
STEP = 1 << 18
"""Bytes of which all CRCs are calculated at once."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class MemoryTest:
    """What a memory test found.

    Attributes
    ----------
    tested, size : int
        Bytes that were tested, and bytes of memory.
    wrong : tuple of (int, int, int), or None
        Address of a byte that did not keep what was written, what that was, and what was read; None if all kept it.
    restored : bool or None
        Whether what was there before is there again; None if that was not tried.
    seconds : float
    cause : str
        What the wrong byte and its neighbours tell of the cause; empty if they tell nothing, or none is wrong.
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
        return described(*self.wrong, self.cause)


def described(address: int, meant: int, found: int, cause: str = "") -> str:
    """What is wrong with a byte, in words."""
    bits = [bit for bit in range(8) if (meant ^ found) >> bit & 1]
    if not bits:
        return f"the byte at {address:#x} changes by itself"
    told = f"{'bit' if len(bits) == 1 else 'bits'} {', '.join(map(str, bits))}"
    return f"at {address:#x} {found:#04x} is read instead of {meant:#04x} ({told})" + (
        f": {cause}" if cause else ""
    )


def cause_of(address: int, meant: bytes, found: bytes, elsewhere: int | None) -> str:
    """What `WORD` bytes from `address` on tell of the cause if they are `found` instead of `meant`. `elsewhere` is the
    address at which what is found was written; None if that is nowhere."""
    if elsewhere is not None and elsewhere != address:
        lines = [bit for bit in range(32) if (address ^ elsewhere) >> bit & 1]
        told = f"{'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, lines))}"
        return f"it is what was written to {elsewhere:#x}, so address {told} may be stuck or shorted"
    differ = int.from_bytes(meant, "little") ^ int.from_bytes(found, "little")
    if differ.bit_count() == 1:
        stuck = int.from_bytes(found, "little") & differ
        return f"a bit of data may be stuck at {1 if stuck else 0}"
    return ""


def sampled(size: int) -> list[int]:
    """Addresses of `WORD` bytes that differ from the first ones in one address line, and of the first and last: two
    lines that are shorted, or one that is stuck, let two of these be one, and every bank of a chip has one."""
    lines = [1 << bit for bit in range(WORD.bit_length() - 1, (size - 1).bit_length())]
    return sorted({0, *(at for at in lines if at + WORD <= size), size - WORD})


def sample_memory(memory: BoardMemory, clock: Clock = time.monotonic) -> MemoryTest:
    """Test the words of `sampled` with random ones, no two of which are the same, and by turns with their inverse, so
    that every data line is 0 and 1; all are written before any is read. What was there is written back. Takes about a
    hundred short requests.

    Raises `DeviceError` if the board is lost.
    """
    begun = clock()
    places = sampled(memory.size)
    drawn = random.sample(range(1 << 62), -(-len(places) // 2))
    numbers = [number ^ mask for number in drawn for mask in (0, (1 << 64) - 1)]
    words = {at: number.to_bytes(WORD, "little") for at, number in zip(places, numbers, strict=False)}
    kept = _read(memory, places)
    _write(memory, words)
    wrong = _compare(words, _read(memory, places))
    _write(memory, kept)
    first, cause = wrong or (None, "")
    return MemoryTest(WORD * len(places), memory.size, first, None, clock() - begun, cause)


def _write(memory: BoardMemory, words: Mapping[int, bytes]) -> None:
    requests = (Request(0, Operation.WRITE_MEMORY, at, len(word), word) for at, word in words.items())
    for _ in memory.session.exchange(requests):
        pass


def _read(memory: BoardMemory, places: Iterable[int]) -> dict[int, bytes]:
    found = {at: bytearray(WORD) for at in places}
    for request, answer in memory.session.exchange(
        Request(0, Operation.READ_MEMORY, at, WORD) for at in found
    ):
        start = request.address % WORD
        found[request.address - start][start : start + request.size] = answer.payload
    return {at: bytes(word) for at, word in found.items()}


def _compare(
    written: Mapping[int, bytes], read: Mapping[int, bytes]
) -> tuple[tuple[int, int, int], str] | None:
    """The first byte that is not as written, with what it tells of the cause; None if all are."""
    sources = {word: at for at, word in written.items()}
    for at, word in written.items():
        if read[at] != word:
            return first_wrong(at, word, read[at]), cause_of(at, word, read[at], sources.get(read[at]))
    return None


def first_wrong(address: int, meant: bytes, found: bytes) -> tuple[int, int, int]:
    """Of bytes from `address` on the first that differs: its address, what it should be, and what it is."""
    for at, (byte, is_) in enumerate(zip(meant, found, strict=True)):
        if byte != is_:
            return address + at, byte, is_
    return address, meant[0], found[0]


def fill_memory(
    memory: BoardMemory,
    progress: Callable[[str], None] = lambda text: None,
    clock: Clock = time.monotonic,
) -> MemoryTest:
    """Test all of memory with `weft.boards.link.frames.filling` and its inverse, which the board writes, and looks at
    by its CRCs. What was there is gone. Nothing may run on the board, and it must have `Feature.FILLS`.

    Raises `DeviceError` if the board is lost.
    """
    begun = clock()
    wrong = None
    for inverse in (False, True):
        extent = f"{memory.size:,} bytes of memory, {1 + inverse} of 2"
        pages = list(blocks(0, memory.size, CHECKED))
        requests = (Request(0, Operation.FILL_MEMORY, at, size, inverse=inverse) for at, size in pages)
        for count, _ in enumerate(memory.session.exchange(requests)):
            progress(f"filling {extent}: {count / len(pages):.0%}")
        page = _damaged(memory, pages, inverse, progress, f"testing {extent}")
        if page is not None:
            wrong = _located(memory, page, inverse)
            break
    first, cause = wrong or (None, "")
    return MemoryTest(memory.size, memory.size, first, None, clock() - begun, cause)


def _damaged(
    memory: BoardMemory,
    pages: list[tuple[int, int]],
    inverse: bool,
    progress: Callable[[str], None],
    text: str,
) -> int | None:
    """The first page that is not as it was filled; None if all are."""
    for start in range(0, memory.size, STEP):
        progress(f"{text}: {start / memory.size:.0%}")
        some = [(at, size) for at, size in pages if start <= at < start + STEP]
        content = filling(start, sum(size for _, size in some), inverse=inverse)
        bad = memory.differing(expected_checks(start, content, some), some)
        if bad:
            return min(bad)[0]
    return None


def _located(memory: BoardMemory, page: int, inverse: bool) -> tuple[tuple[int, int, int], str]:
    """The first wrong byte of a page, and what it tells."""
    size = min(CHECKED, memory.size - page)
    found, meant = memory.read(page, size), filling(page, size, inverse=inverse)
    for at in range(0, size, WORD):
        word, is_ = meant[at : at + WORD], found[at : at + WORD]
        if word != is_:
            source = WORD * int.from_bytes(bytes(byte ^ 0xFF * inverse for byte in is_[:4]), "little")
            inside = source + WORD <= memory.size and filling(source, WORD, inverse=inverse) == is_
            return first_wrong(page + at, word, is_), cause_of(
                page + at, word, is_, source if inside else None
            )
    # The board's check says that it differs, what it reads does not.
    return (page, meant[0], found[0]), ""
