"""Waiting for a core whose registers are read over a slow link. Boards and systems on a chip share it."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import NoReturn

from weft.hdl.control.counters import HangDetector, describe_stalls
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import ERRORS, Counter, Fault, ListProgress, Reg, Status, counter_register, failure
from weft.sim.device import Closable, Device, DeviceError

POLL_SECONDS = 0.01
"""Seconds between reads of the status register, after some without a pause."""
PATIENCE = 1_000_000
"""Minimum cycles without progress of a program that hangs; see `weft.hdl.control.counters.HangDetector`."""
DIAGNOSIS_CYCLES = 10_000
"""Cycles over which a hung program is observed, to report what it waits for."""
STOPPED_POLLS = 100
"""Reads of an unchanged cycle counter after which the core counts as stopped."""


class PolledDevice(Closable, Device):
    """Base class of devices whose status is polled.

    Attributes
    ----------
    config : Config
        Configuration that programs are for.
    """

    config: Config
    _started = False
    """True after a start until the program is known to be done."""
    _in_list = False
    """True if the last start was of a list."""

    @property
    @abstractmethod
    def _at(self) -> str:
        """Location of the core for messages."""

    @abstractmethod
    def _read_registers(self, address: int, size: int) -> bytes:
        """Return `size` bytes of registers from `address`."""

    @abstractmethod
    def _abandon(self) -> None:
        """Record that a run has failed, so that the next one begins with a reset."""

    def wait(self, timeout: int | None = None) -> None:
        """Return when the program is done; at once if none was started.

        Raises
        ------
        DeviceError
            If the program is not done after `timeout` cycles or, without a timeout, makes no progress for `PATIENCE`
            cycles; the message says what it waits for. Also if memory answers with an error, an instruction is invalid,
            the watchdog expires, the program is stopped, the core stops or is reset, or the connection is lost.
        """
        watch = HangDetector(self.config, PATIENCE)
        polls = still = cycles = checked = 0
        while self._started:
            status = self._status()
            self._raise_errors(status)
            if status & Status.DONE:
                self._started = False
                return
            # A running core counts cycles even when its program is blocked.
            before, cycles = cycles, self._cycles()
            still = still + 1 if cycles == before else 0
            if still >= STOPPED_POLLS:
                self._fail(f"the core at {self._at} has stopped: its cycle counter does not change")
            if timeout is not None and cycles >= timeout:
                self._fail(f"the program is not done after {timeout} cycles: {self._diagnose()}")
            if timeout is None and cycles >= checked + PATIENCE // 4:
                checked = cycles
                if watch.hangs(self.counters()):
                    self._fail(f"the program hangs: {self._diagnose(hangs=True)}")
            polls += 1
            time.sleep(POLL_SECONDS if polls > 10 else 0)

    def list_progress(self) -> ListProgress:
        """Return the progress of the last list."""
        return ListProgress.of(self._read_register(Reg.LISTED))

    def counters(self) -> dict[Counter, int]:
        """Return the counters of the last program or whole list."""
        words = self._read_registers(Reg.COUNTER, 8 * len(Counter))
        return {
            counter: int.from_bytes(words[8 * counter : 8 * counter + 8], "little") for counter in Counter
        }

    def _raise_errors(self, status: Status) -> None:
        if status & ERRORS:
            words = self._read_registers(Reg.FAULT_ADDRESS, 8)
            address, fault = (int.from_bytes(words[at : at + 4], "little") for at in (0, 4))
            listed = self.list_progress() if self._in_list else None
            self._fail(failure(status, Fault.of(fault, address), listed))
        if not status & (Status.BUSY | Status.DONE):
            self._fail(f"the core at {self._at} was reset while the program ran")

    def _fail(self, message: str) -> NoReturn:
        self._abandon()
        raise DeviceError(message)

    def _diagnose(self, *, hangs: bool = False) -> str:
        """Describe what the units did in the last cycles, from the counters."""
        before = after = self.counters()
        for _ in range(STOPPED_POLLS):
            if (
                after[Counter.CYCLES] >= before[Counter.CYCLES] + DIAGNOSIS_CYCLES
                or not self._status() & Status.BUSY
            ):
                break
            after = self.counters()
        return describe_stalls(before, after, hangs=hangs)

    def _cycles(self) -> int:
        return int.from_bytes(self._read_registers(counter_register(Counter.CYCLES), 8), "little")

    def _status(self) -> Status:
        return Status(self._read_register(Reg.STATUS))

    def _read_register(self, address: int) -> int:
        return int.from_bytes(self._read_registers(address, 4), "little")
