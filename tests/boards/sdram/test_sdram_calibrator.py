# amaranth: UnusedElaboratable=no
"""A controller that finds the phase of its chip's clock: whatever the eye is, its middle, or that there is none."""

from __future__ import annotations

import itertools
import random

import cocotb
import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from cocotb.triggers import FallingEdge, First, RisingEdge, ValueChange, with_timeout
from support.memory_driver import MemoryDriver, burst, random_bursts, reset

from weft.boards.bus.port import memory_port
from weft.boards.flash.model import broken_rules
from weft.boards.sdram.calibration import (
    CALIBRATION_BYTES,
    Calibration,
    CalibrationState,
    Sweep,
    calibration_layout,
)
from weft.boards.sdram.calibrator import UNITS, Calibrator, parity_taps, pattern, scatter_lines
from weft.boards.sdram.chip import SdramTiming
from weft.boards.sdram.controller import SdramController
from weft.boards.sdram.eye import CAPTURES, PadDelays, best_eye
from weft.boards.sdram.model import LINES, ChipBehindPads, Phase, Rule, encode, eye_layout, eye_of
from weft.sim.rtl.bench import bench_parameters, run_bench

SHORT = SdramTiming(power_up=400.0)
ROW_BITS, COLUMN_BITS = 3, 9
BYTES = 2 << (ROW_BITS + COLUMN_BITS + 2)


