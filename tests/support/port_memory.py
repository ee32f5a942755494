"""Shared by benches of bus managers: the memory side of a memory port, which checks commands."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from cocotb.triggers import ReadOnly, RisingEdge

BYTES = 1 << 16


class PortMemory:
    """A memory at the port ``memory`` of `dut` that serves one command after the other, a word per cycle, and never
    waits for the manager.

    Parameters
    ----------
    stall : float
        Share of cycles in which it pauses.
    longest : int
        Largest number of words of a command.
    """

    def __init__(self, dut: Any, width: int, stall: float, *, longest: int) -> None:
        self.dut, self.width, self.stall, self.longest = dut, width, stall, longest
        self.contents = bytearray(random.randbytes(BYTES))
        self.commands: list[tuple[bool, int, int]] = []
        self.words = self.written = self.cycle = 0

    async def run(self) -> None:
        dut, width = self.dut, self.width
        queue: deque[tuple[bool, int, int]] = deque()
        current: tuple[bool, int, int] | None = None
        due: deque[int] = deque()  # cycles in which writes are reported
        waited = 0
        while True:
            accepts = len(queue) < 3 and random.random() >= self.stall
            if current is None and queue:
                current = queue.popleft()
                waited = 0
            moves = random.random() >= self.stall
            dut.memory__command__ready.value = accepts
            reading = current is not None and moves and not current[0]
            dut.memory__read__valid.value = reading
            if reading and current is not None:
                word = self.contents[current[1] : current[1] + width]
                dut.memory__read__payload.value = int.from_bytes(word, "little")
            writing = current is not None and moves and current[0]
            dut.memory__write__ready.value = writing
            reported = bool(due) and due[0] <= self.cycle
            dut.memory__written.value = reported
            if reported:
                due.popleft()
                self.written += 1
            await ReadOnly()
            if accepts and dut.memory__command__valid.value:
                value = int(dut.memory__command__payload.value)
                command = bool(value & 1), value >> 1 & 0xFFFFFFFF, value >> 33
                self._check(command)
                queue.append(command)
                self.commands.append(command)
            done = False
            if reading:
                assert dut.memory__read__ready.value, "no room for a word that was asked for"
                done = True
            if writing and current is not None:
                waited += 1
                done = bool(dut.memory__write__valid.value)
                if done:
                    self._store(current[1], int(dut.memory__write__payload.value))
                else:
                    assert waited <= 3, "the words of a write were not there"
            if done:
                assert current is not None
                self.words += 1
                write, address, left = current
                current = (write, address + width, left - 1) if left > 1 else None
                if write and current is None:
                    due.append(self.cycle + random.randint(1, 8))
            await RisingEdge(dut.clk)
            self.cycle += 1

    def _check(self, command: tuple[bool, int, int]) -> None:
        _, address, beats = command
        assert 1 <= beats <= self.longest
        assert address % self.width == 0
        assert address // 4096 == (address + beats * self.width - 1) // 4096

    def _store(self, address: int, payload: int) -> None:
        for byte in range(self.width):
            if payload >> (8 * self.width + byte) & 1:
                self.contents[address + byte] = payload >> 8 * byte & 0xFF
