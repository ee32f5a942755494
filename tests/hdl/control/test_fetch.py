"""Fetch against the list of instructions that the memory holds, and with loops against how the interpreter walks it."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge, ReadOnly
from support.loop_programs import Node, Repeat, flat
from support.unit_bench import start

from weft.hdl.control.fetch import Fetch, queue_kinds
from weft.hdl.isa import (
    BASES,
    INSTRUCTIONS,
    End,
    Instruction,
    Mode,
    Opcode,
    Queue,
    ReadRegisters,
    SetRegisters,
    register_fields,
)
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.loops import slots
from weft.sim.golden.interpreter import Walk, executed_instructions
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
        self.index_bits = (max(64 // self.bus, 2) - 1).bit_length()
        self.memory = bytearray(MEMORY)
        self.beats: list[int] = []  # addresses of outstanding beats
        self.offered = False
        self.errors = 0
        self.request: tuple[int, int] | None = None
        self.limit = MEMORY
        self.words: set[int] = set()  # addresses that READ reads
        self.received: list[tuple[Queue, bytes]] = []
        self.values: list[tuple[int, int]] = []  # with loops, beside each of them
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
        values, payload = (
            payload >> 8 * width + self.index_bits,
            payload & (1 << 8 * width + self.index_bits) - 1,
        )
        index, data = payload >> 8 * width, (payload & (1 << 8 * width) - 1).to_bytes(width, "little")
        before = self.parts[1] if self.parts else b""
        assert self.parts is None or self.parts[0] == queue, "an instruction changed queues"
        assert index * width == len(before)
        self.parts = (queue, before + data)
        if len(self.parts[1]) == 64:
            self.received.append(self.parts)
            self.values.append((values & 0xFFFFFFFF, values >> 32))
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
            if any(address <= word <= last for word in self.words):
                assert last - address + 1 == max(32, self.bus), "READ reads too much"
            else:
                assert last < self.limit, "read past the page of END"
            self.beats += range(address, last, self.bus)

    async def run(self, address: int, words: list[bytes], cycles: int = 20_000) -> None:
        """Run the program `words` at `address`; returns when fetch is idle, with everything in `received`."""
        end = address + 64 * len(words)
        self.memory[address:end] = b"".join(words)
        self.limit = -(-end // 4096) * 4096
        for at in range(end, min(self.limit, len(self.memory))):
            self.memory[at] = random.choice([1, 2, 3, 4])  # looks like instructions
        self.received.clear()
        self.values.clear()
        self.errors = 0
        assert int(self.dut.idle.value)
        self.dut.program.value = address
        self.dut.start.value = 1
        await self.cycle()
        self.dut.start.value = 0
        for _ in range(cycles):
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
    control = {opcode for opcode, kind in INSTRUCTIONS.items() if kind.QUEUE is None}
    for opcode in {*range(1, 16), 255} - set(bench_parameters()["opcodes"]) - control:
        words, tail = random_words(6), random_words(3)
        bad = bytes([opcode]) + bytes(63)
        await bench.run(512, [word for _, word in words] + [bad] + [word for _, word in tail])
        assert bench.received == words
        assert bench.errors == 1
        await bench.run(512, [word for _, word in tail] + [End().encode()])
        assert bench.received == tail
        assert bench.errors == 0


def draw(depth: int, words: int) -> list[Node]:
    """Random instructions, some of them in loops that turn a few times or never, and changes of registers."""
    nodes: list[Node] = []
    for _ in range(random.randrange(1, 5)):
        what = random.random()
        if what < 0.5:
            kind = INSTRUCTIONS[Opcode(random.choice(bench_parameters()["opcodes"]))]
            fields = {name: random.randrange(16) for name in register_fields(kind.OPCODE)}
            nodes.append(kind(wait=random.randrange(1 << 16), **fields))
        elif what < 0.7:
            numbers = [register for register in range(16) if register != 1 and not 8 <= register < 12]
            changes = [
                (random.choice(numbers), random.choice(list(Mode)), random.randrange(-(1 << 31), 1 << 31))
                for _ in range(random.randrange(9))
            ]
            nodes.append(SetRegisters(**slots(*changes)))
        elif what < 0.8:
            count = random.randrange(1, 5)
            nodes.append(
                ReadRegisters(base=1, offset=words, first=random.randrange(12, 17 - count), count=count)
            )
        elif depth:
            counter = 7 + depth
            body = draw(depth - 1, words) * random.choice([1, 1, 1, 9])
            nodes.append(SetRegisters(**slots((counter, Mode.SET, random.choice([-7, 0, 1, 2, 3])))))
            nodes.append(Repeat(counter, body, [(counter, Mode.ADD, -1), (3, Mode.ADD, 64)]))
    return nodes


@cocotb.test()
async def bench_loops(dut: Any) -> None:
    """Programs with loops in loops, that read registers, one after the other."""
    bench = Bench(dut)
    await bench.reset()
    if not bench_parameters()["loops"]:
        return
    config = PRESETS["tiny"].replace(loops=1)
    total = rounds = 0
    while rounds < 12 or total < 100:
        rounds += 1
        bench.ready_rate = random.choice([0.3, 0.9, 1.0])
        address = (
            random.choice([4096 - bench.bus, 4096 - 64, random.randrange(8192)]) // bench.bus * bench.bus
        )
        bases = [random.getrandbits(32) for _ in range(BASES)]
        words = random.randrange(MEMORY // 2, MEMORY) // 32 * 32
        bench.memory[words : words + 32] = random.randbytes(32)
        bases[1], bench.words = random.getrandbits(32), {words}
        program: list[Instruction] = []
        while not 5 < len(program) < 200:
            program = [*flat(draw(3, (words - bases[1]) % (1 << 32))), End()]
        dut.bases.value = sum(base << 32 * index for index, base in enumerate(bases))
        control = {index: item for index, item in enumerate(program[:-1]) if item.QUEUE is None}
        walk = Walk(
            config, control, len(program) - 1, bases, lambda at, size: bytes(bench.memory[at : at + size])
        )
        order = list(executed_instructions(walk.stretches))
        if len(order) > 400:
            continue
        await bench.run(address, [item.encode() for item in program], 100_000)
        assert bench.received == [(program[index].QUEUE, program[index].encode()) for index, _ in order]
        assert bench.errors == 0
        for (index, held), values in zip(order, bench.values, strict=True):
            item = program[index]
            named = [held[getattr(item, name)] for name in register_fields(item.OPCODE)]
            found = values[1:] if item.QUEUE is Queue.VEC else values
            if item.QUEUE is Queue.LOAD and not bench_parameters()["softmax"]:
                named = named[:1]
            assert list(found[: len(named)]) == named
        total += len(order)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("bus_bytes", "bits", "tables"), [(4, 8, 4), (16, 0, 1), (64, 7, 0), (128, 0, 0)])
def test_fetch(bus_bytes: int, bits: int, tables: int) -> None:
    config = PRESETS["tiny"].replace(bus_bytes=bus_bytes, probability_bits=bits, lookup_tables=tables)
    opcodes = [*PLAIN, *(SOFTMAX if bits else ()), *(LOOKUP if tables else ())]
    run_bench(Fetch(config), parameters={"bus_bytes": bus_bytes, "opcodes": opcodes, "loops": 0})


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("bus_bytes", "bits"), [(4, 8), (8, 0), (16, 8), (64, 8), (128, 7)])
def test_fetch_with_loops(bus_bytes: int, bits: int) -> None:
    config = PRESETS["tiny"].replace(bus_bytes=bus_bytes, probability_bits=bits, lookup_tables=0, loops=1)
    opcodes = [*PLAIN, *(SOFTMAX if bits else ())]
    run_bench(
        Fetch(config), parameters={"bus_bytes": bus_bytes, "opcodes": opcodes, "loops": 1, "softmax": bits}
    )


def test_kinds() -> None:
    """Every instruction but END and those of loops has a queue; those of softmax, of look-up tables and of the kernel
    engine only with that."""
    every = {opcode for opcode, kind in INSTRUCTIONS.items() if kind.QUEUE is not None}
    kernels = {Opcode.MICROCODE, Opcode.KERNEL}
    for bits, tables, kernel, known in (
        (8, 4, 64, every), (0, 0, 0, set(PLAIN)), (8, 0, 64, every - set(LOOKUP)), (0, 4, 64, every - set(SOFTMAX)),
        (8, 4, 0, every - kernels),
    ):  # fmt: skip
        changes = {"probability_bits": bits, "lookup_tables": tables, "kernel": kernel}
        kinds = queue_kinds(PRESETS["tiny"].replace(**changes))
        assert list(kinds) == list(Queue)
        assert {kind.OPCODE for group in kinds.values() for kind in group} == known