class Memory(wiring.Component):
    """A controller and its chip, with an eye that the bench chooses."""

    def __init__(self, bus_bytes: int, clock: float, sweep: Sweep) -> None:
        bits = {"row_bits": ROW_BITS, "column_bits": COLUMN_BITS}
        self.controller = SdramController(
            bus_bytes, clock, SHORT, **bits, capture=best_eye(clock).capture, sweep=sweep
        )
        phases = sweep.phases(clock)
        self.chip = ChipBehindPads(clock, SHORT, **bits, phases=phases)
        super().__init__(
            {
                "bus": In(memory_port(bus_bytes)),
                "violation": Out(len(Rule)),
                "calibration": Out(calibration_layout()),
                "step": Out(1),
                "command": Out(3),
                "eye": In(eye_layout(phases)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.controller = controller = self.controller
        m.submodules.chip = chip = self.chip
        wiring.connect(m, wiring.flipped(self.bus), controller.bus)
        wiring.connect(m, controller.pads, chip.pads)
        m.d.comb += [
            self.violation.eq(chip.violation),
            self.calibration.eq(controller.calibration),
            self.step.eq(controller.step),
            self.command.eq(Cat(controller.pads.ras, controller.pads.cas, controller.pads.we)),
            chip.step.eq(controller.step),
            chip.eye.eq(self.eye),
        ]
        return m


def told(dut) -> Calibration:
    return Calibration.decode(int(dut.calibration.value).to_bytes(CALIBRATION_BYTES, "little"))


async def calibrate(dut, eye, drift=None) -> Calibration:
    """Return the calibration after a reset with an eye; `drift` gives another eye after each step."""
    dut.eye.value = encode(eye)
    await reset(dut)
    assert told(dut).state is CalibrationState.BUSY
    while told(dut).state is CalibrationState.BUSY:
        stepped = FallingEdge(dut.step)
        if await with_timeout(First(ValueChange(dut.calibration), stepped), 100, "us") is stepped:
            assert int(dut.command.value) == 0, "a command while the clock moves"
            if drift:
                eye = drift(eye)
                dut.eye.value = encode(eye)
    return told(dut)


def draw_eye(draw: random.Random, phases: int, width: int | None = None) -> tuple[list[Phase], int, int, int]:
    """Draw an eye anywhere, its first phase, width and capture; around it commands are lost, or only words."""
    width = draw.randint(1, phases) if width is None else width
    first, capture = draw.randrange(phases), draw.choice(list(CAPTURES))
    eye = [Phase(0, draw.random() < 0.5) for _ in range(phases)]
    for number in range(width):
        eye[(first + number) % phases] = Phase(capture)
    return eye, first, width, capture


def longest(eye: list[Phase]) -> int:
    """Return the longest run of working phases, whatever the capture, by trying each."""
    phases = len(eye)
    found = [
        length
        for capture, first in itertools.product(CAPTURES, range(phases))
        for length in range(1, phases + 1)
        if all(eye[(first + at) % phases] == Phase(capture) for at in range(length))
    ]
    return max(found, default=0)


async def holds(dut) -> None:
    """Memory is as good as any."""
    driver = MemoryDriver(dut, bench_parameters()["bus"])
    contents = bytearray(BYTES)
    width = driver.width
    beats = min(256, 4096 // width)
    await driver.run(
        [burst(contents, width, True, at, beats, full=True) for at in range(0, BYTES, beats * width)]
    )
    await driver.run(random_bursts(contents, width, 30, longest=32))


def check(dut) -> None:
    assert broken_rules(Rule, int(dut.violation.value)) == []


@cocotb.test()
async def bench_drawn(dut):
    """The middle of any eye, across the end of the cycle too; and memory can be used with it."""
    draw, phases = random.Random(random.getrandbits(32)), bench_parameters()["phases"]
    least = bench_parameters()["least"]
    for width in (least, phases, phases - 1, *(draw.randint(least, phases) for _ in range(2))):
        eye, first, width, capture = draw_eye(draw, phases, width)
        found = await calibrate(dut, eye)
        case = f"{width} from {first} with {capture}: {found}"
        assert (found.state, found.count, found.capture) == (CalibrationState.FOUND, width, capture), case
        if width < phases:
            assert found.last == (first + width - 1) % phases, case
            assert found.chosen in {(first + (width - 1) // 2) % phases, (first + width // 2) % phases}, case
        else:
            assert found.chosen == phases // 2, case
        check(dut)
    await holds(dut)
    check(dut)


@cocotb.test()
async def bench_delays(dut):
    """With other delays of pads and wires than the nominal ones, the result agrees with `eye_at`."""
    draw, phases = random.Random(random.getrandbits(32)), bench_parameters()["phases"]
    clock, least = bench_parameters()["clock"], bench_parameters()["least"]
    for _ in range(3):
        pads = PadDelays(output=draw.uniform(0.5, 6), input=draw.uniform(0.2, 3))
        eye = eye_of(clock, phases, pads)
        found, count = await calibrate(dut, eye), longest(eye)
        assert found.count == count, (pads, found)
        assert (found.state is CalibrationState.FOUND) == (count >= least), (pads, found)
        if found.state is CalibrationState.FOUND:
            places = [(found.chosen + at) % phases for at in range(-((count - 1) // 2), (count - 1) // 2 + 1)]
            assert {eye[place] for place in places} == {Phase(found.capture)}, (pads, found)
        check(dut)


@cocotb.test()
async def bench_none(dut):
    """No phase works, or too few: the calculated one is left, and memory takes commands."""
    draw, phases = random.Random(random.getrandbits(32)), bench_parameters()["phases"]
    least, computed = bench_parameters()["least"], bench_parameters()["capture"]
    for width in sorted({0, least - 1}):
        eye, first, width, _ = draw_eye(draw, phases, width)
        found = await calibrate(dut, eye)
        case = f"{width} from {first}: {found}"
        assert (found.state, found.count) == (CalibrationState.FAILED, width), case
        assert (found.chosen, found.capture) == (phases // 2, computed), case
        check(dut)
    driver = MemoryDriver(dut, bench_parameters()["bus"])
    contents = bytearray(BYTES)
    await driver.run([burst(contents, driver.width, True, 0, 4, full=True)])


@cocotb.test()
async def bench_two_rows(dut):
    """The longer of two runs, with one capture or two; of equals, the run with the calculated capture."""
    phases, computed = bench_parameters()["phases"], bench_parameters()["capture"]
    others = [capture for capture in CAPTURES if capture != computed]
    long, short = phases // 2 - 1, phases // 4
    for first, second, lengths in (
        (computed, others[0], (short, long)),
        (computed, others[1], (long, short)),
        (others[0], others[0], (long, short)),
        (others[0], computed, (short, short)),
    ):
        eye = [Phase(0)] * phases
        eye[0 : lengths[0]] = [Phase(first)] * lengths[0]
        eye[phases // 2 : phases // 2 + lengths[1]] = [Phase(second)] * lengths[1]
        found = await calibrate(dut, eye)
        last = lengths[0] - 1 if lengths[0] > lengths[1] else phases // 2 + lengths[1] - 1
        wanted = first if lengths[0] > lengths[1] else second
        assert (found.count, found.last, found.capture) == (max(lengths), last, wanted)
        check(dut)


@cocotb.test()
async def bench_weak_lines(dut):
    """A phase in which a single pad does not keep up is none that works."""
    draw, phases = random.Random(random.getrandbits(32)), bench_parameters()["phases"]
    lines = list(range(len(LINES)))
    # What a small chip does not look at: rows above its own, and columns' bits that are none.
    unused = {LINES.index(("a", bit)) for bit in (*range(ROW_BITS, 13),)} - {
        LINES.index(("a", bit)) for bit in range(1, COLUMN_BITS)
    }
    lines = [line for line in lines if line not in unused]
    draw.shuffle(lines)
    count = (phases - 4) // 2
    for at in range(0, len(lines), count):
        tried = lines[at : at + count]
        eye = [Phase(2)] * 2
        for line in tried:  # between two phases that work: one more would make the longest row
            eye += [Phase(2, weak=True, line=line), Phase(2)]
        eye += [Phase(0)] * (phases - len(eye))
        found = await calibrate(dut, eye)
        assert (found.count, found.last) == (2, 1), [LINES[line] for line in tried]


@cocotb.test()
async def bench_drift(dut):
    """An eye that moves by a phase while it is looked for is found near where it is in the end."""
    phases, width = bench_parameters()["phases"], bench_parameters()["phases"] // 2
    for way in (1, -1):
        steps = itertools.count(1)

        def drift(eye, way=way, steps=steps):
            return eye[-way:] + eye[:-way] if next(steps) == 5 * phases else eye

        eye = [Phase(2)] * width + [Phase(0)] * (phases - width)
        found = await calibrate(dut, eye, drift)
        assert found.state is CalibrationState.FOUND
        assert abs(found.chosen - (width - 1) / 2) <= 2, (way, found)


@cocotb.test()
async def bench_gone(dut):
    """An eye that is gone when the phase in its middle is tried again."""
    phases = bench_parameters()["phases"]
    steps = itertools.count(1)

    def drift(eye):
        return [Phase(0)] * phases if next(steps) > 6 * phases + phases // 2 else eye

    found = await calibrate(dut, [Phase(0)] * 3 + [Phase(1)] * 8 + [Phase(0)] * (phases - 11), drift)
    assert (found.state, found.count, found.chosen) == (CalibrationState.FAILED, 8, phases // 2)
    check(dut)


@cocotb.test()
async def bench_waits(dut):
    """Commands that come early wait until the phase is found, and are carried out then."""
    phases = bench_parameters()["phases"]
    dut.eye.value = encode([Phase(0, True)] * 5 + [Phase(2)] * 7 + [Phase(0)] * (phases - 12))
    driver = MemoryDriver(dut, bench_parameters()["bus"], patience=1_000_000)
    await reset(dut)
    contents = bytearray(BYTES)
    bursts = [burst(contents, driver.width, True, 64 * k, 64 // driver.width, full=True) for k in range(4)]
    bursts += [burst(contents, driver.width, False, 64 * k, 64 // driver.width) for k in range(4)]
    await driver.run(bursts)
    assert told(dut).state is CalibrationState.FOUND
    await RisingEdge(dut.clk)
    check(dut)


BENCHES = "drawn|delays|none|two_rows|weak_lines|drift|gone|waits"


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("bus", "clock", "phases", "blocks", "only"),
    [
        (4, 100e6, 12, 2, "drawn|delays|none|two_rows|drift|gone|waits"),
        (16, 40e6, 16, 4, "weak_lines"),
        pytest.param(32, 100e6, 48, 16, BENCHES, marks=pytest.mark.long),
    ],
)
def test_calibrator(bus: int, clock: float, phases: int, blocks: int, only: str) -> None:
    sweep = Sweep(lambda _: phases, blocks)
    parameters = {
        "bus": bus,
        "clock": clock,
        "phases": phases,
        "least": sweep.min_phases(clock),
        "capture": best_eye(clock).capture,
    }
    run_bench(Memory(bus, clock, sweep), parameters=parameters, only=f"bench_({only})$")


def evaluate(expression, **given: int) -> int:
    """Evaluate an Amaranth value, for named values of its signals."""
    signals = {name: Signal(16, name=name) for name in given}
    found = Signal(64)
    m = Module()
    m.d.comb += found.eq(expression(**signals))
    values = []

    async def bench(context) -> None:
        for name, value in given.items():
            context.set(signals[name], value)
        values.append(context.get(found))

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
    return values[0]


@pytest.mark.parametrize("bits", range(5, 10))
def test_units_differ(bits: int) -> None:
    """No two units of a test have an equal first half, and none repeats its content of a test with another salt."""
    halves = {
        sum((sum(number >> bit & 1 for bit in pad) & 1) << at for at, pad in enumerate(parity_taps(bits)))
        for number in range(1 << bits)
    }
    assert len(halves) == 1 << bits
    number, salt = random.Random(bits).randrange(1 << bits), 0x2A5
    first = evaluate(lambda number, salt: pattern(number[:bits], salt), number=number, salt=0)
    assert first in halves
    assert (
        evaluate(lambda number, salt: pattern(number[:bits], salt), number=number, salt=salt) == first ^ salt
    )


@pytest.mark.parametrize("blocks", [2, 4, 8, 16, 32])
@pytest.mark.parametrize(("row_bits", "column_bits"), [(13, 9), (3, 9), (13, 8)])
def test_blocks_lie_apart(blocks: int, row_bits: int, column_bits: int) -> None:
    """Each has a place of its own, and from an even one to the next all address lines change."""
    lines = row_bits + 2 + column_bits - 1 - (UNITS - 1).bit_length()
    bits = (blocks - 1).bit_length()
    places = [
        evaluate(lambda block: scatter_lines(block[:bits], lines, 0), block=block) for block in range(blocks)
    ]
    assert len(set(places)) == blocks
    assert {even ^ odd for even, odd in zip(places[::2], places[1::2], strict=True)} == {(1 << lines) - 1}


@pytest.mark.parametrize(
    ("phases", "blocks", "message"), [(7, 4, "an even number"), (8, 3, "2, 4, 8, 16 or 32")]
)
def test_untestable_ranges_are_refused(phases: int, blocks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Calibrator(phases, blocks=blocks, row_bits=13, column_bits=9)
