"""The model of the SDRAM chip: it stores, and it catches each rule one cycle, or one command, beyond the limit."""

from __future__ import annotations

import random
import re

import cocotb
import pytest
from cocotb.triggers import ReadOnly, RisingEdge
from support.memory_driver import reset

from weft.boards.flash.model import broken_rules
from weft.boards.sdram.chip import ALL_BANKS, ARRAY_VERILOG, INIT_REFRESHES, Operation, SdramTiming
from weft.boards.sdram.model import POSTPONED, Rule, SdramModel
from weft.hdl.verilog import generate
from weft.sim.rtl.bench import bench_parameters, run_bench

CLOCK = 100e6
# Such that each limit can be broken alone: tRC is more than tRAS and tRP.
TIMING = SdramTiming(
    rcd=30, rp=30, ras=60, rc=110, rrd=20, rfc=80, wr=20, mrd=30, power_up=200, refresh=500, cl2=10, cl3=7
)
CYCLES = TIMING.cycles(CLOCK)
NOTHING = 0xA55A


class Chip:
    """Gives commands to the model, a cycle each."""

    def __init__(self, dut) -> None:
        self.dut = dut

    async def cycle(self, operation=Operation.NOP, *, bank=0, a=0, mask=0, drive=None, power=1) -> int:
        """Run one cycle on the pads; return the word on the data pads."""
        dut, bits = self.dut, operation.value
        dut.pads__clk_en.value = power
        dut.pads__cs.value = 1
        for bit, name in enumerate(("ras", "cas", "we")):
            getattr(dut, f"pads__{name}").value = bits >> bit & 1
        dut.pads__ba.value, dut.pads__a.value, dut.pads__dqm.value = bank, a, mask
        dut.pads__dq_oe.value = drive is not None
        dut.pads__dq_o.value = drive or 0
        await ReadOnly()
        word = int(dut.pads__dq_i.value)
        await RisingEdge(dut.clk)
        return word

    async def wait(self, cycles: int) -> None:
        for _ in range(cycles):
            await self.cycle()

    async def after(self, cycles: int, operation: Operation, **pads) -> None:
        """`operation`, `cycles` after the last one."""
        await self.wait(cycles - 1)
        await self.cycle(operation, **pads)

    async def start(self, *, cas_latency=3, burst=1, refreshes=INIT_REFRESHES) -> None:
        """Reset, then the whole sequence after power-up, at its limits. ``burst`` is a log2."""
        self.dut.pads__clk_en.value = 0
        await reset(self.dut)
        await self.wait(CYCLES.power_up)
        await self.cycle(Operation.PRECHARGE, a=ALL_BANKS)
        await self.wait(CYCLES.rp - 1)
        for _ in range(refreshes):
            await self.cycle(Operation.REFRESH)
            await self.wait(CYCLES.rfc - 1)
        await self.cycle(Operation.MODE, a=cas_latency << 4 | burst)
        await self.wait(CYCLES.mrd - 1)

    async def broken(self) -> list[str]:
        await self.cycle()
        await ReadOnly()
        rules = broken_rules(Rule, int(self.dut.violation.value))
        await RisingEdge(self.dut.clk)
        return rules


async def rcd(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE, bank=1)
    await chip.after(CYCLES.rcd - short, Operation.READ, bank=1)


async def rp(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE, bank=2)
    await chip.after(20, Operation.PRECHARGE, bank=2)
    await chip.after(CYCLES.rp - short, Operation.ACTIVATE, bank=2)


async def rp_refresh(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE, bank=2)
    await chip.after(20, Operation.PRECHARGE, a=ALL_BANKS)
    await chip.after(CYCLES.rp - short, Operation.REFRESH)


async def ras(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE, bank=3)
    await chip.after(CYCLES.ras - short, Operation.PRECHARGE, bank=3)


async def ras_all(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE, bank=3)
    await chip.after(CYCLES.ras - short, Operation.PRECHARGE, a=ALL_BANKS)


