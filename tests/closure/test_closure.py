"""Tests that the coverage tools count correctly and report gaps."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from closure import fields, sections
from closure.cores import FULL, SMALL
from closure.extremes import MOST, extremes
from support.core_arithmetic import KERNELS, arithmetic
from support.core_cases import (
    PLAIN,
    Benches,
    Core,
    Scenario,
    Step,
    divided_scenario,
    scenarios,
    timed_scenario,
    words_of,
)
from support.core_directed import ORIGINS, directed_scenarios, distant
from support.core_observed import (
    GROUPS,
    LOOPS,
    MOST_OF_SEQUENTIAL,
    Observed,
    iterations,
    long_loops,
    observed_scenarios,
)
from support.core_pairs import beside
from support.random_instructions import DUMP
from support.random_programs import MEMORY, PROGRAM

from weft.hdl.isa import Instruction, Kernel, Load, Mm, Queue, Store, Vec
from weft.hdl.isa.kernel import MULTIPLIER_BITS
from weft.hdl.isa.memmap import Reg
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.coverage import HostedRtl, Point
from weft.sim.timing.device import Interval

SEQUENTIAL = Core(SMALL.replace(probability_bits=0, lookup_tables=0, int4=0), sequential=True)
"""A core that is built quickly."""


@pytest.fixture(scope="module")
def device() -> HostedRtl:
    return HostedRtl(SEQUENTIAL.config, 1 << 18, sequential=True, latency=2)


def all_of(core: Core) -> list[Scenario]:
    return [*directed_scenarios(core), *scenarios(core, range(1), 5), *observed_scenarios(core, range(1), 3)]


def test_the_core_passes_its_scenarios() -> None:
    """Only cores that simulate quickly; `make mutants` begins with all."""
    for scenario in all_of(SEQUENTIAL):
        memory = scenario.bench.memory
        with HostedRtl(SEQUENTIAL.config, 1 << 18, sequential=True, **memory) as device:
            assert [step.fault(device) for step in scenario.steps[:12]] == [None] * len(scenario.steps[:12])


def test_each_loop_is_long_alone() -> None:
    """Counters show each loop's length, and match the cycle model."""
    core = Core(SMALL)
    (scenario,) = long_loops(core, [Vec])
    made = [item for item in scenario.steps[0].program if isinstance(item, Vec)]
    for loop in LOOPS[Vec]:
        others = [name for name in LOOPS[Vec] if name != loop]
        alone = {getattr(item, loop) for item in made if all(getattr(item, name) == 1 for name in others)}
        assert {0x155, 0x2AA, 0x555, 0xAAA} <= alone
    with HostedRtl(SMALL, MEMORY, **scenario.bench.memory) as device:
        assert scenario.steps[0].fault(device) is None


def test_memory_may_be_anywhere() -> None:
    """Up to the last byte; the core uses bus addresses, the device memory addresses."""
    config = SEQUENTIAL.config
    with HostedRtl(config, MEMORY, sequential=True, origin=ORIGINS[-1]) as device:
        for scenario in distant(SEQUENTIAL, 1):
            if scenario.bench.memory["origin"] == ORIGINS[-1]:
                assert scenario.steps[0].fault(device) is None
        assert device.peek(Reg.PROGRAM) == ORIGINS[-1] + PROGRAM
        device.break_memory(MEMORY - 8, 8)
        device.write(0, words_of([Load(base=0, offset=MEMORY - 8, run=8, length=8, dst_vector=1)]))
        device.set_base(0, 0)
        device.start(0)
        with pytest.raises(DeviceError, match="memory answered"):
            device.wait()
        assert device.fault.address == MEMORY - 8


def arithmetic_results(scenario: Scenario) -> np.ndarray:
    """Return the numbers that the kernels of an `arithmetic` program leave, an int32 for each element."""
    (step,) = scenario.steps
    assert isinstance(step.expected, bytes)
    vectors = np.frombuffer(step.expected, np.uint8)[DUMP:][: FULL.scratchpad_size * FULL.n]
    kernels = sum(isinstance(item, Kernel) for item in step.program)
    results = vectors.reshape(-1, 4, FULL.n)[:kernels].transpose(0, 2, 1)
    return results.copy().view("<i4").ravel()


def test_arithmetic_at_its_corners() -> None:
    """On the golden interpreter: most results differ, and some are at a limit."""
    _, scenario = itertools.islice(arithmetic(Core(FULL)), 2)
    results = arithmetic_results(scenario)
    assert len(np.unique(results)) > KERNELS
    assert {0, -1, (1 << 31) - 1, -(1 << 31)} <= set(results.tolist())


