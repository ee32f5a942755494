"""The multiplier against Python's integers."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import pytest
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
    dut.keep.value = keep
    if random.random() < 0.5 or (bench_parameters()["signed"] and dut.wide.value):
        await strobe(dut, "set_shift", shift=shift)
        for _ in range(random.randrange(3)):  # nothing moves before the start
            await FallingEdge(dut.clk)
        shift = 0
    await strobe(dut, "start", value=b, shift=shift)
    cycles = 0
    while not dut.ready.value:
        await FallingEdge(dut.clk)
        cycles += 1
    return cycles


def nearest(value: int, shift: int) -> int:
    low, rest = value >> shift, value & (1 << shift) - 1
    half = 1 << shift >> 1
    return low + (shift > 0 and (rest > half or (rest == half and low & 1)))


def saturated(value: int) -> int:
    return min(max(value, -(1 << 31)), (1 << 31) - 1)


@cocotb.test()
async def bench_signed(dut: Any) -> None:
    """The multiplier is signed, and results have 32 bits; in between are others."""
    digits, signed_bits = bench_parameters()["digits"], bench_parameters()["signed"]
    if not signed_bits:
        return
    names = ("value", "set_multiplicand", "set_shift", "shift", "start", "keep", "raw", "wide")
    await start(dut, **dict.fromkeys(names, 0))
    half = 1 << signed_bits - 1
    extremes = (-half, half - 1, -1, 0, 1)
    for _ in range(600):
        a = random.choice([random.randrange(-(1 << 31), 1 << 31), random.randrange(-300, 300), -(1 << 31)])
        b = random.choice([random.randrange(-half, half), random.choice(extremes), random.randrange(-99, 99)])
        shift = random.choice([0, random.randrange(64), random.randrange(12)])
        if random.random() < 0.4:  # near 2**31, which rounding may reach, and near -2**31
            shift = random.randrange(signed_bits - 3)
            b = random.randrange(1 << shift, min(half, 4 << shift)) + 1
            a = ((1 << 31 + shift) - random.choice((1, -b))) // b * random.choice((1, -1))
            b = min(b, half - 1)
            a = min(max(a, -(1 << 31)), (1 << 31) - 1)
        dut.wide.value = 1
        # Bits above the multiplier's are anything.
        given = b & (1 << signed_bits) - 1 | random.getrandbits(32 - signed_bits) << signed_bits
        cycles = await run(dut, a, given, shift, False)
        assert cycles == digits + shift // 8 + shift % 8 // 2 + shift % 2 + 1
        assert dut.result.value.to_signed() == saturated(a * b >> shift)
        found = dut.result.value.to_signed() + int(dut.round.value)
        assert found == saturated(nearest(a * b, shift))
        dut.wide.value = 0
        await run(dut, 77, 5, 0, False)
        assert dut.result.value.to_signed() == 385


@cocotb.test()
async def bench_multiplier(dut: Any) -> None:
    digits = bench_parameters()["digits"]
    limit = 1 << bench_parameters()["unsigned"]
    names = ("value", "set_multiplicand", "set_shift", "shift", "start", "keep", "raw")
    wide = {"wide": 0} if bench_parameters()["signed"] else {}
    await start(dut, **dict.fromkeys(names, 0), **wide)
    for _ in range(600):
        a = random.choice([random.randrange(-(1 << 31), 1 << 31), random.randrange(-300, 300), -(1 << 31)])
        b = random.choice([random.randrange(limit), 1, limit - 1])
        shift = random.choice([0, random.randrange(64), random.randrange(12)])
        product = a * b
        if keep := random.random() < 0.4:
            first = (random.randrange(-255, 256), random.randrange(limit))
            await run(dut, first[0] * (1 + shift % 2), first[1], 0, False)
            product += first[0] * first[1]  # half of it with an odd shift
        # Bits above the multiplier's are anything.
        above = random.getrandbits(32) // limit * limit
        cycles = await run(dut, a, b | above, shift, keep)
        assert cycles == digits + shift // 8 + shift % 8 // 2 + shift % 2 + 1
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


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("unsigned", "signed"), [(16, 0), (24, 0), (16, 18), (24, 18)])
def test_multiplier(unsigned: int, signed: int) -> None:
    digits = {16: 9, 18: 10, 24: 13}[max(unsigned, signed)]
    run_bench(
        Multiplier(unsigned, signed), parameters={"digits": digits, "unsigned": unsigned, "signed": signed}
    )
