"""Model of a board's answers to requests, for benches of the link and for the host's end of the line."""

from __future__ import annotations

from weft.boards.errors import FrameError
from weft.boards.link.frames import (
    IDENTITY_BYTES,
    Answer,
    Feature,
    Identity,
    Operation,
    Parser,
    Request,
    fill_pattern,
    frame,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import (
    MAGIC,
    SIZE,
    START,
    START_LIST,
    VERSION,
    Counter,
    Reg,
    Status,
    counter_register,
)


def _entry(number: int) -> int:
    for _ in range(8):
        number = number >> 1 ^ (number & 1) * 0xC96C5795D7870F42
    return number


_TABLE = [_entry(number) for number in range(256)]
WRITABLE = range(Reg.PROGRAM, Reg.COUNTER)


def crc(payload: bytes | bytearray) -> int:
    """Return the CRC-64/XZ of a payload."""
    value = (1 << 64) - 1
    for byte in payload:
        value = _TABLE[(value ^ byte) & 255] ^ value >> 8
    return value ^ (1 << 64) - 1


class BoardModel:
    """Memory, registers, and a core that is busy for some time after each start.

    Attributes
    ----------
    memory, registers : bytearray
    duration : int
        Reads of the status register that a program lasts.
    result : Status
        Status bits at the end of a program.
    moving : set of Counter
        Counters that a running program raises by `step` for each read of the status register.
    starts, runs, resets, writes, checks : int
        Accepted starts, begun programs, resets, writes to memory, and checks of memory.
    """

    def __init__(self, config: Config, memory_bytes: int = 1 << 16, *, clock: int = 25_000_000) -> None:
        self.memory = bytearray(memory_bytes)
        self.registers = bytearray(SIZE)
        self.identity = Identity("model", config.digest, memory_bytes, clock, 2048, features=Feature.FILLS)
        self.duration, self.result = 3, Status.DONE
        self.moving, self.step = {Counter.CYCLES, Counter.READ_BEATS}, 1000
        self.starts = self.runs = self.resets = self.writes = self.checks = 0
        self._left = 0
        self._parser = Parser()
        for register, value in {Reg.MAGIC: MAGIC, Reg.VERSION: VERSION, Reg.CONFIG: config.digest}.items():
            self.set(register, value)

    def set(self, register: int, value: int) -> None:
        self.registers[register : register + 4] = value.to_bytes(4, "little")

    def get(self, register: int) -> int:
        return int.from_bytes(self.registers[register : register + 4], "little")

    def feed(self, data: bytes) -> bytes:
        """Return the answers to the requests that `data` completes."""
        out = b""
        for body in self._parser.feed(data):
            try:
                request = Request.decode(body)
            except FrameError:
                continue
            out += frame(self.answer(request).encode())
        return out

    def answer(self, request: Request) -> Answer:
        operation, address, size = request.operation, request.address, request.size
        payload = b""
        if operation is Operation.WRITE_MEMORY:
            self.memory[address : address + size] = request.payload
            self.writes += 1
        elif operation is Operation.FILL_MEMORY:
            self.memory[address : address + size] = fill_pattern(address, size, inverse=request.inverse)
        elif operation is Operation.READ_MEMORY:
            payload = bytes(self.memory[address : address + size])
        elif operation is Operation.CHECK_MEMORY and size:
            self.checks += 1
            payload = crc(self.memory[address : address + size]).to_bytes(8, "little")
        elif operation is Operation.IDENTIFY:
            payload = (self.identity.encode() + bytes(256 - IDENTITY_BYTES))[address : address + size]
        elif operation is Operation.READ_REGISTERS:
            self._run(range(address, address + size))
            payload = bytes(self.registers[address : address + size])
        elif operation is Operation.WRITE_REGISTERS:
            self._write_registers(address, request.payload)
        elif operation is Operation.START and address >> 24 == self.starts % 256:
            self.starts += 1
            self._write_registers(address & 0xFFFFFF, request.payload)
        elif operation is Operation.RESET:
            self.resets += 1
            self._left = 0
            self.registers[Reg.CONTROL :] = bytes(SIZE - Reg.CONTROL)
        return Answer(request.sequence, operation, self.starts % 256, payload)

    def _write_registers(self, address: int, payload: bytes) -> None:
        for at, byte in enumerate(payload, address):
            if at in WRITABLE:
                self.registers[at] = byte
            elif at == Reg.CONTROL and byte & (START | START_LIST) and not self.get(Reg.STATUS) & Status.BUSY:
                self.runs += 1
                self._left = self.duration
                self.set(Reg.STATUS, Status.BUSY)
                self.registers[Reg.COUNTER :] = bytes(SIZE - Reg.COUNTER)

    def _run(self, seen: range) -> None:
        """Advance the program by one step if its status is read."""
        if Reg.STATUS not in seen or not self.get(Reg.STATUS) & Status.BUSY:
            return
        for counter in self.moving:
            register = counter_register(counter)
            self.set(register, self.get(register) + self.step)
        self._left -= 1
        if self._left <= 0:
            self.set(Reg.STATUS, self.result)
