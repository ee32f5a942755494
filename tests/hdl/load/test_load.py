"""The load unit against a model written from the docstring of `Load`, with stalls on every port."""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct

import cocotb
import numpy as np
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support import unit_bench
from support.unit_bench import stream_get, stream_put

from weft.hdl.isa import Load
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.encoding import group_bytes, unpack_groups
from weft.hdl.load.load import LoadUnit
from weft.sim.rtl.bench import run_bench

MEMORY_BYTES = 1 << 17
ALIGNED = 2
"""The first of two base registers that are multiples of the width of the bus."""


def unpack_vectors(op: Load, memory: np.ndarray, bases: list[int], n: int) -> dict[int, list[bytes]]:
    """Return the vectors that `op` writes to every scratchpad address, in any order."""
    out: dict[int, list[bytes]] = {}
    vectors = []
    entry = 0
    if op.paged:
        at = bases[op.table] + 4 * op.page
        entry = int.from_bytes(memory[at : at + 4].tobytes(), "little")
    for row in range(op.rows):
        start = (bases[op.base] + entry + op.offset + row * op.row_pitch + row // op.line * op.skip) % (
            1 << 32
        )
        values = memory[start : start + op.row_bytes]
        if op.blocks:
            values = unpack_groups(values.view(np.uint8), n).ravel()
        elif op.int4:
            values = np.stack([values << 4, values], axis=1).reshape(-1) >> 4
        size = max(op.before + len(values), op.pixels * op.pitch + op.length + n)
        line = np.full(size + n, op.fill, np.int8)
        line[op.before : op.before + len(values)] = values
        for p in range(op.pixels):
            pixel = np.full(-(-op.length // n) * n, op.fill, np.int8)
            pixel[: op.length] = line[p * op.pitch : p * op.pitch + op.length]
            vectors.append(pixel)
            for v in range(len(pixel) // n if not op.transpose else 0):
                address = (op.dst + row * op.dst_row + p * op.dst_pixel + v * op.dst_vector) % (1 << 16)
                out.setdefault(address, []).append(pixel[v * n : (v + 1) * n].tobytes())
    if op.transpose:
        vectors += [np.full(len(vectors[0]), op.fill, np.int8)] * (-len(vectors) % n)
        for g in range(len(vectors) // n):
            group = np.array(vectors[g * n : (g + 1) * n])
            for i in range(group.shape[1]):
                address = op.dst + g * op.dst_row + i // n * op.dst_pixel + i % n * op.dst_vector
                out.setdefault(address % (1 << 16), []).append(group[:, i].tobytes())
    return out


class Bench(unit_bench.Bench):
    """A `LoadUnit` with a memory on the bus and a scratchpad that records."""

    def __init__(self, dut, *, stall: float, latency: int = 0) -> None:
        super().__init__(dut, stall=stall)
        self.latency = latency
        self.pace = 1  # cycles from one beat to the next, at least
        self.memory = np.frombuffer(random.randbytes(MEMORY_BYTES), np.int8).copy()
        self.bases = [random.randrange(20000, 60000) for _ in range(8)]
        self.bases[4:] = [base & ~3 for base in self.bases[4:]]  # those of page tables
        self.bases[ALIGNED:4] = [base & -self.config.bus_bytes for base in self.bases[ALIGNED:4]]
        self.writes: list[tuple[int, int, bytes]] = []  # cycle, address, vector
        self.signals: list[tuple[int, int]] = []  # cycle, mask
        # First cycle, address of beats to be returned.
        self.beats: dict[str, list[tuple[int, int]]] = {"bus": [], "page": []}

    async def start(self) -> None:
        await super().start(**self.base_inputs(), instruction__valid=0)
        for each in (self._signals(), self._scratchpad()):
            cocotb.start_soon(each)
        for bus in ("bus", "page") if self.config.softmax else ("bus",):
            cocotb.start_soon(self._requests(bus))
            cocotb.start_soon(self._beats(bus))

    async def _requests(self, bus: str) -> None:
        width = self.config.bus_bytes
        async for address, beats in self.requests(f"{bus}__request"):
            self.beats[bus] += [(self.cycle + self.latency, address + k * width) for k in range(beats)]

    async def _beats(self, bus: str) -> None:
        width, waiting = self.config.bus_bytes, self.beats[bus]
        while True:
            if not waiting or waiting[0][0] >= self.cycle or self.stalls() or self.cycle % self.pace:
                await RisingEdge(self.dut.clk)
                continue
            address, began = waiting[0][1], self.cycle
            beat = int.from_bytes(self.memory[address : address + width].tobytes(), "little")
            await stream_put(self.dut, f"{bus}__beat", beat)
            assert bus == "bus" or self.cycle == began + 1, "an entry of a page table must not wait"
            waiting.pop(0)

    async def _scratchpad(self) -> None:
        async for address, data in stream_get(self.dut, "scratchpad", self.stalls, ("address", "data")):
            self.writes.append((self.cycle, address, data.to_bytes(self.config.n, "little")))

    async def _signals(self) -> None:
        while True:
            await ReadOnly()
            if mask := int(self.dut.signal.value):
                self.signals.append((self.cycle, mask))
            await RisingEdge(self.dut.clk)

    async def run(self, ops: list[Load], *, pause: bool = False) -> None:
        """Issue `ops`, wait until the unit is idle, and check every vector and the signals in between."""
        self.writes.clear()
        self.signals.clear()
        expected = [unpack_vectors(op, self.memory, self.bases, self.config.n) for op in ops]
        vectors = sum(len(values) for each in expected for values in each.values())
        beats = sum(
            op.rows * -(-op.length // self.config.n) * (op.run // self.config.bus_bytes + 2) for op in ops
        )
        await self.execute(ops, 1000 + int(10 / (1.001 - self.stall)) * (vectors + beats), pause=pause)
        assert [mask for _, mask in self.signals] == [op.signal for op in ops]
        assert not any(self.beats.values()), "beats were left on the bus"
        begin = 0
        for index, each in enumerate(expected):
            count = sum(len(values) for values in each.values())
            got: dict[int, list[bytes]] = {}
            for cycle, address, vector in self.writes[begin : begin + count]:
                got.setdefault(address, []).append(vector)
                assert cycle < self.signals[index][0], f"{ops[index]}: written after its signal"
            mask = self.config.scratchpad_size - 1
            want: dict[int, list[bytes]] = {}
            for address, values in each.items():
                want.setdefault(address & mask, []).extend(values)
            for address in want:
                assert sorted(got.get(address, [])) == sorted(want[address]), (
                    f"{ops[index]}: vector {address}"
                )
            begin += count
        assert begin == len(self.writes)


CASES = {
    "one byte": Load(),
    "a long pixel": Load(length=37, run=37, dst_vector=1, pixels=1, pitch=1),
    "dense rows": Load(rows=5, row_pitch=24, pixels=6, pitch=4, length=4, run=24, dst_pixel=1, dst_row=6),
    "rows of one vector": Load(rows=9, row_pitch=13, length=4, run=4, dst_row=1),
    "gaps": Load(rows=2, row_pitch=200, pixels=5, pitch=33, length=6, run=170, dst_vector=1, dst_pixel=2, dst_row=10),
    "windows within a vector": Load(rows=3, row_pitch=40, pixels=12, pitch=1, length=3, before=1, run=12,
                                    fill=-7, dst_pixel=1, dst_row=12),
    "windows of several vectors": Load(rows=3, row_pitch=40, pixels=9, pitch=3, length=11, before=5, run=20,
                                       fill=9, dst_vector=1, dst_pixel=3, dst_row=27),
    "windows of several vectors, run short": Load(rows=3, row_pitch=64, pixels=15, pitch=3, length=23, run=40, fill=5,
                                                  dst_vector=1, dst_pixel=6, dst_row=90),
    "windows with a wide pitch": Load(rows=2, row_pitch=64, pixels=4, pitch=10, length=13, before=3, run=40,
                                      fill=1, dst_vector=4, dst_pixel=1, dst_row=16),
    "vectors of fill ahead": Load(rows=2, row_pitch=9, pixels=8, pitch=5, length=5, before=21, run=9, fill=3,
                                  dst_vector=1, dst_pixel=2, dst_row=16),
    "only fill, run is dropped": Load(rows=3, row_pitch=50, pixels=2, pitch=4, length=4, before=30, run=50, fill=-1,
                                      dst_pixel=1, dst_row=2),
    "fill behind": Load(pixels=9, pitch=6, length=6, before=2, run=3, fill=77, dst_vector=1, dst_pixel=2),
    "run longer than the pixels": Load(rows=3, row_pitch=99, pixels=2, pitch=4, length=3, run=90, dst_pixel=1,
                                       dst_row=2),
    "negative row pitch": Load(offset=300, rows=4, row_pitch=-37, pixels=3, pitch=4, length=4, run=12, dst_pixel=1,
                               dst_row=-3, dst=30),
    "lines of rows": Load(rows=12, line=3, row_pitch=64, skip=333, length=9, run=9, dst_vector=1, dst_row=2),
    "lines backwards": Load(offset=900, rows=6, line=2, row_pitch=-41, skip=-100, pixels=3, pitch=4, length=4, run=12,
                            dst_pixel=1, dst_row=3),
    "lines of windows": Load(rows=4, line=2, row_pitch=40, skip=7, pixels=9, pitch=3, length=11, before=5, run=20,
                             fill=9, dst_vector=1, dst_pixel=3, dst_row=27),
    "crosses pages": Load(offset=4090, pixels=300, pitch=4, length=4, run=1200, dst_pixel=1),
}  # fmt: skip


def random_load(bench: Bench) -> Load:
    """Any instruction; with softmax some that transpose, and some with an entry in a page table."""
    n = bench.config.n
    line, pixels = random.choice((1, 2, random.randint(1, 4))), random.choice((1, 2, random.randint(1, 20)))
    rows = line * random.choice((1, 2, random.randint(1, 3)))
    length = random.choice((random.randint(1, n), n, random.randint(1, 5 * n)))
    pitch = random.choice((length, random.randint(1, length), random.randint(1, 3 * length)))
    before = random.choice((0, 0, random.randint(1, 3 * n), random.randint(1, pixels * pitch + 1)))
    op = Load(
        signal=1 << random.randrange(16), base=random.randrange(8), offset=random.randrange(8192), rows=rows,
        row_pitch=random.randint(-300, 900), line=line, skip=random.choice((0, random.randint(-300, 400))),
        pixels=pixels, pitch=pitch, length=length, before=before,
        run=random.choice((random.randint(1, 10), random.randint(1, pixels * pitch + n), max(1, pixels * pitch))),
        fill=random.randint(-128, 127), dst=random.getrandbits(16), dst_vector=random.randint(-9, 9),
        dst_pixel=random.randint(-9, 9), dst_row=random.randint(-99, 99),
    )  # fmt: skip
    changes = {}
    if bench.config.softmax and random.random() < 0.4:
        most = random.choice((n, bench.config.transposed_vectors * n))
        length = random.choice((most, random.randint(1, most)))
        changes |= {"transpose": 1, "length": length, "pitch": max(pitch, length) if length > n else pitch}
    if bench.config.softmax and random.random() < 0.4:
        changes |= {"paged": 1, "table": random.randrange(4, 8), "page": random.randrange(17000)}
        at = bench.bases[changes["table"]] + 4 * changes["page"]
        entry = np.frombuffer(struct.pack("<i", random.randint(-15000, 30000)), np.int8)
        bench.memory[at : at + 4] = entry
    op = dataclasses.replace(op, **changes)
    return narrow(op, bench.config) if bench.config.int4 and not op.paged and random.random() < 0.5 else op


def narrow(op: Load, config: Config) -> Load:
    """`op` with values of 4 bits: rows begin with words of the bus."""
    aligned = {
        name: getattr(op, name) // config.bus_bytes * config.bus_bytes
        for name in ("offset", "row_pitch", "skip")
    }
    base = random.randrange(ALIGNED, 4)
    blocks, run = int(config.blocks and random.random() < 0.6), -(-op.run // random.choice((1, 2, 2)))
    if blocks:
        whole = group_bytes(config.n)
        run = -(-run // whole) * whole
    return dataclasses.replace(op, int4=1, blocks=blocks, base=base, run=run, **aligned)


@cocotb.test()
async def bench_cases(dut):
    bench = Bench(dut, stall=0.3)
    await bench.start()
    for op in [*CASES.values(), *(narrow(op, bench.config) for op in CASES.values() if bench.config.int4)]:
        width = bench.config.bus_bytes
        for offset in random.sample(range(4 * width), 3):
            base, start = (op.base, offset // width * width) if op.int4 else (random.randrange(8), offset)
            fields = {"signal": 1, "base": base, "offset": 4 * 4096 + op.offset + start}
            await bench.run([dataclasses.replace(op, **fields)])


@cocotb.test()
async def bench_random_programs(dut):
    """Many instructions back to back, of all kinds, at three rates of stalls."""
    bench = Bench(dut, stall=0.0)
    await bench.start()
    for bench.stall in (0.0, 0.2, 0.7):
        bench.latency = random.randint(0, 20)
        for _ in range(6):
            await bench.run([random_load(bench) for _ in range(8)], pause=bench.stall > 0.5)


@cocotb.test()
async def bench_throughput(dut):
    """A vector per cycle from a dense run, whatever its alignment; rows in as many cycles as they have beats."""
    bench = Bench(dut, stall=0.0)
    n, width = bench.config.n, bench.config.bus_bytes
    bench.bases[0] = 0
    await bench.start()
    for offset in (0, 1, bench.config.bus_bytes - 1):
        op = Load(signal=1, offset=offset, pixels=256, pitch=n, length=n, run=256 * n, dst_pixel=1)
        await bench.run([op])
        cycles = bench.writes[-1][0] - bench.writes[0][0] + 1
        print(f"256 vectors from offset {offset}: {cycles} cycles")
        assert cycles <= 258
    for offset, vectors in itertools.product((0, 1), (1, 2, 3, 4)):
        length = vectors * n
        op = Load(signal=1, offset=offset, rows=64, row_pitch=4 * max(n, width), length=length, run=length,
                  dst_vector=64, dst_row=1)  # fmt: skip
        await bench.run([op])
        cycles = bench.writes[-1][0] - bench.writes[0][0] + 1
        beats = (offset + length - 1) // width + 1
        print(f"64 rows of {vectors} vectors from offset {offset}: {cycles} cycles")
        assert cycles <= 64 * (max(beats, vectors) + (offset > 0)) + 2
    if not bench.config.softmax:
        return
    for pixels in (256, 255):
        transposed = Load(
            signal=1, transpose=1, pixels=pixels, pitch=n, length=n, run=pixels * n, dst_row=n, dst_vector=1
        )
        await bench.run([transposed])
        cycles = bench.writes[-1][0] - bench.writes[0][0] + 1
        print(f"{pixels} vectors, transposed: {cycles} cycles")
        assert cycles <= 257
        await bench.run([transposed] * 4)
        cycles = bench.writes[-1][0] - bench.writes[0][0] + 1
        print(f"4 times {pixels} vectors, transposed: {cycles} cycles")
        assert cycles <= 4 * 260


@cocotb.test()
async def bench_int4(dut):
    """Values of 4 bits: a vector per cycle where memory brings half of one, and from a slow memory in half the time."""
    bench = Bench(dut, stall=0.0)
    n = bench.config.n
    if not bench.config.int4:
        return
    bench.bases[0] = 0
    await bench.start()
    plain = Load(signal=1, pixels=256, pitch=n, length=n, run=256 * n, dst_pixel=1)
    op = dataclasses.replace(plain, int4=1, run=128 * n)
    times = []
    for bench.pace, kind in itertools.product((1, 4), (plain, op)):
        await bench.run([kind])
        times.append(bench.writes[-1][0] - bench.writes[0][0] + 1)
    print(f"256 vectors, of 4 bits, and both with a beat every 4 cycles: {times} cycles")
    assert times[1] <= 258
    assert times[3] <= max(258, times[2] // 2 + 8)
    if not bench.config.blocks:
        return
    times = []
    for bench.pace in (1, 4):
        await bench.run([dataclasses.replace(op, blocks=1)])
        times.append(bench.writes[-1][0] - bench.writes[0][0] + 1)
    print(f"256 vectors in 8 groups with factors, and with a beat every 4 cycles: {times} cycles")
    assert times[0] <= 258 + 8
    assert times[1] <= 4 * 17 * 8 + 8


@cocotb.test()
async def bench_latency_overlaps(dut):
    """Instructions that follow one another share the latency of memory."""
    bench = Bench(dut, stall=0.0, latency=50)
    n = bench.config.n
    bench.bases[0] = 0
    await bench.start()
    op = Load(signal=1, pixels=16, pitch=n, length=n, run=16 * n, dst_pixel=1)
    await bench.run([op] * 4)
    cycles = bench.writes[-1][0] - bench.writes[0][0] + 1
    print(f"4 instructions of 16 vectors: {cycles} cycles after the first")
    assert cycles <= 4 * 16 + 4 * 6


@cocotb.test()
async def bench_pages_overlap(dut):
    """The entries of successive instructions are fetched after their data."""
    bench = Bench(dut, stall=0.0, latency=40)
    n = bench.config.n
    if not bench.config.softmax:
        return
    await bench.start()
    bench.memory[bench.bases[4] : bench.bases[4] + 32] = np.zeros(32, np.int8)
    op = Load(
        signal=1,
        pixels=32,
        pitch=n,
        length=n,
        run=32 * n,
        dst_pixel=1,
        dst_row=n,
        dst_vector=1,
        paged=1,
        table=4,
    )
    plain = dataclasses.replace(op, paged=0)
    for transpose in (0, 1):
        times = []
        for kind in (plain, op):
            ops = [
                dataclasses.replace(kind, page=page * kind.paged, transpose=transpose) for page in range(8)
            ]
            await bench.run(ops)
            times.append(bench.writes[-1][0] - bench.writes[0][0] + 1)
        print(f"8 instructions of 32 vectors: {times[0]} cycles, paged {times[1]}")
        assert times[0] <= 8 * (32 + 6)
        assert times[1] <= times[0] + 8


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("n", "bus", "probability_bits", "int4", "loops"),
    [
        (4, 4, 8, 0, 0),
        (4, 8, 8, 1, 1),
        (2, 4, 8, 1, 0),
        (2, 64, 0, 1, 1),
        (8, 8, 7, 1, 0),
        (4, 4, 8, 2, 1),
        (8, 8, 0, 2, 0),
    ],
)
def test_load(n, bus, probability_bits, int4, loops):
    config = PRESETS["tiny"].replace(
        n=n, lanes=2, bus_bytes=bus, probability_bits=probability_bits, int4=int4, loops=loops
    )
    run_bench(LoadUnit(config), parameters={"config": config.to_dict()})
