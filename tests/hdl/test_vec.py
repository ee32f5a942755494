"""The vector unit against a model written from the docstring of `weft.hdl.isa.Vec`."""

import random

import cocotb
import numpy as np
import pytest
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
from cocotb.utils import get_sim_time

from weft.hdl.config import PRESETS, Config
from weft.hdl.isa import PARAMETER_VECTORS, Reduce, Source, Vec
from weft.hdl.vec import OVERHEAD, VecUnit
from weft.sim.bench import bench_parameters, run_bench

TINY = PRESETS["tiny"]
CONFIGS = {
    "two lanes of four": TINY,
    "all lanes": TINY.replace(lanes=4),
    "smallest": TINY.replace(n=2, lanes=1, mantissa_bits=16),
    "one lane of eight": TINY.replace(n=8, lanes=1, bus_bytes=8),
    "two lanes of four, without softmax": TINY.replace(probability_bits=0),
    "all lanes, 7 bits": TINY.replace(lanes=4, probability_bits=7),
}
BLOCKS = 8
"""Parameter blocks at the start of the scratchpad; the second half has shifts for scratchpad sources."""
PERIOD = 2


def wrap(value, bits):
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def half_even(value, shift):
    quotient, rest = value >> shift, value & ((1 << shift) - 1)
    twice = 2 * rest - (1 << shift)
    return quotient + (1 if twice > 0 or (twice == 0 and quotient & 1) else 0)


