"""Signs on LEDs, their pins, and the length of reset."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
from amaranth.hdl import ClockDomain, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from weft.boards.build.build import elaborate
from weft.boards.bus.port import memory_port
from weft.boards.link.uart import SIGNS, Lights, blink_counter_bits, lights
from weft.boards.registry import BOARDS, find
from weft.boards.sdram.calibration import CalibrationState, calibration_layout
from weft.boards.sdram.chip import sdram_pads
from weft.boards.top import Top, wait_for_start_up
from weft.boards.virtual_top import SIMULATED
from weft.hdl.isa.memmap import Reg, Status

CLOCK = 1000.0


def signs_of(dut: Lights, *reads: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return the signs in every cycle with register reads: cycle, address, word."""
    seen = []

    async def bench(context: Any) -> None:
        for cycle in range(3 << dut.bits):
            read = next(((address, word) for at, address, word in reads if at == cycle), None)
            context.set(dut.answered, read is not None)
            if read:
                context.set(dut.address, read[0])
                context.set(dut.word, read[1])
            seen.append(tuple(context.get(getattr(dut.lights, sign)) for sign in SIGNS))
            await context.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return seen


def test_alive_blinks_about_once_a_second() -> None:
    for clock in (24e6, 45e6, 54e6, 80e6):
        assert 1 < 2 ** blink_counter_bits(clock) / clock < 2
    dut = Lights(CLOCK)
    alive = [sign[0] for sign in signs_of(dut)]
    changes = [at for at in range(1, len(alive)) if alive[at] != alive[at - 1]]
    assert [after - before for before, after in itertools.pairwise(changes)] == [1 << dut.bits - 1] * 4


def test_busy_can_be_seen_and_ends() -> None:
    dut = Lights(CLOCK)
    for at in (100, 150, 191):
        seen = signs_of(dut, (at, Reg.STATUS, Status.BUSY), (at + 20, Reg.STATUS, Status.DONE))
        busy = [cycle for cycle, sign in enumerate(seen) if sign[1]]
        assert busy == list(range(at + 1, at + 1 + len(busy)))
        tick = 1 << dut.bits - 4
        assert tick - 22 <= len(busy) <= 2 * tick
        assert not any(sign[2] for sign in seen)


@pytest.mark.parametrize("error", [Status.BUS_ERROR, Status.OPCODE_ERROR])
def test_errors_stay_until_another_program_is_looked_at(error: Status) -> None:
    reads = (
        (10, Reg.STATUS, error | Status.DONE), (50, Reg.PROGRAM, 0), (60, Reg.MAGIC, 0), (90, Reg.STATUS, Status.BUSY),
        (120, Reg.COUNTER, 0xFFFF), (130, Reg.PROGRAM, 0xFFFF),
    )  # fmt: skip
    seen = signs_of(Lights(CLOCK), *reads)
    assert [cycle for cycle, sign in enumerate(seen) if sign[2]] == list(range(11, 91))


class Shining(wiring.Component):
    """A top component that only has signs."""

    def __init__(self) -> None:
        super().__init__({"rx": In(1), "tx": Out(1), "lights": Out(lights())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += [
            self.tx.eq(self.rx),
            self.lights.busy.eq(self.tx),
            self.lights.error.eq(self.lights.busy),
        ]
        m.d.comb += self.lights.alive.eq(self.rx)
        return m


PINS = {
    "icebreaker": ["37", "11"],
    "ulx3s-85f": ["B2", "C2", "C1"],
    "icepi-zero": ["E13", "D14", "E12"],
    "tang-nano-9k": ["10", "11", "13"],
}


@pytest.mark.parametrize("name", PINS)
def test_leds_have_their_pads(name: str) -> None:
    board = BOARDS[name]
    design = elaborate(board, board.config, board.clock, lambda *given: Shining())
    text = next(text for name, text in design.files.items() if not name.endswith(".il"))
    found = dict(re.findall(r'^(?:LOCATE COMP|set_io|IO_LOC) "?([\w\[\]]+)"? (?:SITE )?"?(\w+)', text, re.M))
    assert [pin for pad, pin in found.items() if pad.startswith("led")] == PINS[name]
    assert {sign for led in board.leds for sign in led.shows} == set(SIGNS)


def test_boards_with_leds() -> None:
    """The Tang Primer 20K has none without its dock. That of the iCESugar-Pro is left alone: its sources differ
    in whether it is on when its pads are low; so are those of the Tang Primer 25K, of which no source tells it."""
    without = {name for name, board in BOARDS.items() if not board.leds}
    assert without == {"icesugar-pro", "tang-primer-20k", "tang-primer-25k"}


def test_reset_lasts_until_block_ram_can_be_read() -> None:
    """On the iCE40; from the PLL's lock on, which may be lost before."""
    board = BOARDS["icebreaker"]
    least = math.ceil(board.family.fabric.start_up * board.clock)
    assert least == 315
    m, locked, over = Module(), Signal(), Signal()
    m.domains.sync = ClockDomain()
    m.d.comb += over.eq(wait_for_start_up(m, locked, least))
    when = []

    async def bench(context: Any) -> None:
        for cycle in range(600):
            context.set(locked, cycle >= 100 or 20 <= cycle < 30)
            when.append(context.get(over))
            await context.tick()

    simulator = Simulator(m)
    simulator.add_clock(1 / board.clock)
    simulator.add_testbench(bench)
    simulator.run()
    assert 100 - 10 + least <= when.index(1) <= 100 + least
    assert all(when[when.index(1) :])


class FoundMemory(wiring.Component):
    """Memory that accepts nothing, and reports a given result of its clock calibration."""

    def __init__(self, bus_bytes: int) -> None:
        super().__init__(
            {
                "bus": In(memory_port(bus_bytes)),
                "pads": Out(sdram_pads()),
                "step": Out(1),
                "calibration": Out(calibration_layout()),
                "state": In(8),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.calibration.state.eq(self.state)
        return m


def test_an_sdram_that_does_not_work_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    board = find("icepi-zero")
    memory = FoundMemory(board.config.bus_bytes)
    monkeypatch.setattr(Top, "_memory", lambda self: memory)
    top = Top(board, board.config, board.clock, 4, SIMULATED)
    simulator = Simulator(top)
    simulator.add_clock(1e-6)

    async def bench(context: Any) -> None:
        for state in CalibrationState:
            context.set(memory.state, state)
            await context.tick().repeat(2)
            assert context.get(top.lights.error) == (state is CalibrationState.FAILED)

    simulator.add_testbench(bench)
    simulator.run()
