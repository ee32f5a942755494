"""The protocol between host code and every device that runs programs: golden, cycle model, RTL or board."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from weft.hdl.errors import WeftError
from weft.hdl.isa import BASES, IsaError, program_lists
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter, ListProgress

EXECUTED_MOST = 1 << 22
"""Instructions that devices which follow a program before it runs, or as it runs, take for one that does not end."""


class DeviceError(WeftError, RuntimeError):
    """The device refused or failed: an address outside memory, a bus error, a program that does not end."""


def check_range(address: int, size: int, memory_bytes: int) -> None:
    """Raises `DeviceError` if `size` bytes at `address` do not lie inside memory."""
    if address < 0 or size < 0 or address + size > memory_bytes:
        raise DeviceError(f"{size} bytes at {address:#x} do not lie in a memory of {memory_bytes} bytes")


def check_base(index: int, address: int) -> None:
    """Raises `DeviceError` if there is no base register `index`, or it cannot hold `address`."""
    if not 0 <= index < BASES:
        raise DeviceError(f"base register {index} does not exist; there are {BASES}")
    if not 0 <= address < 1 << 32:
        raise DeviceError(f"base register {index} cannot hold {address}: it is 32 bits")


def check_program(program: int, config: Config) -> None:
    """Raises `DeviceError` if no program can start at address `program`."""
    if program % config.bus_bytes:
        raise DeviceError(f"program address {program:#x} is no multiple of {config.bus_bytes} bytes")


def check_list(address: int, config: Config, memory_bytes: int) -> None:
    """Raises `DeviceError` if no list of programs can start at `address`, or the configuration has none."""
    if not config.descriptors:
        raise DeviceError("the configuration runs no lists of programs ('descriptors' is 0)")
    try:
        program_lists.check_list(address, 1, config, memory_bytes)
    except IsaError as error:
        raise DeviceError(str(error)) from None


def check_memory(latency: int, bytes_per_cycle: float | None) -> None:
    """Raises `ValueError` if no memory has such a latency, in cycles, and bandwidth; None is no limit."""
    if latency < 1:
        raise ValueError(f"the memory latency is at least 1 cycle, not {latency}")
    if bytes_per_cycle is not None and bytes_per_cycle <= 0:
        raise ValueError(f"the memory bandwidth is above 0 bytes a cycle, not {bytes_per_cycle}")


class Closing(ABC):
    """What is closed behind a `with`."""

    @abstractmethod
    def close(self) -> None:
        """Free what it holds. It cannot be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class Device(Protocol):
    """An accelerator with its memory. Classes that derive from it need not define `load`, `kept`, `confirm`,
    `start_list`, `listed` and the last three methods.

    Attributes
    ----------
    config : Config
        What was built; programs for another configuration must not be started.
    memory_bytes : int
        Size of the DRAM, addresses 0 to ``memory_bytes - 1``.
    computes : bool
        Whether results are in memory after a program.
    advice : str
        What helps against too little memory, as the end of a sentence that says so; known behind `kept`.
    origin : int
        Address of the DRAM on the bus of the accelerator, which is what lists of programs hold; all else here counts
        from the DRAM's own first byte.
    """

    config: Config
    memory_bytes: int
    computes: bool = True
    advice: str = ""
    origin: int = 0

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it does not lie inside memory."""

    def load(self, address: int, payload: bytes, name: str = "what was loaded") -> None:
        """Write what programs only read, and what messages call `name`. It may be there from an earlier `load`: then a
        device need not write it."""
        self.write(address, payload)

    def unload(self, address: int, size: int) -> None:
        """What was loaded there counts no more: a program writes to this memory."""
        return None

    def confirm(self) -> None:
        """Raise `DeviceError` if what was loaded is not there any more, so that results since may be wrong. Only
        devices whose memory may lose what it holds look."""
        return None

    def kept(self, payload: bytes) -> int | None:
        """The address at which the device has this already, in a memory beside the DRAM that nothing here writes; None
        if it has not."""
        return None

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes of DRAM. Raises `DeviceError` if they do not lie inside memory."""

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a DRAM byte address."""

    def start(self, program: int) -> None:
        """Start the program at DRAM byte address `program`, a multiple of the bus width."""

    def start_list(self, address: int) -> None:
        """Start the list of programs at DRAM byte address `address`, see `weft.hdl.isa.program_lists`; only where the
        configuration has `descriptors`. Raises `DeviceError` if no list can start there."""
        check_list(address, self.config, self.memory_bytes)
        raise DeviceError("this device runs no lists of programs")

    def listed(self) -> ListProgress:
        """How far the last list has come."""
        return ListProgress(0)

    def wait(self, timeout: int | None = None) -> None:
        """Return when the program or list is done; raises `DeviceError` after `timeout` cycles or on a device error."""

    def counters(self) -> dict[Counter, int]:
        """The counters of the last program or whole list; a device without time leaves out what it does not know."""
        ...

    def mark_writes(self, totals: Sequence[int]) -> None:
        """Ask for the cycles in which the program, from its start on, has written as many bytes to DRAM as each of the
        ascending `totals`."""
        return None

    def marks(self) -> list[int] | None:
        """These cycles, those of totals that were reached; None from a device that does not note them."""
        return None

    def close(self) -> None:
        """Free what the device holds. It cannot be used afterwards."""
        return None
