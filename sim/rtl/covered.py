"""RTL devices whose host does more with registers than a driver would, and that count what is covered."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import START, Fault, Reg
from weft.sim.device import DeviceError
from weft.sim.rtl.device import RtlDevice


class HostedRtl(RtlDevice):
    """A `weft.sim.rtl.device.RtlDevice` with `write_bytes`, whose memory may be anywhere.

    Parameters
    ----------
    config : Config
    memory_bytes : int
    origin : int
        Address of the core's bus at which memory begins, a multiple of 4096. Addresses of this class are those within
        memory, as they are everywhere else: programs, and base registers that the host sets, are moved by `origin`.
    **options
        Those of `RtlDevice`.
    """

    DRIVER = "rtl_host.cpp"

    def __init__(self, config: Config, memory_bytes: int, *, origin: int = 0, **options: Any) -> None:
        super().__init__(config, memory_bytes, **options)
        self.origin = origin
        self._library.weft_origin.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self._library.weft_origin(self._handle, origin)

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` to an address within memory, or beyond it."""
        super().set_base(index, (address + self.origin) % (1 << 32))

    @property
    def fault(self) -> Fault:
        """The first error on the bus of the last program, at an address within memory."""
        told = super().fault
        return (
            told if told.address is None else replace(told, address=(told.address - self.origin) % (1 << 32))
        )

    def _begin(self, register: Reg, address: int, command: int) -> None:
        super()._begin(register, (address + self.origin) % (1 << 32), command)

    def write_bytes(
        self, address: int, value: int, strobe: int, *, protection: int = 0, lead: int = 0
    ) -> None:
        """Write some bytes of a register.

        Parameters
        ----------
        address, value : int
            Of a word of 32 bits.
        strobe : int
            Bit i is set if byte i is written.
        protection : int
            AWPROT, and ARPROT from now on.
        lead : int
            Cycles by which data are ahead of the address, negative if they are behind it.

        Raises
        ------
        DeviceError
            If the core does not answer.
        """
        write = self._library.weft_write_bytes
        write.argtypes = [ctypes.c_void_p, *[ctypes.c_uint32] * 4, ctypes.c_int]
        if not write(self._handle, address, value, strobe, protection, lead):
            raise DeviceError(f"the core does not answer a write of register {address:#x}")

    def peek(self, address: int) -> int:
        """The register at byte `address`, a word of 32 bits. Raises `DeviceError` if the core does not answer."""
        return self._read_register(address)

    def poke(self, address: int, value: int) -> None:
        """Write the register at byte `address`. Raises `DeviceError` if the core does not answer."""
        self._write_register(address, value)

    def begin(self, program: int) -> None:
        """Start the program at byte address `program`, wherever that is. Raises as `poke` does."""
        self.poke(Reg.PROGRAM, program)
        self.poke(Reg.CONTROL, START)
        self._started = True

    def spend(self) -> None:
        """Spend what memory of a limited bandwidth has saved up."""
        self._library.weft_spend.argtypes = [ctypes.c_void_p]
        self._library.weft_spend(self._handle)

    def reset(self) -> None:
        """Reset the core, in whatever it is doing. Memory stays."""
        self._library.weft_reset(self._handle)
        self._started = self._failed = False


class CoveredRtl(HostedRtl):
    """A `HostedRtl` that counts lines, branches and toggles, several times as slow as others."""

    COVERAGE = True

    def write_coverage(self, path: Path) -> None:
        """Write what was covered since the device was made, for `weft.sim.rtl.coverage.read`."""
        self._library.weft_coverage.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._library.weft_coverage(self._handle, str(path).encode())