@pytest.mark.long
def test_quotients_of_the_largest_numbers() -> None:
    """Quotients of 2**31, the largest unsigned 32-bit magnitude, of its neighbours, and of half of it."""
    scenario = next(item for item in arithmetic(Core(FULL)) if item.name == "large quotients")
    exponents = arithmetic_results(scenario) >> MULTIPLIER_BITS
    assert {16, 31, 32} <= set(exponents.tolist())


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", GROUPS)
def test_what_instructions_leave_is_stored(name: str) -> None:
    """The scratchpad after each instruction, and accumulators, byte by byte, after products."""
    made, golden = Observed(FULL, 3, GROUPS[name]), GoldenDevice(FULL, MEMORY)
    made.build(4)
    offsets = [item.offset for item in made.program if isinstance(item, Store) and item.base == 6]
    assert len(offsets) == len(set(offsets)) > 3
    made.run(golden)
    size = FULL.scratchpad_size * FULL.n
    last = np.frombuffer(golden.read(DUMP + max(offsets), size), np.uint8).reshape(-1, FULL.n)
    assert np.array_equal(last, golden.scratchpad.view(np.uint8))
    if name == "products":
        made = Observed(FULL, 4, (Mm,))
        made.build(1)
        made.run(golden)
        dumped = np.frombuffer(golden.read(DUMP + made.stored - size, size), np.uint8).reshape(-1, 4, FULL.n)
        (kernel,) = (item for item in made.program if isinstance(item, Kernel))
        rows = golden.accumulator[kernel.src : kernel.src + kernel.oy]
        assert rows.any()
        assert np.array_equal(dumped[: len(rows)].transpose(0, 2, 1).copy().view("<i4")[:, :, 0], rows)


@pytest.mark.parametrize("kind", [Load, Mm, Vec])
def test_long_loops_of_the_sequential_core_end(kind: type[Instruction]) -> None:
    """None of its instructions exceeds the limit of iterations; some of the pipelined core's do."""

    def most(limit: int | None) -> int:
        made = Observed(FULL, 3, (kind,))
        made.prologue()
        made.most = limit or made.most
        drawn = [made.draw(kind) for _ in range(200)]
        return max(iterations(item) for item in drawn)

    assert most(None) > MOST_OF_SEQUENTIAL
    assert most(MOST_OF_SEQUENTIAL) <= MOST_OF_SEQUENTIAL


@pytest.mark.long
def test_time_does_not_depend_on_who_ran_before() -> None:
    """Memory of a limited bandwidth saves up some of it for a later program on the device."""
    core = Core(SMALL)
    bench = Benches(core, kept=True).of(PLAIN[-1])
    with HostedRtl(SMALL, MEMORY, **bench.memory) as device:
        for seed in (3, 7, 11):
            for made in (timed_scenario(core, seed, 25, bench), divided_scenario(core, seed, 25, bench)):
                assert [step.fault(device) for step in made.steps] == [None] * len(made.steps)


def test_a_step_says_what_differs(device: HostedRtl) -> None:
    def counted(device: HostedRtl, limit: int | None) -> object:
        return {"memory": b"a", "CYCLES": 2}

    assert Step("same", counted, {"memory": b"a", "CYCLES": 2}).fault(device) is None
    assert Step("one", counted, {"memory": b"a", "CYCLES": 3}).fault(device) == "one: CYCLES"
    assert Step("two", lambda device, limit: b"a", b"b").fault(device) == "two: bytes differ"
    assert Step("three", lambda device, limit: "not done", "done").fault(device) == "three: not done"


