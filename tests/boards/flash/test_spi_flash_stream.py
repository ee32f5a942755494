# amaranth: UnusedElaboratable=no
"""A flash chip's bytes one after the other: what they are, how fast they come, and that the chip's rules are kept."""

from __future__ import annotations

import random

import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from weft.boards.flash.chip import HEADER_CLOCKS, SpiFlash
from weft.boards.flash.controller import CLOCK_DIVISOR, SpiFlashStream
from weft.boards.flash.model import SpiFlashModel

CONTENTS = random.Random(6).randbytes(1 << 10)
CHIP = SpiFlash(1 << 20, 0x2C123)


@pytest.mark.parametrize(
    ("megahertz", "late", "stall"), [(80, 0, 0.0), (80, 1, 0.9), (25, 1, 0.5), (133, 0, 0.97)]
)
def test_bytes_come_in_order(megahertz: int, late: int, stall: float) -> None:
    """As early as registered pads allow, or a cycle later; they wait until they are accepted."""
    m, clock = Module(), megahertz * 1e6
    m.submodules.dut = dut = SpiFlashStream(CHIP, clock)
    m.submodules.chip = model = SpiFlashModel(CHIP, clock, CONTENTS, levels=True)
    bits = model.pads.dq_i
    for stage in range(late):
        bits, before = Signal(2, name=f"late{stage}"), bits
        m.d.sync += bits.eq(before)
    m.d.comb += dut.pads.dq_i.eq(bits)
    for name in ("cs", "clk", "dq_o", "dq_oe"):
        m.d.comb += getattr(model.pads, name).eq(getattr(dut.pads, name))
    count, draw = 60, random.Random(megahertz)
    expected = [CONTENTS[(CHIP.offset + at) % len(CONTENTS)] for at in range(count)]

    async def bench(context):  # type: ignore[no-untyped-def]
        found, cycles, first = [], 0, None
        while len(found) < count:
            ready = draw.random() >= stall
            context.set(dut.byte.ready, ready)
            _, _, valid, payload = await context.tick().sample(dut.byte.valid, dut.byte.payload)
            cycles += 1
            if ready and valid:
                first = first or cycles
                found.append(payload)
        assert found == expected
        if not stall:
            assert cycles - first == (count - 1) * 4 * CLOCK_DIVISOR
            start = CHIP.cycles(CHIP.release, clock / CLOCK_DIVISOR) + HEADER_CLOCKS
            assert CLOCK_DIVISOR * start < first < CLOCK_DIVISOR * (start + 100)
        context.set(dut.stop, 1)
        await context.tick().repeat(2 * CLOCK_DIVISOR)
        assert context.get(dut.pads.cs) == 0
        assert context.get(model.violation) == 0

    simulator = Simulator(m)
    simulator.add_clock(1 / clock)
    simulator.add_testbench(bench)
    simulator.run()


def test_limits() -> None:
    with pytest.raises(ValueError, match=r"^an SPI flash chip is read at up to 80 MHz, not 81$"):
        SpiFlashStream(CHIP, 4 * 81e6)
