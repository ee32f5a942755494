"""The kernel engine inside the vector unit against a model written from the docstrings of `weft.hdl.isa.kernel`."""

import cocotb
import pytest
from support.kernel_model import (
    KernelModel,
    MicrocodeModel,
    microcode,
    random_instruction,
    random_kernel,
)
from support.vec_bench import Bench, Model, model, random_lookup, random_vec

from weft.hdl.isa import Kernel, Microcode, MicroOp
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.kernel import Op
from weft.hdl.isa.operands import KERNEL_LATENCY, kernel_min_cycles
from weft.hdl.vector.vec import VecUnit
from weft.sim.rtl.bench import run_bench

TINY = PRESETS["tiny"].replace(kernel=64)
CONFIGS = {
    "two lanes of four": TINY,
    "all lanes": TINY.replace(lanes=4, lookup_tables=8, kernel=256),
    "smallest": TINY.replace(n=2, lanes=1, mantissa_bits=16, lookup_tables=1, probability_bits=0, multiply=0),
    "one lane of eight": TINY.replace(n=8, lanes=1, bus_bytes=8, lookup_tables=0),
    "two lanes of sixteen": TINY.replace(n=16, lanes=2, bus_bytes=16),
}
OVERHEAD = KERNEL_LATENCY + 3
"""Cycles from accepting a kernel to accepting the next instruction, beside its slots and `kernel_min_cycles` before
them: one to begin, two through the skid buffer and the request."""
MOST = 20_000
"""Cycles of a kernel at most: reciprocals of many elements take long."""


def either(memory, instruction):
    """The model of any instruction that needs no softmax."""
    if isinstance(instruction, Kernel):
        return KernelModel(memory, instruction)
    if isinstance(instruction, Microcode):
        return MicrocodeModel(memory, instruction)
    return model(memory, instruction)


class KernelBench(Bench):
    def __init__(self, dut, refuse):
        super().__init__(dut, refuse)
        self.model = either
        self.memory.kernel = [0] * self.config.kernel

    async def kernel(self, reads, writes):
        """Put a random kernel somewhere; returns its start."""
        ops = random_kernel(self.rng, self.config, reads, writes)
        start = self.rng.randrange(self.config.kernel - len(ops) + 1)
        await self.run(microcode(ops, start, signal=self.rng.randrange(1, 1 << 16)))
        return start

    def draw(self, start, reads, writes):
        while True:
            instruction = random_instruction(self.rng, self.config, start, reads, writes)
            model = KernelModel(self.memory, instruction)
            if model.safe() and model.steps < MOST:
                return instruction


@cocotb.test()
async def bench_random(dut):
    bench = KernelBench(dut, refuse=0.3)
    await bench.start()
    for _ in range(25):
        bench.refuse = bench.rng.choice((0.0, 0.3, 0.8))
        reads = [number for number in range(8) if bench.rng.random() < 0.5] or [0]
        writes = [number for number in range(4) if bench.rng.random() < 0.5] or [0]
        start = await bench.kernel(reads, writes)
        await bench.run([bench.draw(start, reads, writes)])
    assert bench.stalls


@cocotb.test()
async def bench_saturated(dut):
    """Low bytes of products of full-range sums, most of which are saturated and lose bits that would round up."""
    bench = KernelBench(dut, refuse=0.2)
    await bench.start()
    for _ in range(12):
        factor, shift = bench.rng.randrange(-(1 << 17), 1 << 17), bench.rng.randrange(1, 20)
        ops = [
            MicroOp(op=Op.MUL, a_memory=1, b_immediate=1, immediate=factor, shift=shift, d=1),
            MicroOp(op=Op.ADD, a=1, b_immediate=1, shift=24, d=2),
            MicroOp(op=Op.MUL, a=2, b_immediate=1, immediate=1, shift=24, d_memory=1, end=1),
        ]
        await bench.run(microcode(ops, 0, signal=1))
        while (instruction := bench.draw(0, [0], [0])).source:
            pass
        await bench.run([instruction])


@cocotb.test()
async def bench_between(dut):
    """Other instructions before and after kernels; each may read its predecessor's results."""
    bench = KernelBench(dut, refuse=0.2)
    await bench.start()
    for _ in range(8):
        start = await bench.kernel([0, 1], [0])
        queue = []
        for _ in range(bench.rng.randrange(2, 5)):
            while True:
                vec = random_vec(bench.rng, bench.config)
                if Model(bench.memory, vec).safe():
                    break
            kind = bench.rng.randrange(3)
            if kind == 2 and bench.config.lookup_tables:
                queue.append(random_lookup(bench.rng, bench.config))
            else:
                queue.append(vec if kind else bench.draw(start, [0, 1], [0]))
        # The ones before change what the later ones read, so that not all are safe any more.
        for instruction in queue:
            if either(bench.memory, instruction).safe():
                await bench.run([instruction], gaps=bench.rng.choice((0.0, 0.9)))


