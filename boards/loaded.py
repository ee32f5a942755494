"""What a board's memory should hold for its programs, and whether it still does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from weft.boards.frames import CHECKED
from weft.boards.memory import BoardMemory, Transfer, expected_checks
from weft.boards.session import blocks
from weft.sim.device import DeviceError

SHARE = 0.1
"""Of the time, what checks take at most, but for those that are always made."""


@dataclass
class _Region:
    """Memory that was loaded: `checks` are what the board should answer to checks of its pages."""

    name: str
    address: int
    size: int
    digest: bytes
    checks: dict[int, bytes] = field(default_factory=dict)


class Contents:
    """Regions of memory that programs only read.

    Before the first start behind a change, and behind a failed run, all of them are checked; before others they are if
    checks have taken less than `share` of the time since the last one.

    Parameters
    ----------
    memory : BoardMemory
    share : float
        1: before every start.
    clock : callable
        The time in seconds.

    Attributes
    ----------
    transfer : Transfer
        What was written so far, and what was there.
    checked : int
        Bytes that were checked so far, but for those that were looked at when they were loaded.
    """

    def __init__(
        self, memory: BoardMemory, *, share: float = SHARE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.memory, self.share = memory, share
        self.transfer, self.checked = Transfer(), 0
        self._clock = clock
        self._regions: dict[int, _Region] = {}
        self._due = False  # whatever time it takes
        self._since = 0  # starts since the last check
        self._next = 0.0

    def load(self, address: int, payload: bytes, name: str) -> None:
        """Let memory hold `payload`, called `name`, unless it was loaded there before. Raises `DeviceError` if it does
        not lie inside memory, or the board is lost."""
        region = _Region(name, address, len(payload), hashlib.sha256(payload).digest())
        if not payload or self._knows(region):
            return
        self.forget(address, len(payload))
        moved = self.memory.bring(address, payload)
        self.transfer.written += moved.written
        self.transfer.kept += moved.kept
        self._add(region, payload)

    def adopt(self, address: int, payload: bytes, name: str) -> bool:
        """Whether the board has `payload` at `address`, in memory or in flash; if so, it counts as loaded. Raises
        `DeviceError` if the board is lost."""
        region = _Region(name, address, len(payload), hashlib.sha256(payload).digest())
        if self._knows(region):
            return True
        self._add(region, payload)
        if not self._wrong(region):
            return True
        del self._regions[address]
        return False

    def _knows(self, region: _Region) -> bool:
        """Whether the same was loaded there before."""
        known = self._regions.get(region.address)
        return known is not None and (known.size, known.digest) == (region.size, region.digest)

    def _add(self, region: _Region, payload: bytes) -> None:
        pages = list(blocks(region.address, region.size, CHECKED))
        region.checks = expected_checks(region.address, payload, pages)
        self._regions[region.address] = region
        self._due = True

    def forget(self, address: int, size: int) -> None:
        """What was loaded there is there no more."""
        for at, region in list(self._regions.items()):
            if at < address + size and address < at + region.size:
                del self._regions[at]

    def clear(self) -> None:
        """Nothing that was loaded is there any more."""
        self._regions.clear()

    def distrust(self) -> None:
        """Nobody knows what was written to memory: look at all of it before the next start."""
        self._due = True

    def before_start(self) -> None:
        """Check all regions if that is due. Raises `DeviceError` as `check`."""
        if self._due or self.share >= 1 or self._clock() >= self._next:
            self.check()
        self._since += 1

    def confirm(self) -> None:
        """Check all regions if a program was started since they were. Raises `DeviceError` as `check`."""
        if self._since:
            self.check()

    def check(self) -> None:
        """Check all regions now.

        Raises
        ------
        DeviceError
            If one does not hold what was loaded: all is loaded anew then by the next `load`. If the board is lost.
        """
        begun = self._clock()
        for region in self._regions.values():
            if wrong := self._wrong(region):
                self.clear()
                raise DeviceError(self._told(region, wrong))
            self.checked += region.size
        now = self._clock()
        self._next = now + (now - begun) * (1 / self.share - 1)
        self._due, self._since = False, 0

    def _wrong(self, region: _Region) -> list[tuple[int, int]]:
        pages = list(blocks(region.address, region.size, CHECKED))
        return sorted(self.memory.differing(region.checks, pages))

    def _told(self, region: _Region, wrong: list[tuple[int, int]]) -> str:
        runs, self._since = self._since, 0
        first, last = wrong[0][0], sum(wrong[-1]) - 1
        size = sum(length for _, length in wrong)
        since = (
            "before the program was started"
            if not runs
            else "before the last run ended, whose result may be wrong"
            if runs == 1
            else f"during the last {runs:,} runs, whose results may be wrong"
        )
        return (
            f"{region.name} on the board at {self.memory.session.name} changed {since}: {size:,} bytes of it, from "
            f"{first:#x} to {last:#x}, are not what was sent; run it again, which sends them again, and if this comes "
            "back, test the memory with weft probe --memory-test all"
        )
