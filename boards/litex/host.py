"""Device interface of an accelerator in a LiteX system, through ``litex_server``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol, Self

from weft.boards.link.polled import PolledDevice
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import MAGIC, START, START_LIST, VERSION, Reg, Status, base_register
from weft.sim.device import DeviceError, check_base, check_list, check_program, check_range

WORDS = 128
"""Largest number of words per access; UARTBone and Etherbone count up to 255."""
ATTEMPTS = 3
"""Attempts to write data until they read back correctly."""
RESET_POLLS = 1000
"""Reads of the reset status after which a reset counts as failed."""


class Bus(Protocol):
    """32-bit accesses to a system's bus, as ``litex.RemoteClient`` provides them. Addresses are in bytes."""

    def read(self, addr: int, length: int) -> list[int]:
        """Return `length` words from `addr`."""
        ...

    def write(self, addr: int, datas: list[int]) -> None:
        """Write words from `addr`."""

    def close(self) -> None:
        """Close the connection."""


class LitexDevice(PolledDevice):
    """Accelerator in a LiteX system, as a `weft.sim.device.Device`. Use `open`, or pass the addresses yourself.

    Neither the serial line nor UDP confirms writes. All data are therefore read back, and written again if they differ.

    Parameters
    ----------
    bus : Bus
    config : Config
        Configuration that programs are for.
    control : int
        Address of the accelerator's registers.
    reset, held : int
        Addresses of the CSRs of these names.
    memory, memory_bytes : int
        Address and size of the memory for programs, multiples of 4.

    Raises
    ------
    DeviceError
        If nothing answers, or if the accelerator has another configuration or version.
    """

    def __init__(
        self, bus: Bus, config: Config, *, control: int, reset: int, held: int, memory: int, memory_bytes: int
    ) -> None:
        self.config, self.memory_bytes = config, memory_bytes
        self._bus, self._control, self._reset_at, self._held_at = bus, control, reset, held
        self.origin = memory
        self._bases = [0] * BASES
        self._started = False
        self._reset()
        for register, value in {Reg.MAGIC: MAGIC, Reg.VERSION: VERSION, Reg.CONFIG: config.digest}.items():
            actual = self._read_register(register)
            if actual != value:
                raise DeviceError(
                    f"register {register.name} of the core at {control:#x} is {actual:#x}, not {value:#x}: build the "
                    "system for the program's configuration, or compile the program for the system's"
                )

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        csr_csv: str = "csr.csv",
        name: str = "weft",
        memory: str = "main_ram",
        host: str = "localhost",
        port: int = 1234,
    ) -> Self:
        """Return the accelerator of the system that ``litex_server`` is connected to.

        Parameters
        ----------
        config : Config
            Configuration that programs are for.
        csr_csv : str
            File that LiteX writes with ``--csr-csv``.
        name : str
            Name passed to `weft.boards.litex.litex.add_weft`.
        memory : str
            Memory region for programs, which use all of it.
        host, port
            Address of ``litex_server``.

        Raises
        ------
        DeviceError
            As the class does, and if the file, a region or the server does not exist.
        """
        client = _client(host, port, csr_csv)
        places = _addresses(client, csr_csv, name, memory)
        try:
            client.open()
        except OSError as error:
            raise DeviceError(
                f"no litex_server answers at {host}:{port} ({error}): start one for the system's serial or network port"
            ) from None
        try:
            return cls(client, config, **places)
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        """Close the connection. A running program continues."""
        self._bus.close()

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to memory. Raises `DeviceError` if it is not inside memory, or does not read back."""
        check_range(address, len(payload), self.memory_bytes)
        first, end = address & ~3, -(-(address + len(payload)) // 4) * 4
        # The first and last word may be shared with neighbouring data.
        before = self.read(first, address - first)
        after = self.read(address + len(payload), end - address - len(payload))
        contents = before + bytes(payload) + after
        for at in range(0, len(contents), 4 * WORDS):
            part = contents[at : at + 4 * WORDS]
            words = [int.from_bytes(part[byte : byte + 4], "little") for byte in range(0, len(part), 4)]
            self._write_verified(self.origin + first + at, words)

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes of memory. Raises `DeviceError` if they are not inside memory."""
        check_range(address, size, self.memory_bytes)
        first, end = address & ~3, -(-(address + size) // 4) * 4
        contents = bytearray()
        for at in range(first, end, 4 * WORDS):
            for word in self._read_words(self.origin + at, min(WORDS, (end - at) // 4)):
                contents += word.to_bytes(4, "little")
        return bytes(contents[address - first :][:size])

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a byte address in memory. The next start writes it."""
        check_base(index, address)
        self._bases[index] = address

    def start(self, program: int) -> None:
        """Start the program at byte address `program` in memory, a multiple of the bus width.

        The core is reset first, so that its status shows whether the start has arrived.
        """
        check_program(program, self.config)
        check_range(program, 0, self.memory_bytes)
        self._begin(Reg.PROGRAM, program, START)

    def start_list(self, address: int) -> None:
        """Start the list of programs at byte address `address` in memory, as `start` does.

        Addresses in the list are on the system's bus, where memory begins at `origin`.
        """
        check_list(address, self.config, self.memory_bytes)
        self._begin(Reg.LIST, address, START_LIST)

    def _begin(self, register: Reg, address: int, command: int) -> None:
        """Write `address` to `register` and start the core with `command`."""
        if self._started and self._status() & Status.BUSY:
            raise DeviceError("a program is still running")
        self._reset()
        self._write_verified(self._control + register, [self._address(address)])
        self._write_verified(self._control + base_register(0), [self._address(base) for base in self._bases])
        # Repeating a start is safe, because the status shows whether an earlier one has arrived.
        for _ in range(ATTEMPTS):
            self._write_words(self._control + Reg.CONTROL, [command])
            if self._status() & (Status.BUSY | Status.DONE):
                self._started, self._in_list = True, command == START_LIST
                return
        raise DeviceError(f"the core at {self._control:#x} does not start")

    @property
    def _at(self) -> str:
        return f"{self._control:#x}"

    def _abandon(self) -> None:
        self._started = False

    def _reset(self) -> None:
        """Reset the core, once memory has completed its accesses."""
        self._started = False
        for level in (1, 0):
            self._write_words(self._reset_at, [level])
            # Write again from time to time, because a write may be lost.
            for look in range(RESET_POLLS):
                if self._read_words(self._held_at, 1) == [level]:
                    break
                if look % 100 == 99:
                    self._write_words(self._reset_at, [level])
            else:
                raise DeviceError(
                    f"the core at {self._control:#x} cannot be reset: memory does not complete its accesses"
                    if level
                    else f"the core at {self._control:#x} does not come out of reset"
                )

    def _address(self, address: int) -> int:
        """Return the address on the system's bus of a byte address in memory."""
        return (self.origin + address) % (1 << 32)

    def _read_registers(self, address: int, size: int) -> bytes:
        words = self._read_words(self._control + address, size // 4)
        return b"".join(word.to_bytes(4, "little") for word in words)

    def _write_verified(self, address: int, words: Sequence[int]) -> None:
        """Write words until they read back correctly."""
        for _ in range(ATTEMPTS):
            self._write_words(address, list(words))
            if self._read_words(address, len(words)) == list(words):
                return
        raise DeviceError(
            f"data written to the system's address {address:#x} do not read back: check its memory"
        )

    def _read_words(self, address: int, count: int) -> list[int]:
        try:
            return [int(word) for word in self._bus.read(address, count)]
        except OSError as error:
            raise DeviceError(f"the connection to the system is lost: {error}") from None

    def _write_words(self, address: int, words: list[int]) -> None:
        try:
            self._bus.write(address, words)
        except OSError as error:
            raise DeviceError(f"the connection to the system is lost: {error}") from None


def _client(host: str, port: int, csr_csv: str) -> Any:
    """Return an unopened connection to a server for the system that the file describes. Raises `DeviceError`."""
    try:
        from litex import RemoteClient
    except ImportError:
        raise DeviceError("LiteX is not installed: pip install 'weft[litex]'") from None

    class Client(RemoteClient):
        def clear_socket_buffer(self) -> None:
            # LiteX calls this after a timeout, before it returns zeros as the answer.
            raise DeviceError(f"the system behind litex_server at {host}:{port} does not answer a read")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # LiteX does not close the file
            return Client(host, port, csr_csv=csr_csv)
    except (OSError, ValueError, KeyError) as error:
        raise DeviceError(f"cannot read {csr_csv}: {error}; LiteX writes it with --csr-csv") from None


def _addresses(client: Any, csr_csv: str, name: str, memory: str) -> dict[str, int]:
    """Return the addresses and the size for `LitexDevice`, from the file `csr_csv`. Raises `DeviceError`."""
    regions, registers = client.mems.d, client.regs.d
    missing = [region for region in (name, memory) if region not in regions]
    missing += [register for register in (f"{name}_reset", f"{name}_held") if register not in registers]
    if missing:
        raise DeviceError(
            f"{csr_csv} has no {missing[0]!r}: give the names that the system was built with; its regions are "
            f"{', '.join(regions)}"
        )
    return {
        "control": regions[name].base,
        "reset": registers[f"{name}_reset"].addr,
        "held": registers[f"{name}_held"].addr,
        "memory": regions[memory].base,
        "memory_bytes": regions[memory].size,
    }
