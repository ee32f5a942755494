"""Fetch against the list of instructions that the memory holds."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.unit_bench import start

from weft.hdl.control.fetch import Fetch, queue_kinds
from weft.hdl.isa import INSTRUCTIONS, End, Opcode, Queue
from weft.hdl.isa.config import PRESETS
from weft.sim.rtl.bench import bench_parameters, run_bench

PLAIN = (Opcode.LOAD, Opcode.MM, Opcode.VEC, Opcode.STORE)
SOFTMAX = (Opcode.SOFTMAX, Opcode.NORMALISE, Opcode.TABLE)
LOOKUP = (Opcode.LOOKUP,)
MEMORY = 1 << 16


class Bench:
    """Clocked by `cycle`: a memory with random latency and four sinks with random stalls."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.bus = bench_parameters()["bus_bytes"]
        self.memory = bytearray(MEMORY)
        self.beats: list[int] = []  # addresses of outstanding beats
        self.offered = False
        self.errors = 0
        self.request: tuple[int, int] | None = None
        self.limit = MEMORY
        self.received: list[tuple[Queue, bytes]] = []
        self.parts: tuple[Queue, bytes] | None = None  # of an instruction that is not yet whole
        self.ready_rate = 0.8

    async def reset(self) -> None:
        ready = [f"{queue.name.lower()}__ready" for queue in Queue]
        await start(
            self.dut, bus__beat__valid=0, bus__request__ready=0, **dict.fromkeys(["start", *ready], 0)
        )

    async def cycle(self) -> None:
        dut = self.dut
        if not self.offered and self.beats and random.random() < 0.7:
            address = self.beats[0]
            dut.bus__beat__payload.value = int.from_bytes(self.memory[address : address + self.bus], "little")
            self.offered = True
        dut.bus__beat__valid.value = self.offered
        dut.bus__request__ready.value = random.random() < 0.5
        for queue in Queue:
            getattr(dut, f"{queue.name.lower()}__ready").value = random.random() < self.ready_rate
        await ReadOnly()
        self._sample_bus()
        for queue in Queue:
            name = queue.name.lower()
            if int(getattr(dut, f"{name}__valid").value) and int(getattr(dut, f"{name}__ready").value):
                self._receive(queue, int(getattr(dut, f"{name}__payload").value))
        self.errors += int(dut.error.value)
        await FallingEdge(dut.clk)

    def _receive(self, queue: Queue, payload: int) -> None:
        width = min(self.bus, 64)
        index, data = payload >> 8 * width, (payload & (1 << 8 * width) - 1).to_bytes(width, "little")
        before = self.parts[1] if self.parts else b""
        assert self.parts is None or self.parts[0] == queue, "an instruction changed queues"
        assert index * width == len(before)
        self.parts = (queue, before + data)
        if len(self.parts[1]) == 64:
            self.received.append(self.parts)
            self.parts = None

    def _sample_bus(self) -> None:
        dut = self.dut
        if self.offered:
            assert int(dut.bus__beat__ready.value), "fetch must take every beat at once"
            self.beats.pop(0)
            self.offered = False
        if not int(dut.bus__request__valid.value):
            assert self.request is None, "a request was withdrawn"
            return
        address = int(dut.bus__request__payload.value) & 0xFFFFFFFF
        beats = int(dut.bus__request__payload.value) >> 32
        assert self.request in (None, (address, beats)), "a request changed"
        self.request = (address, beats)
        if int(dut.bus__request__ready.value):
            self.request = None
            last = address + beats * self.bus - 1
            assert 1 <= beats <= 256
            assert address % self.bus == 0
            assert address >> 12 == last >> 12, "a burst crosses 4 KiB"
            assert last < self.limit, "read past the page of END"
            self.beats += range(address, last, self.bus)

    async def run(self, address: int, words: list[bytes]) -> None:
        """Run the program `words` at `address`; returns when fetch is idle, with everything in `received`."""
        end = address + 64 * len(words)
        self.memory[address:end] = b"".join(words)
        self.limit = -(-end // 4096) * 4096
        for at in range(end, min(self.limit, len(self.memory))):
            self.memory[at] = random.choice([1, 2, 3, 4])  # looks like instructions
        self.received.clear()
        self.errors = 0
        assert int(self.dut.idle.value)
        self.dut.program.value = address
        self.dut.start.value = 1
        await self.cycle()
        self.dut.start.value = 0
        for _ in range(20000):
            await self.cycle()
            if int(self.dut.idle.value):
                break
        else:
            raise AssertionError("fetch does not end")
        assert not self.beats
        assert self.request is None


def random_words(count: int) -> list[tuple[Queue, bytes]]:
    words = []
    for _ in range(count):
        kind = INSTRUCTIONS[Opcode(random.choice(bench_parameters()["opcodes"]))]
        word = kind(wait=random.randrange(1 << 16), signal=random.randrange(1 << 16)).encode()
        assert kind.QUEUE is not None
        words.append((kind.QUEUE, word))
    return words


@cocotb.test()
async def bench_programs(dut: Any) -> None:
    """Programs one after the other, of many lengths and at many addresses, slow and fast queues."""
    bench = Bench(dut)
    await bench.reset()
    lengths = [0, 1, 2, 3, 7, 8, 9, 70, *(random.randrange(40) for _ in range(12))]
    for length in lengths:
        bench.ready_rate = random.choice([0.1, 0.9, 1.0])
        address = (
            random.choice([0, 4096 - bench.bus, 4096 - 64, random.randrange(8192)]) // bench.bus * bench.bus
        )
        words = random_words(length)
        await bench.run(address, [word for _, word in words] + [End().encode()])
        assert bench.received == words
        assert bench.errors == 0


@cocotb.test()
async def bench_last_page(dut: Any) -> None:
    """A program that ends with memory."""
    bench = Bench(dut)
    await bench.reset()
    words = random_words(9)
    await bench.run(MEMORY - 640, [word for _, word in words] + [End().encode()])
    assert bench.received == words


@cocotb.test()
async def bench_unknown_opcode(dut: Any) -> None:
    """Stops at an unknown opcode with one error pulse, and runs the next program."""
    bench = Bench(dut)
    await bench.reset()
    for opcode in {*range(1, 10), 255} - set(bench_parameters()["opcodes"]):
        words, tail = random_words(6), random_words(3)
        bad = bytes([opcode]) + bytes(63)
        await bench.run(512, [word for _, word in words] + [bad] + [word for _, word in tail])
        assert bench.received == words
        assert bench.errors == 1
        await bench.run(512, [word for _, word in tail] + [End().encode()])
        assert bench.received == tail
        assert bench.errors == 0


@pytest.mark.parametrize(("bus_bytes", "bits", "tables"), [(4, 8, 4), (16, 0, 1), (64, 7, 0), (128, 0, 0)])
def test_fetch(bus_bytes: int, bits: int, tables: int) -> None:
    config = PRESETS["tiny"].replace(bus_bytes=bus_bytes, probability_bits=bits, lookup_tables=tables)
    opcodes = [*PLAIN, *(SOFTMAX if bits else ()), *(LOOKUP if tables else ())]
    run_bench(Fetch(config), parameters={"bus_bytes": bus_bytes, "opcodes": opcodes})


def test_kinds() -> None:
    """Every instruction but END has a queue; those of softmax, of look-up tables and of the kernel engine only with
    that."""
    every = set(INSTRUCTIONS) - {Opcode.END}
    kernels = {Opcode.MICROCODE, Opcode.KERNEL}
    for bits, tables, kernel, known in (
        (8, 4, 64, every), (0, 0, 0, set(PLAIN)), (8, 0, 64, every - set(LOOKUP)), (0, 4, 64, every - set(SOFTMAX)),
        (8, 4, 0, every - kernels),
    ):  # fmt: skip
        changes = {"probability_bits": bits, "lookup_tables": tables, "kernel": kernel}
        kinds = queue_kinds(PRESETS["tiny"].replace(**changes))
        assert list(kinds) == list(Queue)
        assert {kind.OPCODE for group in kinds.values() for kind in group} == known
