"""Memories and ports around the vector unit, and models of `Vec` and `Lookup` written from their docstrings."""

from __future__ import annotations

import random
from collections import deque

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from cocotb.utils import get_sim_time

from support.softmax_model import half_even, wrap
from support.unit_bench import PERIOD, start
from weft.hdl.isa import PARAMETER_VECTORS, Lookup, Reduce, Source, Vec
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.operands import READ_LATENCY
from weft.sim.rtl.bench import bench_parameters

BLOCKS = 8
"""Parameter blocks at the start of the scratchpad; the second half has shifts for scratchpad sources."""


class Memory:
    """Scratchpad and accumulator as arrays of int8 and int32, and look-up tables' entries, initially unknown."""

    reserved = BLOCKS * PARAMETER_VECTORS
    """Vectors at the start of the scratchpad that instructions must not write."""

    def __init__(self, config, rng):
        source = np.random.default_rng(rng.getrandbits(32))
        self.config = config
        self.scratchpad = source.integers(-128, 128, (config.scratchpad_size, config.n)).astype(np.int8)
        rows = source.integers(-(1 << 20), 1 << 20, (config.accumulator_size, config.n))
        wild = source.integers(-(1 << 31), 1 << 31, rows.shape)
        self.accumulator = np.where(source.random(rows.shape) < 0.1, wild, rows).astype(np.int32)
        self.lookups = [[None] * LOOKUP_ENTRIES for _ in range(config.lookup_tables)]
        for block in range(BLOCKS):
            self.block(rng, block, 0 if block >= BLOCKS // 2 else 13)

    def block(self, rng, block, extra):
        """Draw parameters, with shifts that divide by about ``2**extra``."""
        bits = self.config.mantissa_bits
        for column in range(self.config.n):
            bias = rng.randrange(-3000, 3000) if rng.random() < 0.8 else rng.randrange(-(1 << 31), 1 << 31)
            mantissa = rng.randrange(1 << (bits - 3), 1 << bits)
            shift = bits + extra + rng.randrange(-2, 4)
            word = (
                (bias & 0xFFFFFFFF)
                | mantissa << 32
                | (shift if rng.random() < 0.9 else rng.randrange(64)) << 56
            )
            planes = np.frombuffer(word.to_bytes(8, "little"), np.int8)
            self.scratchpad[block * PARAMETER_VECTORS : (block + 1) * PARAMETER_VECTORS, column] = planes

    def parameters(self, address):
        """Return (bias, mantissa, shift) of every column."""
        block = self.scratchpad[address : address + PARAMETER_VECTORS]
        words = [int.from_bytes(block[:, column].tobytes(), "little") for column in range(self.config.n)]
        return [(wrap(w & 0xFFFFFFFF, 32), w >> 32 & 0xFFFFFF, w >> 56 & 63) for w in words]


class Model:
    """Reads, writes and cycles of one instruction; leaves memory unchanged."""

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
        """Return whether no write touches a read address, another write, or a parameter block."""
        targets = [address for address, _ in self.writes]
        used = {address for kind, address in self.read if kind == "s"}
        return (
            len(set(targets)) == len(targets)
            and used.isdisjoint(targets)
            and min(targets) >= self.memory.reserved
        )

    def apply(self):
        for address, values in self.writes:
            self.memory.scratchpad[address] = values

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
            # Not read again where it must equal the previous output's.
            self.steps += bool(vec.b_ox or (ox == 0 and (vec.b_oy or oy == 0)))
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
        other = second - vec.b_zero
        if vec.multiply:
            reduced = (reduced - vec.pad) * other
        value = wrap(reduced + bias, 32)
        added = vec.add and not vec.multiply
        product = value * mantissa + added * (-other if vec.subtract else other) * vec.b_mantissa
        result = min(max(half_even(product, shift) + vec.zero, vec.low), vec.high)
        return self.memory.lookups[vec.table][result + 128] if vec.lookup else result


class LookupModel:
    """Writes of LOOKUP to a table, with the interface of `Model`."""

    def __init__(self, memory, lookup):
        self.memory, self.lookup = memory, lookup
        addresses = [(lookup.src + k) % memory.config.scratchpad_size for k in range(lookup.vectors)]
        self.read = {("s", address) for address in addresses}
        self.entries = [int(value) for address in addresses for value in memory.scratchpad[address]]
        self.writes = []
        self.steps = len(self.entries)

    def safe(self):
        return True

    def apply(self):
        entry = self.lookup.entry
        self.memory.lookups[self.lookup.table][entry : entry + len(self.entries)] = self.entries


def model(memory, instruction):
    """Return the model of an instruction that needs no softmax."""
    return {Vec: Model, Lookup: LookupModel}[type(instruction)](memory, instruction)


def random_use(rng, config):
    """Draw fields of a `Vec` that may use a look-up table."""
    if not config.lookup_tables:
        return {}
    return {"lookup": rng.randrange(2), "table": rng.randrange(config.lookup_tables)}


def random_vec(rng, config, **given):
    """Draw any instruction: dense or arbitrary strides, windows that leave the picture."""

    def stride(*dense):
        return rng.choice(dense) if rng.random() < 0.7 else rng.randrange(-(1 << 15), 1 << 15)

    multiply = config.multiply and not given and rng.random() < 0.25
    source = Source.SCRATCHPAD if multiply else rng.randrange(2)
    reduce = Reduce.NONE if multiply else rng.choice(list(Reduce))
    block = rng.randrange(BLOCKS // 2) + (BLOCKS // 2 if source == Source.SCRATCHPAD else 0)
    fields = {
        "source": source, "reduce": reduce, "add": int(multiply) or rng.randrange(2),
        "multiply": int(multiply), "subtract": config.multiply and rng.randrange(2),
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
    return Vec(**(fields | random_use(rng, config) | given))


def random_lookup(rng, config):
    """Draw some entries of any table."""
    vectors = rng.randrange(1, min(LOOKUP_ENTRIES // config.n, 8) + 1)
    return Lookup(
        src=rng.randrange(1 << 16), vectors=vectors, table=rng.randrange(config.lookup_tables),
        entry=rng.randrange(LOOKUP_ENTRIES - vectors * config.n + 1), signal=rng.randrange(1, 1 << 16),
    )  # fmt: skip


def no_reads():
    """Yield a port's outputs, edge by edge, while it grants nothing."""
    return deque([None] * (READ_LATENCY - 1))


class Port:
    """The signals of a read port."""

    def __init__(self, dut, name):
        self.valid, self.ready, self.address, self.data = (
            getattr(dut, f"{name}__{member}") for member in ("valid", "ready", "address", "data")
        )


class Bench:
    def __init__(self, dut, refuse):
        self.dut, self.refuse = dut, refuse
        self.ports = {name: Port(dut, name) for name in ("accumulator", "scratchpad")}
        self.config = Config.from_dict(bench_parameters()["config"])
        self.rng = random.Random(random.getrandbits(32))
        self.memory = Memory(self.config, self.rng)
        self.scratchpad, self.accumulator = self.memory.scratchpad.copy(), self.memory.accumulator.copy()
        self.writes, self.signals, self.accepted = [], [], []
        self.model = model
        self.stalls = 0

    async def start(self):
        await start(self.dut, edge=RisingEdge, instruction__valid=0, write__ready=1)
        cocotb.start_soon(self.reads("accumulator", self.accumulator))
        cocotb.start_soon(self.reads("scratchpad", self.scratchpad))
        cocotb.start_soon(self.results())
        for table in range(self.config.lookup_tables):
            vectors = LOOKUP_ENTRIES // self.config.n
            src = self.rng.randrange(1 << 16)
            await self.run([Lookup(src=src, vectors=vectors, table=table, signal=1)])

    async def reads(self, name, memory):
        """Serve a memory port that refuses at random, and shows data in one cycle only."""
        port, width = self.ports[name], memory[0].nbytes * 8
        coming = no_reads()
        while True:
            granting = self.rng.random() >= self.refuse
            port.ready.value = int(granting)
            await RisingEdge(self.dut.clk)
            data = None
            if granting and int(port.valid.value):
                data = int.from_bytes(memory[int(port.address.value)].tobytes(), "little")
            coming.append(data)
            data = coming.popleft()
            port.data.value = self.rng.getrandbits(width) if data is None else data

    async def results(self):
        """Compare writes and signals with the expected ones, in order; apply writes to memory a cycle later."""
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

    async def run(self, vecs, gaps=0.0, pause=0):
        """Run instructions in order, each offered after its cycles and gaps; return their models."""
        models, written = [], 0
        for vec in vecs:
            model = self.model(self.memory, vec)
            model.apply()
            self.writes += [(vec, *write) for write in model.writes]
            written += len(model.writes)
            self.signals.append((vec.signal, written))
            models.append(model)
        self.total_writes = written
        dut = self.dut
        for vec in vecs:
            for _ in range(pause):
                await RisingEdge(dut.clk)
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
        """Wait until the unit is idle; all expected results must have arrived by then."""
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