async def rc(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(CYCLES.ras, Operation.PRECHARGE)
    await chip.after(CYCLES.rc - CYCLES.ras - short, Operation.ACTIVATE)


async def rrd(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(CYCLES.rrd - short, Operation.ACTIVATE, bank=1)


async def rfc(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.REFRESH)
    await chip.after(CYCLES.rfc - short, Operation.ACTIVATE)


async def mrd(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.MODE, a=3 << 4 | 1)
    await chip.after(CYCLES.mrd - short, Operation.ACTIVATE)


async def wr(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.wait(9)
    await chip.cycle(Operation.WRITE, drive=1)
    await chip.cycle(drive=2)
    await chip.after(CYCLES.wr - short, Operation.PRECHARGE)


async def refresh(chip: Chip, short: int) -> None:
    await chip.after((POSTPONED + 1) * CYCLES.refresh + 2 - CYCLES.mrd + short, Operation.REFRESH)


async def closed(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE, bank=1)
    await chip.after(10, Operation.READ, bank=0 if short else 1)


async def open_row(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(20, Operation.ACTIVATE, bank=0 if short else 1)


async def open_refresh(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    if not short:
        await chip.after(10, Operation.PRECHARGE)
    await chip.after(10, Operation.REFRESH)


async def open_mode(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE, bank=3)
    if not short:
        await chip.after(10, Operation.PRECHARGE, bank=3)
    await chip.after(10, Operation.MODE, a=3 << 4 | 1)


async def burst_read(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(10, Operation.READ)
    await chip.after(2 - short, Operation.READ, a=8)


async def burst_closed(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(10, Operation.READ)
    await chip.after(2 - short, Operation.PRECHARGE)


async def contention(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(10, Operation.READ)
    await chip.wait(3 + 2 - short)  # the words come 3 and 4 cycles after the command; the next is left free
    await chip.cycle(drive=1)


async def contention_first(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(10, Operation.READ)
    await chip.wait(1 + short)
    await chip.cycle(drive=1)


async def undriven(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.wait(9)
    await chip.cycle(Operation.WRITE, drive=1)
    await chip.cycle(mask=2 if short else 3)


async def mode_latency(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.MODE, a=(4 if short else 3) << 4 | 1)


async def mode_burst(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.MODE, a=3 << 4 | 3 + short)


async def mode_interleaved(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.MODE, a=3 << 4 | short << 3 | 1)


async def mode_reserved(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.MODE, a=short << 7 | 3 << 4 | 1)


async def mode_bank(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.MODE, bank=short, a=3 << 4 | 1)


async def stop(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.STOP if short else Operation.NOP)


async def auto_precharge(chip: Chip, short: int) -> None:
    await chip.cycle(Operation.ACTIVATE)
    await chip.after(10, Operation.READ, a=short << 10)


async def power_down(chip: Chip, short: int) -> None:
    await chip.cycle(power=1 - short)


CASES = {
    Rule.RCD: [rcd],
    Rule.RP: [rp, rp_refresh],
    Rule.RAS: [ras, ras_all],
    Rule.RC: [rc],
    Rule.RRD: [rrd],
    Rule.RFC: [rfc],
    Rule.MRD: [mrd],
    Rule.WR: [wr],
    Rule.REFRESH: [refresh],
    Rule.CLOSED: [closed],
    Rule.OPEN: [open_row, open_refresh, open_mode],
    Rule.BURST: [burst_read, burst_closed],
    Rule.CONTENTION: [contention, contention_first],
    Rule.UNDRIVEN: [undriven],
    Rule.MODE: [mode_latency, mode_burst, mode_interleaved, mode_reserved, mode_bank],
    Rule.UNSUPPORTED: [stop, auto_precharge, power_down],
}
"""Sequences that are within the rules, and with `short` set break this one."""


@cocotb.test()
async def bench_rules(dut):
    """Each sequence at the limit breaks nothing; one step further it breaks its rule and no other, and that stays."""
    chip = Chip(dut)
    assert {*CASES, Rule.INIT} == set(Rule)
    for rule, sequences in CASES.items():
        for sequence in sequences:
            for short in (0, 1):
                await chip.start()
                await sequence(chip, short)
                name = f"{sequence.__name__}, {short}"
                expected = [rule.name] if short else []
                assert await chip.broken() == expected, name
                await chip.wait(5)
                assert await chip.broken() == expected, name


@cocotb.test()
async def bench_initialisation(dut):
    chip = Chip(dut)
    await chip.start(refreshes=INIT_REFRESHES - 1)
    assert await chip.broken() == []
    await chip.cycle(Operation.ACTIVATE)
    assert await chip.broken() == ["INIT"]

    for refreshes in range(INIT_REFRESHES + 1):  # no mode register
        await reset(dut)
        await chip.wait(CYCLES.power_up)
        await chip.cycle(Operation.PRECHARGE, a=ALL_BANKS)
        await chip.wait(10)
        for _ in range(refreshes):
            await chip.cycle(Operation.REFRESH)
            await chip.wait(10)
        assert await chip.broken() == []
        await chip.cycle(Operation.ACTIVATE)
        assert await chip.broken() == ["INIT"]

    for early in (0, 1):  # the clock must be stable first
        dut.pads__clk_en.value = 0
        await reset(dut)
        await chip.wait(CYCLES.power_up - early)
        await chip.cycle(Operation.PRECHARGE, a=ALL_BANKS)
        assert await chip.broken() == ["INIT"] * early

    for operation, a in ((Operation.REFRESH, 0), (Operation.MODE, 0x31)):  # one bank is not all banks
        await reset(dut)
        await chip.wait(CYCLES.power_up)
        await chip.cycle(Operation.PRECHARGE)
        await chip.wait(10)
        await chip.cycle(operation, a=a)
        assert await chip.broken() == ["INIT"]


@cocotb.test()
async def bench_contents(dut):
    """Bursts of all lengths, within their blocks of columns, with masks both ways, at both latencies."""
    chip = Chip(dut)
    for latency in (2, 3):
        for burst in range(4):
            await chip.start(cas_latency=latency, burst=burst)
            length = 1 << burst
            stored = {}
            for _ in range(12):
                bank, row, first = random.randrange(4), random.randrange(4), random.randrange(1 << 8)
                columns = [first & -length | (first + k) % length for k in range(length)]
                await chip.cycle(Operation.PRECHARGE, a=ALL_BANKS)
                await chip.after(10, Operation.ACTIVATE, bank=bank, a=row)
                await chip.wait(10)
                for k, column in enumerate(columns):
                    word, mask = random.getrandbits(16), random.choice((0, 0, 1, 2, 3))
                    operation = Operation.NOP if k else Operation.WRITE
                    await chip.cycle(operation, bank=bank, a=first, drive=word, mask=mask)
                    hidden = 0xFF * (mask & 1) | 0xFF00 * (mask >> 1)
                    place = bank, row, column
                    known, before = stored.get(place, (0, 0))
                    stored[place] = known | 0xFFFF ^ hidden, before & hidden | word & ~hidden
                masks = [random.choice((0, 0, 1, 2, 3)) for _ in columns]
                words = []
                for k in range(latency + length + 2):
                    mask = masks[k - latency + 2] if 0 <= k - latency + 2 < length else 0
                    operation = Operation.NOP if k else Operation.READ
                    words.append(await chip.cycle(operation, bank=bank, a=first, mask=mask))
                assert words[:latency] == [NOTHING] * latency
                assert words[latency + length :] == [NOTHING] * 2
                for word, column, mask in zip(words[latency:], columns, masks, strict=False):
                    known, value = stored[bank, row, column]
                    hidden = 0xFF * (mask & 1) | 0xFF00 * (mask >> 1)
                    assert (word ^ value) & known & ~hidden == 0
                    assert (word ^ NOTHING) & hidden == 0
            assert [rule for rule in await chip.broken() if rule != "REFRESH"] == []


@cocotb.test()
async def bench_large(dut):
    """Every address bit counts."""
    chip = Chip(dut)
    await chip.start()
    places = [(0, 0, 0)]
    for row_bit in range(bench_parameters()["rows"]):
        places.append((0, 1 << row_bit, 0))
    for column_bit in range(1, 9):
        places.append((0, 0, 1 << column_bit))
    places += [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
    for write in (True, False):
        for value, (bank, row, column) in enumerate(places):
            await chip.cycle(Operation.ACTIVATE, bank=bank, a=row)
            await chip.wait(9)
            operation = Operation.WRITE if write else Operation.READ
            await chip.cycle(operation, bank=bank, a=column, drive=value if write else None)
            await chip.cycle(drive=0x8000 | value if write else None)
            await chip.wait(1)
            read = [await chip.cycle() for _ in range(2)]
            if not write:
                assert read == [value, 0x8000 | value]
            await chip.after(5, Operation.PRECHARGE, bank=bank)
            await chip.wait(5)


def test_model():
    run_bench(SdramModel(CLOCK, TIMING, row_bits=3), parameters={"rows": 3})


def test_whole_chip(monkeypatch):
    """32 MB, with the array that is not Amaranth's."""

    def with_array(component, *, name):
        return generate(component, name=name) + ARRAY_VERILOG

    monkeypatch.setattr("weft.sim.rtl.bench.generate", with_array)
    run_bench(SdramModel(CLOCK, TIMING), parameters={"rows": 13}, only="bench_large|bench_rules")


def test_latency_two_is_too_fast_above_its_clock():
    """The mode register that is right at 100 MHz is not at 133 MHz."""
    with pytest.raises(
        ValueError, match=re.escape("with a CAS latency of 2 the SDRAM runs at up to 100 MHz, not 133 MHz")
    ):
        TIMING.check_clock(133e6, 2)
    TIMING.check_clock(133e6, 3)


def test_cycles_round_the_safe_way():
    cycles = SdramTiming().cycles(100e6)
    assert (cycles.rcd, cycles.rp, cycles.ras, cycles.rc, cycles.rrd) == (3, 3, 5, 7, 2)
    assert (cycles.rfc, cycles.wr, cycles.mrd, cycles.refresh, cycles.power_up) == (7, 2, 2, 781, 20_000)
