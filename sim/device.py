"""The device protocol, which every device that runs programs implements: golden, cycle model, RTL or board."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from weft.hdl.errors import IsaError, WeftError
from weft.hdl.isa import BASES, program_lists
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter, ListProgress

MAX_EXECUTED = 1 << 22
"""Instructions after which a device gives a program with loops up as endless."""


class DeviceError(WeftError, RuntimeError):
    """Device failure or refusal: an address outside memory, a bus error, a program that does not end."""


def check_range(address: int, size: int, memory_bytes: int) -> None:
    """Raise `DeviceError` unless `size` bytes at `address` lie inside memory."""
    if address < 0 or size < 0 or address + size > memory_bytes:
        raise DeviceError(f"{size} bytes at {address:#x} do not lie in a memory of {memory_bytes} bytes")


def check_base(index: int, address: int) -> None:
    """Raise `DeviceError` if base register `index` does not exist or cannot hold `address`."""
    if not 0 <= index < BASES:
        raise DeviceError(f"base register {index} does not exist; there are {BASES}")
    if not 0 <= address < 1 << 32:
        raise DeviceError(f"base register {index} cannot hold {address}: it is 32 bits")


def check_program(program: int, config: Config) -> None:
    """Raise `DeviceError` unless address `program` is a multiple of the bus width."""
    if program % config.bus_bytes:
        raise DeviceError(f"program address {program:#x} is no multiple of {config.bus_bytes} bytes")


def check_list(address: int, config: Config, memory_bytes: int) -> None:
    """Raise `DeviceError` if no list of programs can start at `address`, or the configuration supports none."""
    if not config.descriptors:
        raise DeviceError("the configuration runs no lists of programs ('descriptors' is 0)")
    try:
        program_lists.check_list(address, 1, config, memory_bytes)
    except IsaError as error:
        raise DeviceError(str(error)) from None


def check_memory(latency: int, bandwidth: float | None) -> None:
    """Raise `ValueError` unless the latency is at least 1 cycle and the bandwidth is positive or None (unlimited)."""
    if latency < 1:
        raise ValueError(f"the memory latency is at least 1 cycle, not {latency}")
    if bandwidth is not None and bandwidth <= 0:
        raise ValueError(f"the memory bandwidth is above 0 bytes a cycle, not {bandwidth}")


class Closable(ABC):
    """Base class of context managers that call `close` on exit."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources. The object cannot be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class Device(Protocol):
    """An accelerator with its memory.

    Derived classes may leave out `load`, `unload`, `find_in_flash`, `confirm`, `start_list`, `list_progress` and the
    last three methods.

    Attributes
    ----------
    config : Config
        Configuration of the accelerator; it runs only programs that were compiled for this configuration.
    memory_bytes : int
        Size of the DRAM, addresses 0 to ``memory_bytes - 1``.
    computes : bool
        False if a program leaves no results in memory.
    advice : str
        Remedy for too little memory, to append to an error message; valid after `find_in_flash`.
    origin : int
        Bus address of the DRAM's first byte, which lists of programs use. All methods here count from the DRAM's first
        byte instead.
    """

    config: Config
    memory_bytes: int
    computes: bool = True
    advice: str = ""
    origin: int = 0

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it does not lie inside memory."""

    def load(self, address: int, payload: bytes, name: str = "what was loaded") -> None:
        """Write read-only data, which error messages call `name`.

        A device may skip the write if an earlier `load` left the same data at `address`.
        """
        self.write(address, payload)

    def unload(self, address: int, size: int) -> None:
        """Forget data loaded in this range, because a program overwrites it."""
        return None

    def confirm(self) -> None:
        """Raise `DeviceError` if loaded data has changed, so that results since then may be wrong.

        Only devices whose memory may lose its contents check.
        """
        return None

    def find_in_flash(self, payload: bytes) -> int | None:
        """Return the address of `payload` in flash, or None if flash does not hold it."""
        return None

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes of DRAM. Raises `DeviceError` if they do not lie inside memory."""

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a DRAM byte address."""

    def start(self, program: int) -> None:
        """Start the program at DRAM byte address `program`, a multiple of the bus width."""

    def start_list(self, address: int) -> None:
        """Start the list of programs at DRAM byte address `address`, see `weft.hdl.isa.program_lists`.

        Needs a configuration with `descriptors`. Raises `DeviceError` if no list can start there.
        """
        check_list(address, self.config, self.memory_bytes)
        raise DeviceError("this device runs no lists of programs")

    def list_progress(self) -> ListProgress:
        """Return the progress of the list that was started last."""
        return ListProgress(0)

    def wait(self, timeout: int | None = None) -> None:
        """Wait until the program or list is done. Raises `DeviceError` after `timeout` cycles or on a device error."""

    def counters(self) -> dict[Counter, int]:
        """Return the counters of the last program or whole list, as far as the device measures them."""
        ...

    def mark_writes(self, totals: Sequence[int]) -> None:
        """Have the next program record the cycle at which it has written each of `totals` bytes (ascending) to DRAM."""
        return None

    def marks(self) -> list[int] | None:
        """Return the recorded cycles, without totals that were not reached; None if the device does not record them."""
        return None

    def close(self) -> None:
        """Free all resources. The device cannot be used afterwards."""
        return None
