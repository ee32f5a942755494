"""The AXI manager against a memory that was not written here, with pauses on every channel."""

from __future__ import annotations

import random

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiBus, AxiRam
from support import unit_bench
from support.axi_models import Steady, channels, check_errors, pauses
from support.unit_bench import start, stream_get, stream_put

from weft.hdl.bus.axi import AxiManager, reader_ids
from weft.hdl.isa.config import PRESETS, Config
from weft.sim.rtl.bench import bench_parameters, run_bench

MEMORY_BYTES = 1 << 16


class Bench(unit_bench.Bench):
    """A memory at `dut`, and drivers of its readers and its writer."""

    def __init__(self, dut, *, stall: float) -> None:
        super().__init__(dut, stall=stall)
        self.width, self.readers = self.config.bus_bytes, list(reader_ids(self.config))
        self.confirmed = self.read_beats = self.write_beats = self.errors = 0
        self.first_beat: dict[str, int] = {}
        self.last_beat: dict[str, int] = {}

    async def start(self) -> None:
        dut = self.dut
        dut.rst.value = 1
        self.ram = AxiRam(AxiBus.from_prefix(dut, "axi_"), dut.clk, dut.rst, size=MEMORY_BYTES)
        self.contents = bytearray(random.randbytes(MEMORY_BYTES))
        self.ram.write(0, bytes(self.contents))
        # A reader that refuses beats holds up the others, so one that asks for nothing must be ready.
        asks = {f"{name}__request__valid": 0 for name in self.readers}
        ready = {f"{name}__beat__ready": 1 for name in self.readers}
        await super().start(store__request__valid=0, store__beat__valid=0, **asks, **ready)
        await RisingEdge(dut.clk)
        if self.stall:
            for channel in channels(self.ram):
                channel.set_pause_generator(pauses(self.stall))
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        """Counts pulses, and holds the payloads of stalled channels to AXI's rule: they do not change."""
        dut = self.dut
        steady = Steady(dut)
        while True:
            await ReadOnly()
            self.confirmed += int(dut.store__confirmed.value)
            self.read_beats += int(dut.read_beat.value)
            self.write_beats += int(dut.write_beat.value)
            self.errors += int(dut.error.value)
            steady.check()
            await RisingEdge(dut.clk)

    async def read(self, name: str, requests: list[tuple[int, int]]) -> None:
        """Read all `requests` (address, beats) through reader `name` and compare with memory."""
        cocotb.start_soon(self._ask(name, requests))
        words = stream_get(self.dut, f"{name}__beat", self.stalls)
        for at in (address + k * self.width for address, beats in requests for k in range(beats)):
            (value,) = await anext(words)
            self.first_beat.setdefault(name, self.cycle)
            self.last_beat[name] = self.cycle
            assert value.to_bytes(self.width, "little") == self.contents[at : at + self.width]
        await RisingEdge(self.dut.clk)
        getattr(self.dut, f"{name}__beat__ready").value = 1

    async def _ask(self, name: str, requests: list[tuple[int, int]]) -> None:
        for address, beats in requests:
            await stream_put(self.dut, f"{name}__request", address | beats << 32, self.stalls)

    async def write(self, requests: list[tuple[int, int]]) -> None:
        """Write random beats with random strobes, into the model of memory as well."""
        cocotb.start_soon(self._ask("store", requests))
        width = self.width
        for address, beats in requests:
            for k in range(beats):
                data, strobe = random.randbytes(width), random.getrandbits(width)
                for byte in range(width):
                    if strobe >> byte & 1:
                        self.contents[address + k * width + byte] = data[byte]
                payload = int.from_bytes(data, "little") | strobe << 8 * width | (k == beats - 1) << 9 * width
                await stream_put(self.dut, "store__beat", payload, self.stalls)


def random_requests(width: int, count: int, low: int, high: int) -> list[tuple[int, int]]:
    """Bursts between the addresses `low` and `high` (multiples of 4096) that stay within a page."""
    requests = []
    for _ in range(count):
        page = random.randrange(low, high, 4096)
        first = random.randrange(4096 // width)
        beats = random.choice((1, random.randint(1, 8), 256))
        requests.append((page + first * width, min(beats, 4096 // width - first, 256)))
    return requests


@cocotb.test()
async def bench_traffic(dut):
    """All readers and the writer at once; the writer has memory of its own."""
    bench = Bench(dut, stall=0.3)
    await bench.start()
    half = MEMORY_BYTES // 2
    reads = {name: random_requests(bench.width, 25, 0, half) for name in bench.readers}
    writes = random_requests(bench.width, 40, half, MEMORY_BYTES)
    tasks = [cocotb.start_soon(bench.read(name, requests)) for name, requests in reads.items()]
    tasks.append(cocotb.start_soon(bench.write(writes)))
    for task in tasks:
        await task
    for _ in range(200):
        await RisingEdge(dut.clk)
    assert bench.confirmed == len(writes)
    assert bench.errors == 0
    assert bench.read_beats == sum(beats for requests in reads.values() for _, beats in requests)
    assert bench.write_beats == sum(beats for _, beats in writes)
    assert bench.ram.read(0, MEMORY_BYTES) == bytes(bench.contents)


@cocotb.test()
async def bench_priorities(dut):
    """The first reader that asks is granted; the next one when it is silent."""
    bench = Bench(dut, stall=0.0)
    await bench.start()
    waiting = list(bench.readers)
    for index, name in enumerate(waiting):
        getattr(dut, f"{name}__request__valid").value = 1
        getattr(dut, f"{name}__request__payload").value = 64 * index | 1 << 32
        getattr(dut, f"{name}__beat__ready").value = 1
    while waiting:
        grants = 0
        while grants < 5:
            await ReadOnly()
            ready = [name for name in waiting if getattr(dut, f"{name}__request__ready").value]
            assert ready in ([], waiting[:1])
            grants += len(ready)
            await RisingEdge(dut.clk)
        getattr(dut, f"{waiting.pop(0)}__request__valid").value = 0
    for _ in range(100):
        await RisingEdge(dut.clk)
    assert bench.read_beats == 5 * len(bench.readers)


@cocotb.test()
async def bench_full_rate(dut):
    """A long read and a long write move a beat per cycle."""
    bench = Bench(dut, stall=0.0)
    await bench.start()
    beats = min(256, 4096 // bench.width)
    await bench.read("load", [(0, beats)])
    assert bench.last_beat["load"] - bench.first_beat["load"] + 1 == beats
    await bench.write([(4096, beats)])
    for _ in range(50):
        await RisingEdge(dut.clk)
    assert bench.write_beats == beats
    assert bench.confirmed == 1


@cocotb.test()
async def bench_errors(dut):
    """Every response other than OKAY is reported, once."""
    names = reader_ids(Config.from_dict(bench_parameters()["config"]))
    await start(
        dut,
        **{f"{name}__request__valid": 0 for name in names},
        **{f"{name}__beat__ready": 1 for name in names},
    )
    await check_errors(dut)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("bus", "probability_bits"), [(4, 8), (16, 8), (16, 0)])
def test_axi(bus, probability_bits):
    config = PRESETS["tiny"].replace(bus_bytes=bus, probability_bits=probability_bits)
    run_bench(AxiManager(config), parameters={"config": config.to_dict()})
