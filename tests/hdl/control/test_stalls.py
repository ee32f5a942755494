"""When a program is said to hang, from counters alone, and what is said of the units."""

from __future__ import annotations

import random

import pytest

from weft.hdl.control.counters import PROGRESS_COUNTERS, READING_SLACK, HangDetector, describe_stalls
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter

CONFIG = PRESETS["tiny"]
UNITS = ("LOAD", "MM", "VEC", "STORE")
STALLS = [
    counter for counter in Counter if counter.name.endswith(("_MEMORY", "_SEMAPHORE", "_PORT", "_WEIGHTS"))
]
IDLE = "LOAD is idle, MM is idle, VEC is idle, STORE is idle"


class Program:
    """Counters that go up."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(Counter, 0)

    def run(self, cycles: int, *moving: Counter) -> dict[Counter, int]:
        for counter in (Counter.CYCLES, *moving):
            self.counters[counter] += cycles
        return dict(self.counters)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("config", [CONFIG, PRESETS["default"]], ids=["tiny", "default"])
def test_a_program_hangs_after_a_while_without_progress(config: Config, sequential: bool) -> None:
    """Whatever else goes up, and however often one looks: not before, and not much later."""
    draw = random.Random(7)
    for others in (
        [],
        [Counter.LOAD_BUSY],
        [Counter.LOAD_BUSY, Counter.LOAD_MEMORY],
        [*STALLS, Counter.MM_BUSY],
    ):
        for step in (1, 3, 10):
            watch, program = HangDetector(config, 50_000, sequential=sequential), Program()
            assert not watch.hangs(program.run(draw.randrange(1 << 40), *PROGRESS_COUNTERS))
            stood = 0
            while not watch.hangs(program.run(watch.quiet // step, *others)):
                stood += watch.quiet // step
            assert watch.quiet <= stood + watch.quiet // step < watch.quiet * (1 + 2 / step)


@pytest.mark.parametrize("counter", PROGRESS_COUNTERS)
def test_any_move_is_progress(counter: Counter) -> None:
    watch, program = HangDetector(CONFIG, 0), Program()
    for _ in range(10):
        assert not watch.hangs(program.run(watch.quiet - 1))
        program.counters[counter] += 1
        assert not watch.hangs(program.run(1))
    program.run(watch.quiet - 1)
    assert not watch.hangs(program.counters)
    assert watch.hangs(program.run(1))


def test_the_vector_unit_may_work_for_long_but_not_for_ever() -> None:
    watch, program = HangDetector(CONFIG, 0), Program()
    watch.hangs(program.run(5))
    step = watch.quiet // 2
    for _ in range(watch.longest // step):
        assert not watch.hangs(program.run(step, Counter.VEC_BUSY))
    assert watch.hangs(program.run(step, Counter.VEC_BUSY))


def test_past_work_of_the_vector_unit_is_no_progress() -> None:
    watch, program = HangDetector(CONFIG, 0), Program()
    watch.hangs(program.run(5))
    assert not watch.hangs(program.run(2 * READING_SLACK, Counter.VEC_BUSY))
    assert not watch.hangs(program.run(watch.quiet - 1))
    assert watch.hangs(program.run(1))


def test_looks_that_follow_each_other_quickly_see_the_vector_unit_work() -> None:
    watch, program = HangDetector(CONFIG, 0), Program()
    for _ in range(3 * watch.quiet // 400):
        assert not watch.hangs(program.run(400, Counter.VEC_BUSY))


@pytest.mark.parametrize("name", PRESETS)
def test_limits_grow_with_what_an_instruction_may_touch(name: str) -> None:
    config = PRESETS[name]
    watch = HangDetector(config, 0)
    # A vector of fill bytes takes its bytes and some, an element of the longest VEC instruction a long division.
    assert watch.quiet >= config.scratchpad_size * (config.n + 20)
    assert watch.longest >= 49 * config.scratchpad_size * config.n * 200
    assert HangDetector(config, watch.quiet + 7).quiet == watch.quiet + 7
    assert HangDetector(config, 0, sequential=False).quiet < watch.quiet


def test_reasons_of_waits() -> None:
    program = Program()
    before = program.run(10)
    assert describe_stalls(before, program.run(10)) == f"{IDLE}, the next instruction waits for memory"
    program.counters[Counter.READ_BEATS] += 1
    assert describe_stalls(before, program.counters) == IDLE
    after = program.run(10, Counter.LOAD_BUSY, Counter.MM_SEMAPHORE, Counter.MM_PORT, Counter.VEC_BUSY)
    expected = "LOAD {}, MM waits for semaphore and port, VEC is busy, STORE is idle"
    assert describe_stalls(before, after) == expected.format("is busy")
    assert describe_stalls(before, after, hangs=True) == expected.format("waits for memory")
