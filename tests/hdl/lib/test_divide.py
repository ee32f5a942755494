"""The divider of Normalise against Python integers."""

import random

import cocotb
from cocotb.triggers import FallingEdge
from support.softmax_model import divide, wrap
from support.unit_bench import start

from weft.hdl.isa.operands import DIVISION_LATENCY
from weft.hdl.lib.arithmetic import LEAD, Divider
from weft.sim.rtl.bench import run_bench

CORNERS = [
    0, 1, 2, 3, 127, 128, 255, 256, 65280, (1 << 16) - 1, 1 << 16, (1 << 17) - 1, 1 << 17, (1 << 17) + 1,
    (1 << 24) - 129, (1 << 31) - 1, 1 << 31, (1 << 32) - 129, (1 << 32) - 128, (1 << 32) - 1,
]  # fmt: skip


class Bench:
    """Rows that follow `step`, sums two cycles later, and results read in order."""

    def __init__(self, dut):
        self.dut = dut
        self.rng = random.Random(random.getrandbits(32))

    async def begin(self):
        names = ("start", "row", "issue", "take", "sum", "scale", "exponent", "v_zero")
        await start(self.dut, **dict.fromkeys(names, 0))

    async def run(self, sums, scale, exponent, v_zero, patience):
        """Divide for all `sums`; returns cycles. After `issue`, `take` waits up to `patience` cycles more."""
        dut, row, seen, taken, cycles = self.dut, 0, [None, None], 0, 0
        dut.start.value = 1
        due = None  # cycles until the take of what was issued
        issued = 0
        await FallingEdge(dut.clk)
        dut.start.value = 0
        dut.scale.value, dut.exponent.value = scale, exponent & 0x7F
        dut.v_zero.value = v_zero & 0xFF
        while taken < len(sums):
            dut.row.value = int(row < len(sums))
            stale = seen.pop(0)
            dut.sum.value = self.rng.getrandbits(32) if stale is None else sums[stale]
            seen.append(row if row < len(sums) else None)
            dut.take.value = int(due == 0)
            if due == 0:
                self.compare(divide(sums[taken], scale, exponent, v_zero))
                taken += 1
            due = None if due in (None, 0) else due - 1
            dut.issue.value = 0
            await self.settle()
            # No row may be issued twice, or before its division.
            assert not int(dut.ready.value) or issued < row
            if int(dut.ready.value) and due is None and self.rng.random() < 1 / (1 + patience):
                dut.issue.value = 1
                issued += 1
                due = LEAD - 1 + self.rng.randrange(patience + 1)
                await self.settle()
            if int(dut.step.value):
                row += 1
            await FallingEdge(dut.clk)
            cycles += 1
            assert cycles < (100 + 20 * patience) * (len(sums) + 1)
        dut.take.value = 0
        return cycles

    async def settle(self):
        await cocotb.triggers.Timer(500, "ps")

    def compare(self, expected):
        word, (mantissa, shift, z) = int(self.dut.result.value), expected
        got = (word & 0xFFFF, wrap(word >> 16, 8), word >> 24)
        assert got == (mantissa, shift, -z % (1 << 32)), f"{got}, expected {expected}"


@cocotb.test()
async def bench_corners(dut):
    bench = Bench(dut)
    await bench.begin()
    for scale in (1 << 15, (1 << 15) + 1, 50000, (1 << 16) - 1):
        for exponent, v_zero in ((-64, -128), (63, 127), (0, 0), (5, -1), (-7, 1)):
            await bench.run(CORNERS, scale, exponent, v_zero, patience=bench.rng.choice((0, 5)))


@cocotb.test()
async def bench_random(dut):
    bench = Bench(dut)
    await bench.begin()
    for _ in range(60):
        count = bench.rng.choice((1, 2, 5, 30))
        sums = [bench.rng.getrandbits(bench.rng.randrange(33)) for _ in range(count)]
        scale = bench.rng.randrange(1 << 15, 1 << 16)
        exponent, v_zero = bench.rng.randrange(-64, 64), bench.rng.randrange(-128, 128)
        await bench.run(sums, scale, exponent, v_zero, patience=bench.rng.choice((0, 0, 2, 30)))


@cocotb.test()
async def bench_throughput(dut):
    """Back-to-back divisions while sums need few shifts: DIVISION_LATENCY cycles and one to start."""
    bench = Bench(dut)
    await bench.begin()
    for size in (32, 31, 24):
        cycles = await bench.run([(1 << size) - 1] * 50, 40000, 3, -5, patience=0)
        assert cycles <= 50 * (DIVISION_LATENCY + 1) + 15


def test_divide():
    run_bench(Divider())
