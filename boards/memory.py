"""A board's memory as the host sees it: written, read, and brought to what it should hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.boards.crc64 import crc64
from weft.boards.frames import CHECK_BYTES, CHECKED, Operation, Request
from weft.boards.session import Session, blocks
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

        The board computes a CRC of each page, see `weft.boards.crc64`. Raises as `write`.
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
