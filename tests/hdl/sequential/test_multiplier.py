"""The multiplier against Python's integers."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge
from support.unit_bench import start

from weft.hdl.sequential.multiplier import Multiplier
from weft.sim.rtl.bench import bench_parameters, run_bench


async def strobe(dut: Any, name: str, **inputs: int) -> None:
    for pin, value in inputs.items():
        getattr(dut, pin).value = value
    getattr(dut, name).value = 1
    await FallingEdge(dut.clk)
    getattr(dut, name).value = 0


async def run(dut: Any, a: int, b: int, shift: int, keep: bool) -> int:
    """Returns how many cycles it took."""
    await strobe(dut, "set_multiplicand", value=a & 0xFFFFFFFF)
    await strobe(dut, "set_shift", shift=shift)
    for _ in range(random.randrange(3)):  # nothing moves before the start
        await FallingEdge(dut.clk)
    dut.keep.value = keep
    await strobe(dut, "start", value=b)
    cycles = 0
    while not dut.ready.value:
        await FallingEdge(dut.clk)
        cycles += 1
    return cycles


def nearest(value: int, shift: int) -> int:
    low, rest = value >> shift, value & (1 << shift) - 1
    half = 1 << shift >> 1
    return low + (shift > 0 and (rest > half or (rest == half and low & 1)))


@cocotb.test()
async def bench_multiplier(dut: Any) -> None:
    bits = bench_parameters()["bits"]
    names = ("value", "set_multiplicand", "set_shift", "shift", "start", "keep", "raw")
    await start(dut, **dict.fromkeys(names, 0))
    for _ in range(600):
        a = random.choice([random.randrange(-(1 << 31), 1 << 31), random.randrange(-300, 300), -(1 << 31)])
        b = random.choice([random.randrange(1 << bits), 1, (1 << bits) - 1])
        shift = random.choice([0, random.randrange(64), random.randrange(12)])
        product = a * b
        if keep := random.random() < 0.4:
            first = (random.randrange(-255, 256), random.randrange(1 << bits))
            await run(dut, *first, 0, False)
            product += first[0] * first[1]
        cycles = await run(dut, a, b, shift, keep)
        assert cycles == bits + shift // 8 + shift % 8 + 1
        low = product >> shift
        fits = -(1 << 30) <= low < 1 << 30
        dut.raw.value = 0
        await FallingEdge(dut.clk)
        found = dut.result.value.to_signed() + int(dut.round.value)
        assert found == (nearest(product, shift) if fits else (1 << 30 if low >= 0 else -(1 << 30)))
        dut.raw.value = 1
        await FallingEdge(dut.clk)
        up = (product + (1 << shift >> 1)) >> shift
        assert (int(dut.result.value) + int(dut.round.value) - up) % (1 << 32) == 0


def test_16_bits() -> None:
    run_bench(Multiplier(16), parameters={"bits": 16})


def test_24_bits() -> None:
    run_bench(Multiplier(24), parameters={"bits": 24})