def test_registers_with_a_fault_are_seen(device: HostedRtl, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = next(directed_scenarios(SEQUENTIAL))
    monkeypatch.setattr(
        HostedRtl, "write_bytes", lambda self, address, value, strobe, **options: self.poke(address, value)
    )
    assert "register" in str(scenario.steps[0].fault(device))


def test_fields_at_their_limits() -> None:
    """The largest address is the memory's last, and missing hardware has no points."""
    points = fields.points(Core(FULL))
    assert Point("field", "MM", "c=maximum") in points
    assert Point("field", "MM", "depthwise=1") in points
    assert Point("field", "MM", "depthwise=1") not in fields.points(Core(FULL.replace(depthwise_taps=0)))
    assert fields.maximum(Mm, "c", FULL) == FULL.accumulator_size - 1
    assert fields.bins_of(Mm(c=FULL.accumulator_size - 1), "c", FULL) == ["maximum"]
    assert fields.bins_of(Mm(a_nt=-5, wait=0b101), "a_nt", FULL) == ["negative"]
    assert fields.bins_of(Mm(wait=0b101), "wait", FULL) == ["bit 0", "bit 2"]


def test_pairs_are_of_two_units_and_in_order() -> None:
    program = [Load(), Mm(), Vec(), Store(), Load()]
    runs = [
        (Queue.LOAD, 0, 1, 9),
        (Queue.MM, 1, 5, 20),
        (Queue.VEC, 2, 9, 12),
        (Queue.STORE, 3, 30, 31),
        (Queue.LOAD, 4, 2, 4),
    ]
    intervals = [Interval(unit, index, "runs", start, end) for unit, index, start, end in runs]
    step = Step("some", lambda device, limit: None, None, list(program), intervals)
    found = [(first.OPCODE.name, second.OPCODE.name) for first, second in fields.pairs(step)]
    assert found == [("LOAD", "MM"), ("MM", "VEC")]
    counts = fields.points(Core(FULL))
    fields.count(counts, [step], FULL)
    assert counts[Point("pair", "LOAD", "MM")] == 1
    assert counts[Point("pair", "MM", "LOAD")] == 0
    assert counts[Point("field", "LOAD", "base=0")] == 2


def test_microcode_is_under_way_beside_every_other_unit() -> None:
    """Covers the pairs that random programs miss; a core without kernels, or a sequential one, has none."""
    (scenario,) = beside(Core(FULL))
    found = {(first.OPCODE.name, second.OPCODE.name) for first, second in fields.pairs(scenario.steps[0])}
    assert found >= {
        ("LOAD", "MICROCODE"),
        ("STORE", "MICROCODE"),
        ("MICROCODE", "MM"),
        ("MICROCODE", "STORE"),
    }
    assert not list(beside(Core(SMALL)))
    assert not list(beside(Core(FULL.replace(loops=0), sequential=True)))


@pytest.mark.long
def test_limits_are_reached() -> None:
    """Most addresses and strides are at their largest value in some program that the checker accepts."""
    core = Core(FULL)
    scenario = extremes(core, Benches(core).of({"latency": 1}))
    counts = fields.points(core)
    fields.count(counts, scenario.steps, FULL)
    for opcode, name in (("MM", "a"), ("MM", "x_kx"), ("LOAD", "dst_row"), ("STORE", "src"), ("VEC", "b_ox")):
        assert counts[Point("field", opcode, f"{name}=maximum")]
    for step in scenario.steps:
        assert all(item.rows * item.pixels <= MOST for item in step.program if isinstance(item, Load | Store))
        assert not [item for item in step.program if isinstance(item, Kernel) and item.unsupported(FULL)]


def test_sections_leave_the_others(tmp_path: Path) -> None:
    path = tmp_path / "assurance.json"
    sections.write(path, "one", {"a": 1})
    sections.write(path, "two", {"b": 2})
    sections.write(path, "one", {"a": 3})
    assert json.loads(path.read_text()) == {"one": {"a": 3}, "two": {"b": 2}}


def test_sections_of_a_core_leave_the_other_one(tmp_path: Path) -> None:
    path = tmp_path / "assurance.json"

    def write(count: int, command: str, *cores: str) -> dict[str, Any]:
        rows = [[f"{core} core, bits", f"{count}"] for core in cores]
        section = {"with": command, "rows": rows, "details": dict.fromkeys(cores, count)}
        sections.write(path, "made", section, cores)
        return json.loads(path.read_text())["made"]

    write(1, "both", "pipelined", "sequential")
    assert write(2, "one", "pipelined") == {
        "with": "one",
        "rows": [["pipelined core, bits", "2"], ["sequential core, bits", "1", "both"]],
        "details": {"pipelined": 2, "sequential": 1},
    }
    assert write(3, "other", "sequential")["rows"] == [
        ["pipelined core, bits", "2", "one"],
        ["sequential core, bits", "3"],
    ]
    assert write(4, "other", "pipelined")["rows"] == [
        ["pipelined core, bits", "4"],
        ["sequential core, bits", "3"],
    ]
    both = [["pipelined core, bits", "5"], ["sequential core, bits", "5"]]
    assert write(5, "both", "pipelined", "sequential")["rows"] == both
