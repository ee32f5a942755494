"""The store unit against a model written from the docstring of `Store`, with stalls on every port."""

from __future__ import annotations

import random

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support import unit_bench
from support.unit_bench import stream_get

from weft.hdl.isa import Store
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.store import StoreUnit
from weft.sim.rtl.bench import run_bench

MEMORY_BYTES = 1 << 17


def apply_store(op: Store, memory: np.ndarray, scratchpad: np.ndarray, bases: list[int]) -> None:
    """Apply `op` to `memory`, from `scratchpad` of shape [vectors, n]."""
    size, n = scratchpad.shape
    for row in range(op.rows):
        for p in range(op.pixels):
            start = bases[op.base] + op.offset + row * op.row_pitch + p * op.pitch
            vectors = (
                op.src + row * op.src_row + p * op.src_pixel + np.arange(-(-op.length // n)) * op.src_vector
            )
            memory[start : start + op.length] = scratchpad[vectors % size].reshape(-1)[: op.length]


class Bench(unit_bench.Bench):
    """A `StoreUnit` with a memory on the bus, and a scratchpad."""

    def __init__(self, dut, *, stall: float, latency: int = 0) -> None:
        super().__init__(dut, stall=stall)
        self.latency = latency
        self.memory = np.frombuffer(random.randbytes(MEMORY_BYTES), np.int8).copy()
        shape = (self.config.scratchpad_size, self.config.n)
        self.scratchpad = np.frombuffer(random.randbytes(shape[0] * shape[1]), np.int8).reshape(shape)
        self.bases = [random.randrange(20000, 60000) for _ in range(8)]
        self.bursts: list[tuple[int, int]] = []  # address, beats
        self.confirms: list[int] = []  # cycle from which a burst may be confirmed
        self.beats: list[int] = []  # cycles
        self.signals: list[int] = []
        self.unconfirmed: list[tuple[int, int]] = []  # signal, bursts not confirmed before it
        self.requested = self.confirmed = 0

    async def start(self) -> None:
        await super().start(**self.base_inputs(), instruction__valid=0, bus__confirmed=0)
        for each in (self._requests(), self._beats(), self._confirms(), self._scratchpad()):
            cocotb.start_soon(each)

    async def _requests(self) -> None:
        async for burst in self.requests("bus__request"):
            self.bursts.append(burst)
            self.requested += 1

    async def _beats(self) -> None:
        width = self.config.bus_bytes
        address = left = 0
        async for (beat,) in stream_get(self.dut, "bus__beat", self.stalls):
            if left == 0:
                assert self.bursts, "a beat came before its request"
                address, left = self.bursts.pop(0)
            self._write(address, beat, last=left == 1)
            self.beats.append(self.cycle)
            address, left = address + width, left - 1
            if left == 0:
                self.confirms.append(self.cycle + self.latency)

    def _write(self, address: int, beat: int, *, last: bool) -> None:
        width = self.config.bus_bytes
        assert beat >> 9 * width == last, "the last beat is not where the request ends"
        assert (beat >> 8 * width) & ((1 << width) - 1), "a beat writes nothing"
        raw = np.frombuffer(beat.to_bytes(2 * width + 1, "little"), np.uint8)
        strobe = np.unpackbits(raw[width : 2 * width], bitorder="little")[:width].astype(bool)
        self.memory[address : address + width][strobe] = raw[:width].view(np.int8)[strobe]

    async def _confirms(self) -> None:
        dut = self.dut
        while True:
            confirm = bool(self.confirms) and self.confirms[0] < self.cycle and not self.stalls()
            if confirm:
                self.confirms.pop(0)
                self.confirmed += 1
            dut.bus__confirmed.value = confirm
            await ReadOnly()
            if mask := int(dut.signal.value):
                self.signals.append(mask)
                self.unconfirmed.append((mask, self.requested - self.confirmed))
            await RisingEdge(dut.clk)

    async def _scratchpad(self) -> None:
        dut, mask = self.dut, self.config.scratchpad_size - 1
        data = [0] * READ_LATENCY
        while True:
            dut.scratchpad__ready.value = not self.stalls()
            dut.scratchpad__data.value = data[0]
            await ReadOnly()
            data = [*data[1:], random.getrandbits(self.config.widths.vector)]
            if dut.scratchpad__valid.value and dut.scratchpad__ready.value:
                vector = self.scratchpad[int(dut.scratchpad__address.value) & mask]
                data[-1] = int.from_bytes(vector.tobytes(), "little")
            await RisingEdge(dut.clk)

    async def run(self, ops: list[Store], *, pause: bool = False) -> None:
        """Issue `ops`, wait until the unit is idle, and check memory and signals."""
        self.signals.clear()
        self.beats.clear()
        self.unconfirmed.clear()
        expected = self.memory.copy()
        for op in ops:
            apply_store(op, expected, self.scratchpad, self.bases)
        beats = sum(op.rows * op.pixels * (op.length // self.config.n + 3) for op in ops)
        limit = 1000 + int((10 + self.latency) / (1.001 - self.stall)) * beats
        await self.execute(ops, limit, pause=pause)
        assert self.signals == [op.signal for op in ops]
        assert self.unconfirmed[-1][1] == 0, "signalled before memory confirmed all bursts"
        assert self.requested == self.confirmed, "idle before memory confirmed all bursts"
        wrong = np.flatnonzero(self.memory != expected)
        assert not len(wrong), f"{ops}: {len(wrong)} bytes differ, the first at {wrong[0]}"


CASES = {
    "one byte": Store(),
    "a long pixel": Store(length=37, src_vector=1),
    "dense rows": Store(rows=5, row_pitch=24, pixels=6, pitch=4, length=4, src_pixel=1, src_row=6),
    "rows of one vector": Store(rows=9, row_pitch=13, length=4, src_row=1),
    "gaps": Store(rows=2, row_pitch=200, pixels=5, pitch=33, length=6, src_vector=1, src_pixel=2, src_row=10),
    "merged, pixels of several vectors": Store(rows=3, row_pitch=130, pixels=11, pitch=11, length=11, src_vector=1,
                                               src_pixel=3, src_row=33),
    "pixels that share a beat": Store(pixels=40, pitch=3, length=2, src_pixel=1),
    "negative strides": Store(offset=900, rows=4, row_pitch=-37, pixels=3, pitch=9, length=8, src=40, src_vector=-1,
                              src_pixel=-2, src_row=-6),
    "crosses pages": Store(offset=4090, pixels=300, pitch=4, length=4, src_pixel=1),
}  # fmt: skip


def random_store(n: int) -> Store:
    length = random.choice((random.randint(1, n), n, random.randint(1, 5 * n)))
    return Store(
        signal=1 << random.randrange(16), base=random.randrange(8), offset=random.randrange(8192),
        rows=random.choice((1, 2, random.randint(1, 9))), row_pitch=random.randint(-300, 900),
        pixels=random.choice((1, 2, random.randint(1, 20))),
        pitch=random.choice((length, length + random.randint(0, 3 * n))), length=length, src=random.getrandbits(16),
        src_vector=random.randint(-9, 9), src_pixel=random.randint(-9, 9), src_row=random.randint(-99, 99),
    )  # fmt: skip


@cocotb.test()
async def bench_cases(dut):
    bench = Bench(dut, stall=0.3)
    await bench.start()
    for op in CASES.values():
        for offset in random.sample(range(4 * bench.config.bus_bytes), 3):
            changes = {"signal": 1, "base": random.randrange(8), "offset": op.offset + offset}
            await bench.run([Store(**(vars(op) | changes))])


@cocotb.test()
async def bench_random_programs(dut):
    """Many instructions back to back, at three rates of stalls."""
    bench = Bench(dut, stall=0.0)
    await bench.start()
    for bench.stall in (0.0, 0.2, 0.7):
        bench.latency = random.randint(0, 20)
        for _ in range(6):
            await bench.run([random_store(bench.config.n) for _ in range(12)], pause=bench.stall > 0.5)


@cocotb.test()
async def bench_throughput(dut):
    """A beat per cycle of a dense run, whatever its alignment, and across instructions."""
    bench = Bench(dut, stall=0.0, latency=10)
    bench.bases[0] = 8192
    n, width = bench.config.n, bench.config.bus_bytes
    await bench.start()
    for offset in (0, 1, width - 1):
        changes = {"signal": 1, "offset": offset, "src_pixel": 1, "pitch": n, "length": n}
        await bench.run([Store(pixels=256, **changes)])
        cycles = bench.beats[-1] - bench.beats[0] + 1
        print(f"256 vectors to offset {offset}: {cycles} cycles")
        assert cycles <= 258
        ops = [Store(pixels=32, **changes | {"offset": offset + 32 * n * k}) for k in range(4)]
        await bench.run(ops)
        cycles = bench.beats[-1] - bench.beats[0] + 1
        print(f"4 times 32 vectors to offset {offset}: {cycles} cycles")
        assert cycles <= 4 * 34
    await bench.run([Store(signal=1, pixels=64, pitch=3 * width, length=n, src_pixel=1)])
    cycles = bench.beats[-1] - bench.beats[0] + 1
    print(f"64 pixels apart: {cycles} cycles")
    assert cycles <= 3 * 64


@cocotb.test()
async def bench_signal_waits_for_memory(dut):
    """No signal before the confirmation of the last burst, however late it is; the next instruction goes on."""
    bench = Bench(dut, stall=0.0, latency=60)
    await bench.start()
    n = bench.config.n
    ops = [Store(signal=1 << k, length=n, offset=100 * k) for k in range(2)]
    await bench.run(ops)
    assert bench.unconfirmed in ([(1, 1), (2, 0)], [(1, 0), (2, 0)])
    assert bench.beats[-1] - bench.beats[0] < 20


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("n", "bus", "loops"), [(4, 4, 0), (2, 4, 1), (4, 16, 0), (8, 8, 0)])
def test_store(n, bus, loops):
    config = PRESETS["tiny"].replace(n=n, lanes=2, bus_bytes=bus, loops=loops)
    run_bench(StoreUnit(config), parameters={"config": config.to_dict()})
