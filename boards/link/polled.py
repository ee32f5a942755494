"""Waiting for a core whose registers are read over a slow link: what boards and systems on a chip have in common."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import NoReturn

from weft.hdl.control.counters import HangDetector, describe_stalls
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import ERRORS, Counter, Fault, ListProgress, Reg, Status, counter_register, failure
from weft.sim.device import Closing, Device, DeviceError

NAP = 0.01
"""Seconds between looks at the status register, after some quick ones."""
PATIENCE = 1_000_000
"""Cycles over which nothing moves in a program that hangs, at least; see `weft.hdl.control.counters.HangDetector`."""
PROBE = 10_000
"""Cycles over which a program that does not end is watched, to say what it waits for."""
STILL = 100
"""Looks at a counter of cycles that stands still, after which the core is not waited for."""


class PolledDevice(Closing, Device):
    """A device that is asked for its status again and again.

    Attributes
    ----------
    config : Config
        The accelerator that programs are for.
    """

    config: Config
    _started = False
    """Whether a program was started that is not known to be done."""
    _in_list = False
    """Whether what was started last is a list."""

    @property
    @abstractmethod
    def _at(self) -> str:
        """Where the core is, as messages say it."""

    @abstractmethod
    def _read_registers(self, address: int, size: int) -> bytes:
        """`size` bytes of registers from `address` on."""

    @abstractmethod
    def _abandon(self) -> None:
        """Note that a run has failed, whatever the core still does: the next one begins with a reset."""

    def wait(self, timeout: int | None = None) -> None:
        """Return when the program is done; at once if none was started.

        Raises
        ------
        DeviceError
            If it is not done after `timeout` cycles, or without a timeout, if nothing moves for `PATIENCE` cycles
            (the message says what it waits for); if memory answers with an error, a word is no instruction, the
            watchdog expires, the program is stopped, the core stands still or is reset, or nothing answers any more.
        """
        watch = HangDetector(self.config, PATIENCE)
        looks = still = cycles = read = 0
        while self._started:
            status = self._status()
            self._raise_errors(status)
            if status & Status.DONE:
                self._started = False
                return
            before, cycles = cycles, self._cycles()
            still = still + 1 if cycles == before else 0
            if still >= STILL:
                self._fail(f"the core at {self._at} stands still: it counts no cycles")
            if timeout is not None and cycles >= timeout:
                self._fail(f"the program is not done after {timeout} cycles: {self._diagnose()}")
            if timeout is None and cycles >= read + PATIENCE // 4:
                read = cycles
                if watch.hangs(self.counters()):
                    self._fail(f"the program hangs: {self._diagnose(hangs=True)}")
            looks += 1
            time.sleep(NAP if looks > 10 else 0)

    def listed(self) -> ListProgress:
        """How far the last list has come."""
        return ListProgress.of(self._read_register(Reg.LISTED))

    def counters(self) -> dict[Counter, int]:
        """The counters of the last program or whole list."""
        words = self._read_registers(Reg.COUNTER, 8 * len(Counter))
        return {
            counter: int.from_bytes(words[8 * counter : 8 * counter + 8], "little") for counter in Counter
        }

    def _raise_errors(self, status: Status) -> None:
        if status & ERRORS:
            words = self._read_registers(Reg.FAULT_ADDRESS, 8)
            address, fault = (int.from_bytes(words[at : at + 4], "little") for at in (0, 4))
            listed = self.listed() if self._in_list else None
            self._fail(failure(status, Fault.of(fault, address), listed))
        if not status & (Status.BUSY | Status.DONE):
            self._fail(f"the core at {self._at} was reset while the program ran")

    def _fail(self, message: str) -> NoReturn:
        self._abandon()
        raise DeviceError(message)

    def _diagnose(self, *, hangs: bool = False) -> str:
        """What the units did in the last cycles, from the counters."""
        before = after = self.counters()
        for _ in range(STILL):
            if after[Counter.CYCLES] >= before[Counter.CYCLES] + PROBE or not self._status() & Status.BUSY:
                break
            after = self.counters()
        return describe_stalls(before, after, hangs=hangs)

    def _cycles(self) -> int:
        return int.from_bytes(self._read_registers(counter_register(Counter.CYCLES), 8), "little")

    def _status(self) -> Status:
        return Status(self._read_register(Reg.STATUS))

    def _read_register(self, address: int) -> int:
        return int.from_bytes(self._read_registers(address, 4), "little")
