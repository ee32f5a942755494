"""The mover against bytes in Python, with a memory that was not written here and pauses on every channel."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
from cocotb.triggers import FallingEdge, RisingEdge
from cocotbext.axi import AxiBus, AxiRam
from support.axi_models import Steady, channels, check_errors, pauses
from support.mostly_long import mostly_long
from support.unit_bench import start

from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.mover import Mover
from weft.sim.rtl.bench import bench_parameters, run_bench

BYTES = 1 << 12
STROBES = ("set_address", "set_remain", "set_skip", "set_length", "set_fill", "gather", "scatter", "flush")
MOST = 40
"""Bytes that are taken in one go."""
PATIENCE = 500


class Bench:
    """A memory at `dut`, and its outputs and counters."""

    def __init__(self, dut: Any, stall: float) -> None:
        config = Config.from_dict(bench_parameters()["config"])
        self.dut, self.n, self.width, self.stall = dut, config.n, config.bus_bytes, stall
        self.base = random.randrange(1 << 32) // BYTES * BYTES  # memory is everywhere the same
        self.vector = bytes(self.n)
        self.pushed = bytearray()
        self.read_beats = self.write_beats = self.asked = 0
        self.awaited = [0, 0]  # responses to reads, to writes

    async def start(self) -> None:
        dut = self.dut
        dut.rst.value = 1
        self.ram = AxiRam(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst, size=BYTES)
        self.contents = bytearray(random.randbytes(BYTES))
        self.ram.write(0, bytes(self.contents))
        await start(dut, **dict.fromkeys((*STROBES, "word_taken", "value", "column_byte"), 0))
        if self.stall:
            for channel in channels(self.ram):
                channel.set_pause_generator(pauses(self.stall))
        cocotb.start_soon(self._watch())
        await FallingEdge(dut.clk)

    async def _watch(self) -> None:
        dut, steady = self.dut, Steady(self.dut)
        while True:
            await FallingEdge(dut.clk)
            steady.check()
            dut.column_byte.value = self.vector[int(dut.column.value)]
            if dut.push.value:
                self.pushed.append(int(dut.byte.value))
            self.read_beats += int(dut.read_beat.value)
            self.write_beats += int(dut.write_beat.value)
            assert not dut.error.value
            self._check_requests()

    def _check_requests(self) -> None:
        """Bursts of one word, one at a time; while one is under way the mover is not idle."""
        dut = self.dut
        asks = bool(dut.axi__arvalid.value), bool(dut.axi__awvalid.value or dut.axi__wvalid.value)
        if any(asks) or any(self.awaited):
            assert not dut.idle.value
        assert dut.axi__rready.value
        assert dut.axi__bready.value
        for index, (channel, answer) in enumerate((("ar", "r"), ("aw", "b"))):
            valid, ready, address, length, size, burst = (
                int(getattr(dut, f"axi__{channel}{name}").value)
                for name in ("valid", "ready", "addr", "len", "size", "burst")
            )
            if valid and ready:
                assert not any(self.awaited), "memory is still at work"
                assert (address - self.base) % (1 << 32) < BYTES
                assert address % self.width == 0
                assert (length, 1 << size, burst) == (0, self.width, 1)
                self.awaited[index] += 1
                self.asked += 1
            self.awaited[index] -= int(getattr(dut, f"axi__{answer}valid").value)

    async def give(self, name: str, value: int = 0) -> None:
        """A strobe."""
        dut = self.dut
        dut.value.value = value
        getattr(dut, name).value = 1
        await FallingEdge(dut.clk)
        getattr(dut, name).value = 0
        dut.value.value = random.getrandbits(32)

    async def until(self, flag: str) -> int:
        """Wait for an output; returns how many cycles it took."""
        for cycle in range(PATIENCE):
            if getattr(self.dut, flag).value:
                return cycle
            await FallingEdge(self.dut.clk)
        raise AssertionError(f"{flag} does not come")

    async def pause(self) -> None:
        for _ in range(random.choice((0, 0, 0, 1, 5, 30))):
            await FallingEdge(self.dut.clk)

    async def move_to(self, address: int) -> None:
        """Stop reading, and stand on `address`."""
        await self.give("set_remain", 0)
        await self.until("idle")
        await self.give("set_address", (self.base + address) % (1 << 32))

    def words(self, first: int, count: int) -> int:
        """Words of the bus that hold `count` bytes from `first` on."""
        return (first + count - 1) // self.width - first // self.width + 1 if count else 0


class Reading:
    """A stretch of memory that is taken as vectors and words, and what the mover knows of it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.first = self.at = random.randrange(BYTES - 8 * MOST)
        if random.random() < 0.5:
            self.first = self.at = self.at & -4
        self.remain = random.choice(
            (0, random.randint(1, 100), 4 * random.randint(1, 25), 1 << 16, (1 << 24) - 4)
        )
        self.skip = random.choice((0, 0, random.randrange(1, 2 * bench.n), 40))
        self.fill, self.length = random.getrandbits(8), 0

    async def start(self) -> None:
        bench = self.bench
        await bench.move_to(self.first)
        settings = {
            "set_remain": self.remain, "set_skip": self.skip, "set_fill": self.fill | random.getrandbits(24) << 8
        }  # fmt: skip
        for name, value in random.sample(list(settings.items()), len(settings)):
            await bench.give(name, value)
            await bench.pause()

    async def gather(self) -> None:
        """Gather one vector; often the next bytes of a pixel that began before."""
        bench, expected = self.bench, bytearray()
        if not self.length or random.random() < 0.1:
            self.length = random.choice((0, 1, bench.n - 1, bench.n, bench.n + 1, 3 * bench.n))
            await bench.give("set_length", self.length)
        for _ in range(bench.n):
            byte = self.fill
            if self.length:
                self.length -= 1
                if self.skip:
                    self.skip -= 1
                elif self.remain:
                    byte = bench.contents[self.at]
                    self.at, self.remain = self.at + 1, self.remain - 1
            expected.append(byte)
        bench.pushed.clear()
        await bench.give("gather")
        cycles = await bench.until("moved")
        assert bench.pushed == expected
        assert bool(bench.dut.length_zero.value) == (self.length == 0)
        if not bench.stall:
            # A byte a cycle, but for the words of memory, each in a few.
            assert (
                bench.n <= cycles <= bench.n + 6 * (1 + bench.words(self.at - self.at % bench.width, bench.n))
            )

    async def take_words(self) -> None:
        """Words of 32 bits, as many as there are or fewer."""
        bench, dut = self.bench, self.bench.dut
        for _ in range(random.randint(1, min(self.remain, MOST) // 4)):
            while True:
                await bench.until("word_valid")
                if random.random() < 0.7:
                    break
                await FallingEdge(dut.clk)
            assert int(dut.word.value).to_bytes(4, "little") == bench.contents[self.at : self.at + 4]
            await bench.give("word_taken")
            self.at, self.remain = self.at + 4, self.remain - 4


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def bench_reads(dut: Any, stall: float) -> None:
    """Vectors and words from any address on, to their end and beyond it, or left off. No word is asked for twice, and
    at most one that is not needed."""
    bench = Bench(dut, stall)
    await bench.start()
    for _ in range(60):
        reading = Reading(bench)
        bench.asked = bench.read_beats = 0
        await reading.start()
        for _ in range(random.randrange(8)):
            await bench.pause()
            if reading.at % 4 == 0 and reading.remain >= 4 and random.random() < 0.5:
                await reading.take_words()
            else:
                await reading.gather()
        await bench.pause()
        await bench.give("set_remain", 0)
        await bench.until("idle")
        assert not dut.word_valid.value
        taken = reading.at - reading.first
        most = taken + (reading.remain > 0)
        assert bench.words(reading.first, taken) <= bench.asked <= bench.words(reading.first, most)
        await FallingEdge(dut.clk)
        assert bench.read_beats == bench.asked
    assert bench.write_beats == 0


@cocotb.test()
async def bench_asks_ahead(dut: Any) -> None:
    """A word is there before it is needed, and the next one when it is used up."""
    bench = Bench(dut, 0.0)
    await bench.start()
    await bench.move_to(0)
    await bench.give("set_remain", 2 * bench.width)
    for _ in range(2):
        assert await bench.until("word_valid") < 8
        for _ in range(bench.width // 4):
            assert dut.word_valid.value
            await bench.give("word_taken")
        assert not dut.word_valid.value
    await bench.give("set_length", 2 * bench.n)
    await bench.give("set_skip", bench.n)
    await bench.give("gather")
    assert await bench.until("moved") == bench.n, "fill bytes wait for nothing"


async def write_pixel(bench: Bench, at: int) -> int:
    """Write a pixel of any length to `at`, in the model of memory as well; returns where it ends."""
    length = random.choice((1, bench.n - 1, bench.n, random.randint(1, 4 * bench.n)))
    await bench.give("set_length", length)
    while length:
        await bench.pause()
        bench.vector = random.randbytes(bench.n)
        await bench.give("scatter")
        await bench.until("moved")
        size = min(length, bench.n)
        bench.contents[at : at + size] = bench.vector[:size]
        at, length = at + size, length - size
        assert bool(bench.dut.length_zero.value) == (length == 0)
    return at


@cocotb.test()
@cocotb.parametrize(stall=[0.0, 0.5])
async def bench_writes(dut: Any, stall: float) -> None:
    """Pixels of any length to any address, one after the other; all other memory stays."""
    bench = Bench(dut, stall)
    await bench.start()
    for _ in range(60):
        at = first = random.randrange(BYTES - 200)
        if random.random() < 0.3:
            # What is left of a load makes no difference.
            await bench.give("set_skip", random.randrange(1, 2 * bench.n))
            await bench.give("set_length", random.randrange(1, 2 * bench.n))
            await bench.give("gather")
            await bench.until("moved")
        await bench.move_to(first)
        bench.asked = bench.write_beats = 0
        bench.pushed.clear()
        for _ in range(random.randint(1, 3)):
            at = await write_pixel(bench, at)
        await bench.pause()
        assert bench.asked <= bench.words(first, at - first)
        await bench.give("flush")
        await bench.until("idle")
        await RisingEdge(dut.clk)
        assert bench.ram.read(0, BYTES) == bytes(bench.contents)
        await FallingEdge(dut.clk)
        assert bench.asked == bench.write_beats == bench.words(first, at - first)
        assert not bench.pushed


@cocotb.test()
async def bench_errors(dut: Any) -> None:
    await start(dut, **dict.fromkeys(STROBES, 0))
    await check_errors(dut)


@pytest.mark.parametrize(("n", "bus"), mostly_long([(2, 4), (4, 16), (8, 8)], 1))
def test_mover(n: int, bus: int) -> None:
    config = PRESETS["tiny"].replace(n=n, lanes=1, bus_bytes=bus)
    run_bench(Mover(config), parameters={"config": config.to_dict()})
