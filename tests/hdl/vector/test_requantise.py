"""The requantisation pipeline against Python integers: every rounding, saturating and wrapping corner."""

import random

import cocotb
import pytest
from amaranth.hdl import unsigned
from cocotb.triggers import RisingEdge
from cocotb.utils import get_sim_time
from support.families import multipliers
from support.unit_bench import PERIOD, start

from weft.hdl.isa import Reduce
from weft.hdl.isa.config import PRESETS
from weft.hdl.vector.requantise import LATENCY, column_layout, requantiser, settings_layout
from weft.sim.rtl.bench import bench_parameters, run_bench

CONFIG = PRESETS["small"].replace(lanes=4)
TAG_BITS = 12
INT32 = (-(1 << 31), (1 << 31) - 1)


def wrap(value):
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def half_even(value, shift):
    quotient, rest = value >> shift, value & ((1 << shift) - 1)
    twice = 2 * rest - (1 << shift)
    return quotient + (1 if twice > 0 or (twice == 0 and quotient & 1) else 0)


def expected(settings, elements, second, column):
    """Return one column's result, by the docstring of `weft.hdl.isa.Vec`."""
    reduced = {
        Reduce.NONE: lambda: elements[-1],
        Reduce.MAX: lambda: max(elements),
        Reduce.SUM: lambda: sum(elements),
    }
    value = wrap(wrap(reduced[settings["reduce"]]()) + column["bias"])
    product = value * column["mantissa"]
    if settings["add"]:
        other = (second - settings["b_zero"]) * settings["b_mantissa"]
        product += -other if settings["subtract"] else other
    result = half_even(product, column["shift"]) + settings["zero"]
    return min(max(result, settings["low"]), settings["high"])


def edge(rng, low, high):
    """Anything from low to high, often near an end, near zero, or a power of two."""
    kind = rng.randrange(6)
    if kind == 0:
        value = rng.choice((low, high, 0, 1, -1, low + 1, high - 1))
    elif kind == 1:
        value = rng.choice((-1, 1)) * (1 << rng.randrange(max(high.bit_length(), 1))) + rng.randrange(-1, 2)
    elif kind == 2:
        value = rng.randrange(-300, 301)
    else:
        value = rng.randint(low, high)
    return min(max(value, low), high)


def random_settings(rng, mantissa_bits):
    low, high = sorted((edge(rng, -128, 127), edge(rng, -128, 127)))
    if rng.random() < 0.6:
        low, high = -128, 127
    elif rng.random() < 0.1:
        low, high = high, low
    return {
        "reduce": rng.choice(list(Reduce)), "add": rng.randrange(2), "subtract": rng.randrange(2),
        "b_mantissa": edge(rng, 0, (1 << mantissa_bits) - 1),
        "b_zero": edge(rng, -128, 127), "zero": edge(rng, -128, 127), "low": low, "high": high,
    }  # fmt: skip


def random_column(rng, value, mantissa_bits):
    """Parameters that bring the value `value` (bias not yet added) near the int8 range about half of the time."""
    mantissa = edge(rng, 0, (1 << mantissa_bits) - 1)
    bias = edge(rng, *INT32) if rng.random() < 0.5 else edge(rng, -2000, 2000)
    size = abs(wrap(value + bias) * mantissa).bit_length()
    shift = rng.randrange(64) if rng.random() < 0.3 else min(max(size - rng.randrange(-1, 10), 0), 63)
    return {"bias": bias, "mantissa": mantissa, "shift": shift}


def random_lane(rng, settings, count, mantissa_bits):
    elements = [edge(rng, *INT32) if rng.random() < 0.5 else edge(rng, -128, 127) for _ in range(count)]
    column = random_column(rng, elements[-1], mantissa_bits)
    if (
        rng.random() < 0.3
    ):  # a tie, or next to one: (2j + 1) * 2**(s-1) from a mantissa that is a power of two
        shift = rng.randrange(1, 31)
        power = rng.randrange(min(shift, mantissa_bits))
        odd = 2 * rng.randrange(-130, 130) + 1
        target = wrap((odd << (shift - 1 - power)) + rng.choice((0, 0, 0, 1, -1)))
        total = {Reduce.NONE: elements[-1], Reduce.MAX: max(elements), Reduce.SUM: sum(elements)}[
            settings["reduce"]
        ]
        column = {"bias": wrap(target - total), "mantissa": 1 << power, "shift": shift}
    return elements, edge(rng, -128, 127), column