@cocotb.test()
async def bench_queue(dut):
    """A kernel that reads what the one before it wrote, without a gap."""
    bench = KernelBench(dut, refuse=0.0)
    await bench.start()
    ops = [MicroOp(op=Op.ADD, a_memory=1, b_immediate=1, immediate=3, d_memory=1, end=1)]
    await bench.run(microcode(ops, 5, signal=1))
    base = bench.memory.reserved
    chain = [
        Kernel(
            source=1, start=5, oy=3, src=base + 4 * k, src_oy=1, dst=base + 4 * k + 4, dst_oy=1, signal=k + 1
        )
        for k in range(6)
    ]
    await bench.run(chain)


@cocotb.test()
async def bench_in_place(dut):
    """Results where the operand was."""
    bench = KernelBench(dut, refuse=0.3)
    await bench.start()
    ops = [
        MicroOp(op=Op.MAX, a_memory=1, b_immediate=1, d=0),
        MicroOp(op=Op.MUL, a=0, b_immediate=1, immediate=77, shift=5, d_memory=1, again=1, target=0, end=1),
    ]
    await bench.run(microcode(ops, 0, signal=1))
    at = {
        "src": bench.memory.reserved,
        "src_oy": 5,
        "src_ox": 1,
        "dst": bench.memory.reserved,
        "dst_oy": 5,
        "dst_ox": 1,
    }
    await bench.run([Kernel(source=1, oy=19, ox=5, signal=3, **at)])


@cocotb.test()
async def bench_reciprocals(dut):
    """Every bit of reciprocals and inverse roots of numbers of all sizes and signs, element by element and for rows."""
    bench = KernelBench(dut, refuse=0.0)
    await bench.start()
    rows = bench.memory.accumulator
    rows[:] = [
        [bench.rng.getrandbits(32) - (1 << 31) >> bench.rng.randrange(32) for _ in row] for row in rows
    ]
    rows[0], rows[1] = 0, -(1 << 31)
    bench.accumulator[:] = rows
    parts = [
        MicroOp(op=Op.ADD, a=0, shift=24, b_immediate=1, d=1),
        MicroOp(op=Op.MUL, a=1, shift=24, floor=1, b_immediate=1, immediate=1, d_memory=1),
        MicroOp(op=Op.ADD, a=0, shift=16, b_immediate=1, d=1),
        MicroOp(op=Op.MUL, a=1, shift=24, floor=1, b_immediate=1, immediate=1, d_memory=1, d=2),
        MicroOp(op=Op.ADD, a=0, shift=8, b_immediate=1, d=1),
        MicroOp(op=Op.MUL, a=1, shift=24, floor=1, b_immediate=1, immediate=1, d_memory=1, d=1, end=1),
    ]
    at = bench.memory.reserved
    places = {
        "src_oy": 1,
        "dst": at,
        "dst_oy": 3,
        "dst2": at + 2,
        "dst2_oy": 3,
        "with_dst2": 1,
        "dst_vectors": 2,
    }
    for op in (Op.RECIPROCAL, Op.RSQRT):
        for uniform in (0, 1):
            first = MicroOp(op=op, a_memory=1, unsigned=uniform, d=0)
            await bench.run(microcode([first, *parts], 0, signal=1))
            await bench.run([Kernel(oy=min(30, len(rows)), signal=1, **places)])


@cocotb.test()
async def bench_throughput(dut):
    """A cycle for each lane group of each row, and a constant."""
    bench = KernelBench(dut, refuse=0.0)
    await bench.start()
    for oy, ox in ((1, 1), (8, 1), (16, 3), (17, 2), (40, 4)):
        place = {"dst": bench.memory.reserved + 20, "dst_oy": 1, "signal": 1}
        instruction = Kernel(source=1, oy=oy, ox=ox, with_b=1, **place)
        while True:
            ops = random_kernel(bench.rng, bench.config, [0, 1], [0])
            await bench.run(microcode(ops, 0, signal=1))
            if KernelModel(bench.memory, instruction).steps < MOST:
                break
        bench.accepted = []
        models = await bench.run([instruction, instruction])
        taken = bench.accepted[1] - bench.accepted[0]
        assert taken == models[0].steps + kernel_min_cycles(bench.config.groups) + OVERHEAD + _idle(
            bench, ops, oy
        )


def _idle(bench, ops, oy):
    """Slots of the last micro-operation after its last issue do not count."""
    rows = (oy - 1) % 8 + 1
    groups = bench.config.groups
    return -max(0, kernel_min_cycles(groups) - rows * groups)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", CONFIGS)
def test_kernel(name):
    config = CONFIGS[name]
    run_bench(VecUnit(config), parameters={"config": config.to_dict()})