class Memory:
    """Scratchpad and accumulator as arrays of int8 and int32."""

    def __init__(self, config, rng):
        source = np.random.default_rng(rng.getrandbits(32))
        self.config = config
        self.scratchpad = source.integers(-128, 128, (config.scratchpad_size, config.n)).astype(np.int8)
        rows = source.integers(-(1 << 20), 1 << 20, (config.accumulator_size, config.n))
        wild = source.integers(-(1 << 31), 1 << 31, rows.shape)
        self.accumulator = np.where(source.random(rows.shape) < 0.1, wild, rows).astype(np.int32)
        for block in range(BLOCKS):
            self._block(rng, block)

    def _block(self, rng, block):
        bits = self.config.mantissa_bits
        for column in range(self.config.n):
            bias = rng.randrange(-3000, 3000) if rng.random() < 0.8 else rng.randrange(-(1 << 31), 1 << 31)
            mantissa = rng.randrange(1 << (bits - 3), 1 << bits)
            shift = bits + (0 if block >= BLOCKS // 2 else 13) + rng.randrange(-2, 4)
            word = (
                (bias & 0xFFFFFFFF)
                | mantissa << 32
                | (shift if rng.random() < 0.9 else rng.randrange(64)) << 56
            )
            planes = np.frombuffer(word.to_bytes(8, "little"), np.int8)
            self.scratchpad[block * PARAMETER_VECTORS : (block + 1) * PARAMETER_VECTORS, column] = planes

    def parameters(self, address):
        """(bias, mantissa, shift) of every column."""
        block = self.scratchpad[address : address + PARAMETER_VECTORS]
        words = [int.from_bytes(block[:, column].tobytes(), "little") for column in range(self.config.n)]
        return [(wrap(w & 0xFFFFFFFF, 32), w >> 32 & 0xFFFFFF, w >> 56 & 63) for w in words]


class Model:
    """Reads, writes and cycles of one instruction, without changing memory."""

    def __init__(self, memory, vec):
        self.memory, self.vec = memory, vec
        self.read = {("s", vec.params + i) for i in range(PARAMETER_VECTORS)}
        self.writes = []
        self.steps = 0
        self.columns = memory.parameters(vec.params)
        for ob in range(vec.ob):
            for oy in range(vec.oy):
                for ox in range(vec.ox):
                    self._output(ob, oy, ox)

    def safe(self):
        """Whether no write touches what is read, another write, or a parameter block."""
        targets = [address for address, _ in self.writes]
        used = {address for kind, address in self.read if kind == "s"}
        reserved = range(BLOCKS * PARAMETER_VECTORS)
        return (
            len(set(targets)) == len(targets)
            and used.isdisjoint(targets)
            and not set(targets) & set(reserved)
        )

    def _fetch(self, kind, address):
        memory = self.memory.scratchpad if kind == "s" else self.memory.accumulator
        address %= len(memory)
        self.read.add((kind, address))
        return [int(value) for value in memory[address]]

    def _output(self, ob, oy, ox):
        vec, n = self.vec, self.memory.config.n
        groups = self.memory.config.groups
        second = [vec.b_zero] * n
        if vec.add:
            second = self._fetch("s", vec.b + ob * vec.b_ob + oy * vec.b_oy + ox * vec.b_ox)
            self.steps += 1
        elements = []
        for ry in range(vec.ry):
            for rx in range(vec.rx):
                y = wrap(vec.y + oy * vec.y_oy + ry * vec.y_ry, 16)
                x = wrap(vec.x + ox * vec.x_ox + rx * vec.x_rx, 16)
                address = vec.src + ob * vec.src_ob + oy * vec.src_oy + ox * vec.src_ox
                address += ry * vec.src_ry + rx * vec.src_rx
                if 0 <= y < vec.h and 0 <= x < vec.w:
                    elements.append(self._fetch("a" if vec.source == Source.ACCUMULATOR else "s", address))
                else:
                    elements.append([-(1 << 31) if vec.reduce == Reduce.MAX else vec.pad] * n)
                self.steps += groups
        result = [
            self._column(*each)
            for each in zip(zip(*elements, strict=True), second, self.columns, strict=True)
        ]
        address = vec.dst + ob * vec.dst_ob + oy * vec.dst_oy + ox * vec.dst_ox
        self.writes.append((address % self.memory.config.scratchpad_size, result))

    def _column(self, elements, second, column):
        vec, (bias, mantissa, shift) = self.vec, column
        reduced = {Reduce.NONE: elements[-1], Reduce.MAX: max(elements), Reduce.SUM: sum(elements)}[
            vec.reduce
        ]
        value = wrap(reduced + bias, 32)
        product = value * mantissa + (second - vec.b_zero) * vec.b_mantissa * vec.add
        return min(max(half_even(product, shift) + vec.zero, vec.low), vec.high)


def random_vec(rng, config, **given):
    """Any instruction: strides of a dense walk or any at all, windows that leave the picture."""

    def stride(*dense):
        return rng.choice(dense) if rng.random() < 0.7 else rng.randrange(-(1 << 15), 1 << 15)

    source = rng.randrange(2)
    reduce = rng.choice(list(Reduce))
    block = rng.randrange(BLOCKS // 2) + (BLOCKS // 2 if source == Source.SCRATCHPAD else 0)
    fields = {
        "source": source, "reduce": reduce, "add": rng.randrange(2),
        "ob": rng.choice((1, 1, 2, 3)), "oy": rng.randrange(1, 5), "ox": rng.randrange(1, 5),
        "ry": rng.choice((1, 1, 2, 3)), "rx": rng.choice((1, 1, 2, 3)),
        "src": rng.randrange(1 << 16), "src_ob": stride(16, 25), "src_oy": stride(4, 5), "src_ox": stride(1, 2),
        "src_ry": stride(4, 5), "src_rx": stride(1, -1),
        "y": rng.randrange(-3, 3), "x": rng.randrange(-3, 3), "y_oy": rng.randrange(-2, 4),
        "y_ry": rng.randrange(-1, 3), "x_ox": rng.randrange(-2, 4), "x_rx": rng.randrange(-1, 3),
        "h": rng.randrange(1, 8), "w": rng.randrange(1, 8), "pad": rng.randrange(-128, 128),
        "dst": rng.randrange(1 << 16), "dst_ob": stride(16, 40), "dst_oy": stride(4, 7), "dst_ox": stride(1, 2),
        "b": rng.randrange(1 << 16), "b_ob": stride(16, 20), "b_oy": stride(4, 0), "b_ox": stride(1, 0),
        "b_mantissa": rng.randrange(1 << rng.randrange(1, config.mantissa_bits + 1)),
        "b_zero": rng.randrange(-128, 128),
        "params": block * PARAMETER_VECTORS, "zero": rng.randrange(-128, 128),
        "low": rng.choice((-128, -128, 0, -100)), "high": rng.choice((127, 127, 6, 100)),
        "signal": rng.randrange(1, 1 << 16),
    }  # fmt: skip
    if rng.random() < 0.3:  # coordinates that wrap: negative ones are out of range even below a huge bound
        axis, loop, bound = rng.choice((("y", "oy", "h"), ("x", "ox", "w")))
        fields |= {axis: rng.choice((-2, -1, 32766, 32767)), f"{axis}_{loop}": 1}
        fields[bound] = rng.choice((1, 32767, 40000, 65535))
    return Vec(**(fields | given))


def dense_vec(rng, config, **given):
    """`ox` outputs one after the other, nothing out of range."""
    base = BLOCKS * PARAMETER_VECTORS
    fields = {"src_ox": 1, "dst_ox": 1, "b_ox": 1, "signal": rng.randrange(1, 1 << 16), "params": 0}
    fields |= {"src": base if given["source"] == Source.SCRATCHPAD else 3, "b": base + 50, "dst": base + 100}
    return Vec(**(fields | given))


class Port:
    """The signals of a read port."""

    def __init__(self, dut, name):
        for member in ("valid", "ready", "address", "data"):
            setattr(self, member, getattr(dut, f"{name}__{member}"))


class Bench:
    def __init__(self, dut, refuse):
        self.dut, self.refuse = dut, refuse
        self.ports = {name: Port(dut, name) for name in ("accumulator", "scratchpad")}
        self.config = Config.from_dict(bench_parameters()["config"])
        self.rng = random.Random(random.getrandbits(32))
        self.memory = Memory(self.config, self.rng)
        self.scratchpad, self.accumulator = self.memory.scratchpad.copy(), self.memory.accumulator.copy()
        self.writes, self.signals, self.accepted = [], [], []
        self.stalls = 0

    async def start(self):
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
        dut.instruction__valid.value = 0
        dut.write__ready.value = 1
        dut.rst.value = 1
        for _ in range(3):
            await RisingEdge(dut.clk)
        dut.rst.value = 0
        cocotb.start_soon(self.reads("accumulator", self.accumulator))
        cocotb.start_soon(self.reads("scratchpad", self.scratchpad))
        cocotb.start_soon(self.results())

    async def reads(self, name, memory):
        """A memory port that refuses at random, and shows data in one cycle only."""
        port, width = self.ports[name], memory[0].nbytes * 8
        coming = None
        while True:
            granting = self.rng.random() >= self.refuse
            port.ready.value = int(granting)
            await RisingEdge(self.dut.clk)
            port.data.value = self.rng.getrandbits(width) if coming is None else coming
            coming = None
            if granting and int(port.valid.value):
                coming = int.from_bytes(memory[int(port.address.value)].tobytes(), "little")

    async def results(self):
        """Compare writes and signals with what is due, in order; apply writes to memory a cycle later."""
        dut, n, pending = self.dut, self.config.n, None
        while True:
            await RisingEdge(dut.clk)
            if pending is not None:
                self.scratchpad[pending[0]] = pending[1]
                pending = None
            refused = [int(port.valid.value) and not int(port.ready.value) for port in self.ports.values()]
            assert int(dut.stall_port.value) == any(refused)
            self.stalls += any(refused)
            signal = int(dut.signal.value)
            if signal:
                mask, writes_left = self.signals.pop(0)
                assert signal == mask
                assert len(self.writes) == self.total_writes - writes_left, "signal and writes disagree"
            if int(dut.write__valid.value):
                vec, address, values = self.writes.pop(0)
                data = int(dut.write__data.value).to_bytes(n, "little")
                got = (int(dut.write__address.value), list(np.frombuffer(data, np.int8)))
                assert got == (address, values), f"got {got}, expected {(address, values)} for {vec}"
                pending = address, np.array(values, np.int8)

    async def run(self, vecs, gaps=0.0):
        """Run instructions in order; returns their models."""
        models, written = [], 0
        for vec in vecs:
            model = Model(self.memory, vec)
            for address, values in model.writes:
                self.memory.scratchpad[address] = values
            self.writes += [(vec, *write) for write in model.writes]
            written += len(model.writes)
            self.signals.append((vec.signal, written))
            models.append(model)
        self.total_writes = written
        dut = self.dut
        for vec in vecs:
            while self.rng.random() < gaps:
                await RisingEdge(dut.clk)
            dut.instruction__payload.value = int.from_bytes(vec.encode(), "little")
            dut.instruction__valid.value = 1
            await RisingEdge(dut.clk)
            while not int(dut.instruction__ready.value):
                await RisingEdge(dut.clk)
            self.accepted.append(int(get_sim_time("ns")) // PERIOD)
            dut.instruction__valid.value = 0
        await self.idle()
        return models

    async def idle(self):
        """Until the unit is not busy; everything due must have come by then."""
        await RisingEdge(self.dut.clk)
        for _ in range(100_000):
            await RisingEdge(self.dut.clk)
            if not int(self.dut.busy.value):
                break
        self.finished = int(get_sim_time("ns")) // PERIOD
        assert not self.writes
        assert not self.signals
        await RisingEdge(self.dut.clk)
        await RisingEdge(self.dut.clk)
        assert (self.scratchpad == self.memory.scratchpad).all()

    def draw(self, **given):
        """A random instruction that does not overwrite what it reads, in the state of memory now."""
        while True:
            vec = random_vec(self.rng, self.config, **given)
            if Model(self.memory, vec).safe():
                return vec


@cocotb.test()
async def bench_random(dut):
    bench = Bench(dut, refuse=0.3)
    await bench.start()
    for _ in range(80):
        await bench.run([bench.draw()])
    assert bench.stalls


@cocotb.test()
async def bench_bounds(dut):
    """Coordinates are signed: negative ones are out of range even below a bound that they pass as unsigned."""
    bench = Bench(dut, refuse=0.0)
    await bench.start()
    one = dict.fromkeys(("ob", "oy", "ox", "ry", "rx"), 1)
    plain = {"source": Source.ACCUMULATOR, "add": 0, "reduce": Reduce.NONE, "low": -128, "high": 127}
    for axis, bound, other, other_bound in (("y", "h", "x", "w"), ("x", "w", "y", "h")):
        for value in (0, 1, 32767, -1, -32768):
            for limit in (1, 2, 32767, 32768, 65535):
                at = {axis: value, bound: limit, other: 0, other_bound: 1}
                await bench.run([bench.draw(**one, **plain, **at)])


@cocotb.test()
async def bench_queue(dut):
    """Several instructions waiting, each reading what the one before it wrote."""
    bench = Bench(dut, refuse=0.0)
    await bench.start()
    for _ in range(10):
        bench.refuse = bench.rng.choice((0.0, 0.5))
        # Every instruction writes a region of its own, so that none overwrites what it reads.
        at = BLOCKS * PARAMETER_VECTORS + 200
        walk = {"dst_ob": 16, "dst_oy": 4, "dst_ox": 1}
        vecs = [bench.draw(source=Source.ACCUMULATOR, dst=at, **walk)]
        for _ in range(6):
            before = vecs[-1]
            chain = {f"src_{loop}": getattr(before, f"dst_{loop}") for loop in ("ob", "oy", "ox")}
            chain |= {loop: getattr(before, loop) for loop in ("ob", "oy", "ox")}
            at += 100
            chained = Vec(
                source=Source.SCRATCHPAD, src=before.dst, params=BLOCKS // 2 * PARAMETER_VECTORS, dst=at,
                signal=bench.rng.randrange(1, 1 << 16), **walk, **chain,
            )  # fmt: skip
            vecs.append(chained)
        await bench.run(vecs, gaps=bench.rng.choice((0.0, 0.9)))


@cocotb.test()
async def bench_throughput(dut):
    """A cycle for each read, and a constant."""
    bench = Bench(dut, refuse=0.0)
    await bench.start()
    for source in Source:
        for given, reads in (
            ({"ox": 1}, 1), ({"ox": 40}, 1), ({"ox": 5, "oy": 2, "src_oy": 5, "dst_oy": 5}, 1),
            ({"ox": 9, "rx": 3, "src_rx": 1, "reduce": Reduce.MAX}, 3),
            ({"ox": 9, "add": 1, "b_mantissa": 1 << 13}, None),
        ):  # fmt: skip
            vec = dense_vec(bench.rng, bench.config, source=source, h=1, w=1, **given)
            bench.accepted = []
            models = await bench.run([vec, vec])
            groups = bench.config.groups
            cycles = vec.ox * vec.oy * (groups * reads if reads else groups + 1)
            assert models[0].steps == cycles
            assert bench.accepted[1] - bench.accepted[0] == cycles + OVERHEAD
            assert bench.finished - bench.accepted[1] <= cycles + OVERHEAD + 3
    assert not bench.stalls


@pytest.mark.parametrize("name", CONFIGS)
def test_vec(name):
    config = CONFIGS[name]
    run_bench(VecUnit(config), parameters={"config": config.to_dict()})