def corner_cases(mantissa_bits):
    """Return (settings, [elements, second, column] per lane) for the corner cases by name."""
    plain = {
        "reduce": Reduce.NONE,
        "add": 0,
        "subtract": 0,
        "b_mantissa": 0,
        "b_zero": 0,
        "zero": 0,
        "low": -128,
        "high": 127,
    }
    top = (1 << mantissa_bits) - 1

    def lanes(*values, bias=0, mantissa=1, shift=0, second=0):
        return [([v], second, {"bias": bias, "mantissa": mantissa, "shift": shift}) for v in values]

    yield plain, lanes(1, 3, 5, -1, shift=1)
    yield plain, lanes(-3, -5, 7, -7, shift=1)
    yield plain, lanes(6, -6, 2, -2, shift=2)
    yield plain, lanes(127, 128, -128, -129)
    yield plain, lanes(255, 256, -256, -257, shift=1)
    yield plain, lanes(*INT32, 0, -1, mantissa=top)
    yield plain, lanes(*INT32, 0, -1, mantissa=top, shift=63)
    yield plain, lanes(*INT32, 1, -1, mantissa=1, shift=32)
    yield plain, lanes(*INT32, 1, -1, mantissa=1, shift=31)
    yield plain, lanes(*INT32, 1, -1, bias=INT32[0], mantissa=top, shift=mantissa_bits + 23)
    yield plain, lanes(*INT32, 1, -1, bias=INT32[1], mantissa=top, shift=mantissa_bits + 23)
    for zero in (-128, 127):
        yield plain | {"zero": zero}, lanes(255, 256, 254, 257)
        yield plain | {"zero": zero}, lanes(-255, -256, -254, -257)
        yield plain | {"zero": zero}, lanes(511, 509, -513, -511, shift=1)
    for zero, second in ((-128, 127), (127, -128)):
        for subtract in range(2):
            both = plain | {"add": 1, "subtract": subtract, "b_mantissa": top, "b_zero": zero}
            yield both, lanes(*INT32, 0, 1, mantissa=top, shift=mantissa_bits + 24, second=second)
            yield both, lanes(*INT32, 0, 1, mantissa=top, second=second)
            yield both, lanes(0, 1, 2, 3, mantissa=0, shift=25, second=second)
    wraps = [([INT32[1], 1], 0, {"bias": 5, "mantissa": 1, "shift": s}) for s in (0, 24, 30, 31)]
    yield plain | {"reduce": Reduce.SUM}, wraps
    yield plain | {"reduce": Reduce.MAX}, [([*INT32], 0, c) for _, _, c in wraps]
    yield plain | {"reduce": Reduce.MAX}, [([INT32[0]] * 2, 0, c) for _, _, c in wraps]
    yield plain, wraps


