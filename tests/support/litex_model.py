"""A model of a LiteX system as its host sees it: golden results, and a link that loses writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import (
    MAGIC,
    SIZE,
    START_LIST,
    VERSION,
    Counter,
    Reg,
    Status,
    base_register,
    counter_register,
)
from weft.hdl.isa.program_lists import DESCRIPTOR_BYTES, RECORD_READ_BYTES, Descriptor, Record, pitch
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice

CONTROL, RESET, HELD, MEMORY = 0x9000_0000, 0x1000, 0x1004, 0x4000_0000
SIZE_BYTES = 1 << 17


class LitexModel:
    """Bus of `weft.boards.litex.host.LitexDevice`.

    Attributes
    ----------
    loses : callable
        Returns whether the write with this number gets lost.
    ends : bool
        Whether programs end.
    held : int or None
        Constant value of the CSR ``held``; None for the true value.
    starts : int
        Programs started.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.golden = GoldenDevice(config, SIZE_BYTES)
        self.loses: Callable[[int], bool] = lambda number: False
        self.ends = True
        self.held: int | None = None
        self.starts = self.writes = self.cycles = 0
        self.moving = False
        self.stuck: set[int] = set()
        self.fixed: dict[int, int] = {}
        self._reset = 1
        self._clear()

    def _clear(self) -> None:
        self.registers: dict[int, int] = {
            Reg.MAGIC: MAGIC,
            Reg.VERSION: VERSION,
            Reg.CONFIG: self.config.digest,
        }
        self.registers |= {Reg.PROGRAM: 0, Reg.STATUS: 0}
        self.registers |= {base_register(index): 0 for index in range(BASES)}

    def close(self) -> None:
        """Do nothing."""

    def write(self, addr: int, datas: list[int]) -> None:
        assert 0 < len(datas) < 256
        self.writes += 1
        if self.loses(self.writes):
            return
        for index, word in enumerate(datas):
            self._write(addr + 4 * index, word)

    def _write(self, address: int, word: int) -> None:
        if address in self.stuck:
            return
        if MEMORY <= address < MEMORY + SIZE_BYTES:
            self.golden.write(address - MEMORY, word.to_bytes(4, "little"))
        elif address == RESET:
            self._reset = word
            if word:
                self._clear()
        elif address == CONTROL + Reg.CONTROL:
            self._start(listed=word == START_LIST)
        else:
            assert CONTROL <= address < CONTROL + SIZE
            self.registers[address - CONTROL] = word

    def _start(self, *, listed: bool) -> None:
        self.starts += 1
        self.cycles = 0
        self.registers[Reg.STATUS] = int(Status.BUSY)
        if not self.ends:
            return
        try:
            if listed:
                self._run_list(self.registers[Reg.LIST])
            else:
                bases = [self.registers[base_register(index)] for index in range(BASES)]
                self._run(self.registers[Reg.PROGRAM], bases)
        except DeviceError:
            self.registers[Reg.STATUS] = int(Status.DONE | Status.OPCODE_ERROR)
        else:
            self.registers[Reg.STATUS] = int(Status.DONE)

    def _run(self, program: int, bases: Sequence[int]) -> None:
        """Run a program with its base registers, given as addresses of the system."""
        for index, base in enumerate(bases):
            self.golden.set_base(index, (base - MEMORY) % (1 << 32))
        self.golden.start(program - MEMORY)
        self.golden.wait()

    def _run_list(self, address: int) -> None:
        done = 0
        while True:
            at = address - MEMORY + done * pitch(self.config)
            descriptor = Descriptor.decode(self.golden.read(at, DESCRIPTOR_BYTES))
            self._run(descriptor.program, descriptor.bases)
            self.golden.write(at + RECORD_READ_BYTES, Record(done=True).encode())
            done += 1
            self.registers[Reg.LISTED] = done
            if descriptor.last:
                return

    def read(self, addr: int, length: int) -> list[int]:
        assert 0 < length < 256
        return [self._read(addr + 4 * index) for index in range(length)]

    def _read(self, address: int) -> int:
        if MEMORY <= address < MEMORY + SIZE_BYTES:
            return int.from_bytes(self.golden.read(address - MEMORY, 4), "little")
        if address == HELD:
            return self._reset if self.held is None else self.held
        register = address - CONTROL
        if register in self.fixed:
            return self.fixed[register]
        if register == counter_register(Counter.CYCLES):
            self.cycles += 100_000 * self.moving
            return self.cycles
        return self.registers.get(register, 0)
