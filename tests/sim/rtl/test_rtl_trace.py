"""Times of units in the RTL: as in the cycle model unless they depend on data, and always as the counters count."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.attention_cases import random_attention
from support.attention_cases import random_inputs as attention_inputs
from support.op_cases import random_inputs, random_op, segment_of
from support.random_programs import MEMORY, WithoutDivision, memory_of

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa import End, Instruction, Load, Mm, Queue, Store, Vec
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.device import DeviceError
from weft.sim.rtl.trace import TracedRtl
from weft.sim.timing import TimingDevice
from weft.sim.timing.device import SAMPLE, Interval

TINY = PRESETS["tiny"]
CONFIGS = {"tiny": TINY, "plain": TINY.replace(probability_bits=0, queue_depth=1)}


def ordered(intervals: list[Interval]) -> list[Interval]:
    return sorted(intervals, key=lambda item: (item.unit, item.instruction, item.kind == "runs"))


def assert_equal(rtl: TracedRtl, model: TimingDevice, what: str) -> None:
    assert model.intervals, what
    assert ordered(rtl.intervals) == ordered(model.intervals), what
    assert rtl.beats == model.beats, what


def assert_adds_up(rtl: TracedRtl, count: int) -> None:
    """Every instruction ran once; its unit was busy while one of its instructions ran, and in no other cycle."""
    counters = rtl.counters()
    runs = [item for item in rtl.intervals if item.kind == "runs"]
    assert sorted(item.instruction for item in runs) == list(range(count))
    starts = {item.instruction: item.start for item in runs}
    for queue in Queue:
        busy: set[int] = set()
        for item in runs:
            busy |= set(range(item.start, item.end)) if item.unit is queue else set()
        assert len(busy) == counters[Counter[f"{queue.name}_BUSY"]]
        assert max(busy, default=0) <= counters[Counter.CYCLES]
    waits = [item for item in rtl.intervals if item.kind == "waits"]
    assert all(item.start < item.end == starts[item.instruction] for item in waits)
    for way, counter in enumerate((Counter.READ_BEATS, Counter.WRITE_BEATS)):
        assert sum(sample[way] for sample in rtl.beats) == counters[counter]
    assert len(rtl.beats) <= counters[Counter.CYCLES] // SAMPLE + 1


@pytest.mark.drawn(1)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_layers_run_as_in_the_cycle_model(config: Config) -> None:
    rng = np.random.default_rng([21, config.queue_depth])
    for case in range(8):
        op = random_op(rng)
        program = compile_segment(segment_of(op), config)
        image, memory = Image(program), memory_of(config, rng)
        model = TimingDevice(config, image.memory_bytes, trace=True, **memory)
        image.run(model, {})
        with TracedRtl(config, image.memory_bytes, **memory) as rtl:
            image.run(rtl, random_inputs(rng, op))
            assert_equal(rtl, model, f"case {case}: {op}, {memory}")
            assert_adds_up(rtl, len(program.instructions) - 1)
            assert rtl.marks() == model.marks()


def test_programs_run_as_in_the_cycle_model() -> None:
    """Twice each: the first run leaves nothing behind."""
    for seed in range(10):
        pick = random.Random(seed)
        memory = {"latency": pick.choice([1, 5, 40]), "bandwidth": pick.choice([None, 1.5])}
        generator = WithoutDivision(TINY, seed, serial=seed % 4 == 0)
        generator.build(25)
        model = TimingDevice(TINY, MEMORY, trace=True, **memory)
        with TracedRtl(TINY, MEMORY, **memory) as rtl:
            for turn in ("first", "second"):
                generator.run(model)
                generator.run(rtl)
                assert_equal(rtl, model, f"seed {seed}, {turn} run, {memory}")


def test_attention_and_pauses_add_up() -> None:
    """Cases where the model knows less than the RTL: sums of probabilities, and a memory that pauses at random."""
    rng = np.random.default_rng(22)
    for case in range(4):
        op = random_attention(rng, TINY)
        program = compile_segment(DeviceSegment("attention", (op,)), TINY)
        image, pauses = Image(program), 0.4 * (case % 2)
        with TracedRtl(TINY, image.memory_bytes, stall_probability=pauses, stall_seed=case) as rtl:
            image.run(rtl, attention_inputs(rng, op))
            assert_adds_up(rtl, len(program.instructions) - 1)


def run(*instructions: Instruction, timeout: int = 5000) -> TracedRtl:
    made = TracedRtl(TINY, 1 << 14)
    made.write(0x100, b"".join(instruction.encode() for instruction in (*instructions, End())))
    made.start(0x100)
    made.wait(timeout)
    return made


def test_units_without_work_have_no_intervals() -> None:
    with run() as rtl:
        assert rtl.intervals == []
        assert_adds_up(rtl, 0)
    with run(Load(rows=3, signal=1), Vec(wait=1)) as rtl:
        assert [(item.unit, item.kind) for item in rtl.intervals] == [
            (Queue.LOAD, "runs"), (Queue.VEC, "waits"), (Queue.VEC, "runs"),
        ]  # fmt: skip
        load, _, vec = rtl.intervals
        # The semaphore is there a cycle after it was given, what waits is offered one later, and starts after that.
        assert vec.start == load.end + 2


def test_a_program_that_fails_has_no_intervals() -> None:
    with TracedRtl(TINY, 1 << 14) as rtl:
        rtl.write(0, Mm().encode() + Store(wait=1).encode() + End().encode())
        rtl.start(0)
        with pytest.raises(DeviceError, match="is not done after 500 cycles"):
            rtl.wait(500)
        assert rtl.intervals == []