class Bench:
    def __init__(self, dut):
        self.dut = dut
        self.lanes = CONFIG.lanes
        self.mantissa_bits = bench_parameters()["mantissa_bits"]
        config = CONFIG.replace(mantissa_bits=self.mantissa_bits)
        self.column, self.layout = column_layout(config), settings_layout(config)
        self.awaited = []
        self.serial = bench_parameters()["serial"]

    async def start(self):
        await start(self.dut, edge=RisingEdge, valid=0)
        cocotb.start_soon(self.check())

    def pack(self, values, width):
        return sum((value & ((1 << width) - 1)) << (width * index) for index, value in enumerate(values))

    async def settings(self, settings):
        """Change the settings, once the pipeline is empty."""
        for _ in range(LATENCY + 1):
            await RisingEdge(self.dut.clk)
        await self.result()
        self.dut.settings.value = self.layout.const(settings).as_bits()

    async def result(self):
        """Wait for the last result if they come one by one."""
        while self.serial and self.awaited:
            await RisingEdge(self.dut.clk)

    async def start_reduction(self, rng, settings, lanes, gaps):
        """Start one reduction in every lane: `lanes` is a list of (elements, second, column)."""
        dut, count = self.dut, len(lanes[0][0])
        for index in range(count):
            while rng.random() < gaps:
                dut.valid.value = 0
                dut.elements.value = rng.getrandbits(32 * self.lanes)
                dut.last.value = rng.randrange(2)
                dut.first.value = rng.randrange(2)
                await RisingEdge(dut.clk)
            last = index == count - 1
            if last:
                dut.valid.value = 0
                await self.result()
            dut.valid.value, dut.first.value, dut.last.value = 1, int(index == 0), int(last)
            dut.elements.value = self.pack([elements[index] for elements, _, _ in lanes], 32)
            if last:
                tag = rng.getrandbits(TAG_BITS)
                dut.second.value = self.pack([second for _, second, _ in lanes], 8)
                columns = [self.column.const(column).as_bits() for _, _, column in lanes]
                dut.columns.value = self.pack(columns, self.column.size)
                dut.tag.value = tag
                results = [expected(settings, *lane) for lane in lanes]
                # The edge one period from now takes the element; the result is read at the edge LATENCY after that.
                time = get_sim_time("ns") + PERIOD * (1 + LATENCY)
                self.awaited.append((time, tag, results, settings, lanes))
            await RisingEdge(dut.clk)
        dut.valid.value = 0

    async def check(self):
        while True:
            await RisingEdge(self.dut.clk)
            if int(self.dut.result_valid.value):
                assert self.awaited, "a result that nobody asked for"
                time, tag, results, settings, lanes = self.awaited.pop(0)
                word = int(self.dut.results.value)
                got = [((word >> (8 * lane)) + 128) % 256 - 128 for lane in range(self.lanes)]
                assert got == results, f"got {got}, expected {results} for {settings} {lanes}"
                assert int(self.dut.result_tag.value) == tag
                if self.serial:
                    cycles = self.mantissa_bits * (1 + settings["add"])
                    cycles += max(sum(divmod(column["shift"], 8)) for _, _, column in lanes) + 4
                    time += PERIOD * (cycles - LATENCY)
                assert abs(get_sim_time("ns") - time) < PERIOD / 4, "wrong latency"


@cocotb.test()
async def bench_directed(dut):
    bench = Bench(dut)
    await bench.start()
    rng = random.Random(random.getrandbits(32))
    for settings, lanes in corner_cases(bench.mantissa_bits):
        await bench.settings(settings)
        await bench.start_reduction(rng, settings, lanes, gaps=0)
    await bench.settings(settings)
    assert not bench.awaited


@cocotb.test()
async def bench_random(dut):
    bench = Bench(dut)
    await bench.start()
    rng = random.Random(random.getrandbits(32))
    for _ in range(60):
        settings = random_settings(rng, bench.mantissa_bits)
        gaps = rng.choice((0, 0, 0.3))
        await bench.settings(settings)
        for _ in range(60):
            count = rng.choice((1, 1, 2, 3, 9))
            lanes = [random_lane(rng, settings, count, bench.mantissa_bits) for _ in range(bench.lanes)]
            await bench.start_reduction(rng, settings, lanes, gaps)
    await bench.settings(settings)
    assert not bench.awaited


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("mantissa_bits", "family"),
    [(24, "generic"), (16, "generic"), (24, "ice40"), (16, "ice40")],
)
def test_requantise(mantissa_bits, family):
    config = CONFIG.replace(mantissa_bits=mantissa_bits)
    if family == "ice40":
        config = config.replace(probability_bits=0)
    component = requantiser(config, unsigned(TAG_BITS), multipliers(family))
    run_bench(component, parameters={"mantissa_bits": mantissa_bits, "serial": component.serial})
