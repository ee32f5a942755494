"""Tests that scenarios for rare numbers and times reach these numbers and times."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from closure import extremes
from closure.cores import FULL, SMALL
from support.core_balanced import LIMITS, Balanced, balanced_scenarios
from support.core_cases import Benches, Core, Scenario
from support.core_corners import KINDS as CORNERS
from support.core_corners import Apart, Corners, Kind, corners
from support.core_crowded import REFUSED, SEEDS, crowded_scenarios
from support.core_directed import ends
from support.core_large import SHORT_STORES, Large, WholeSums, large
from support.core_long import long
from support.core_nested import LOOPS, Nested, nested_scenarios
from support.core_signals import KINDS, MASKS, signals
from support.random_instructions import DUMP
from support.random_programs import MEMORY

from weft.hdl.isa import Instruction, Kernel, Load, Mm, Normalise, Softmax, Store, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import FACTOR_FRACTION_BITS
from weft.hdl.isa.memmap import Counter
from weft.sim.rtl.coverage import HostedRtl


def runs(scenarios: Iterable[Scenario], config: Config = SMALL) -> list[dict[Counter, int]]:
    """Run each scenario, which must pass, and return the core's counters after it."""
    found = []
    for scenario in scenarios:
        with HostedRtl(config, scenario.bench.size, **scenario.bench.memory) as device:
            assert [step.fault(device) for step in scenario.steps] == [None] * len(scenario.steps)
            found.append(device.counters())
    return found


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long if kind in (Mm, Kernel) else ()) for kind in LOOPS]
)
def test_each_loop_is_long_within_another(kind: type[Instruction]) -> None:
    made = Nested(FULL, 8000, (kind,))
    made.build_nested()
    drawn = [item for item in made.program if isinstance(item, kind)]
    for loop in LOOPS[kind]:
        outer = LOOPS[kind][: LOOPS[kind].index(loop)]
        within = [item for item in drawn if getattr(item, loop) > 16]
        assert len(within) >= 2
        if outer:
            assert any(math.prod(getattr(item, name) for name in outer) > 1 for item in within)


@pytest.mark.long
def test_loops_within_loops_take_the_time_of_the_cycle_model() -> None:
    runs(nested_scenarios(Core(SMALL), (Vec, Load)))


@pytest.mark.long
def test_sums_show_both_of_their_terms() -> None:
    made = Balanced(SMALL, 9000, (Vec,))
    made.share = 2
    made.build_sums()
    stored = made.memories.dram[DUMP : DUMP + made.stored].reshape(-1, SMALL.scratchpad_size * SMALL.n)
    results = np.concatenate([after[before != after] for before, after in itertools.pairwise(stored)])
    saturated = np.isin(results.astype(np.int8), (-128, 127)).mean()
    assert len(results) > 500
    assert saturated < 0.4
    assert len({item.b_mantissa.bit_length() for item in made.program if isinstance(item, Vec)}) > 8


def test_values_of_4_bits_meet_factors_that_saturate() -> None:
    """Only the product -8 times -128 saturates."""
    made = Balanced(FULL, 9000, (Vec,))
    made.build_blocks()
    assert 0x88 in LIMITS
    assert 0x80 in LIMITS
    assert 8 * 128 >> FACTOR_FRACTION_BITS == 128
    loads = [item for item in made.program if isinstance(item, Load) and item.blocks]
    stored = made.memories.dram[DUMP : DUMP + made.stored].astype(np.int8)
    assert len(loads) == 30
    assert (stored == 127).sum() > 100


@pytest.mark.long
def test_balanced_programs_are_right() -> None:
    assert len(runs(balanced_scenarios(Core(SMALL)))) == 2


@pytest.mark.long
def test_units_wait_for_memories() -> None:
    counters = runs(crowded_scenarios(Core(SMALL)))
    loads = len(SEEDS[Load])
    assert len(counters) == loads + len(REFUSED[Softmax])
    assert all(item[Counter.LOAD_PORT] > 0 for item in counters[:loads])
    assert all(item[Counter.VEC_PORT] > 0 for item in counters)


@pytest.mark.long
def test_kernels_are_refused_what_they_read_and_write_right() -> None:
    scenarios = list(crowded_scenarios(Core(FULL)))
    for counters in runs(scenarios[-len(REFUSED[Kernel]) - len(REFUSED[Softmax]) :], FULL):
        assert counters[Counter.VEC_PORT] > 5000


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long if kind.needs is Normalise else ()) for kind in CORNERS],
)
def test_corners_are_right(kind: Kind) -> None:
    first = next(corners(Core(SMALL), [kind]))
    assert len(runs([first])) == 1


@pytest.mark.long
def test_corners_are_right_of_a_core_with_everything() -> None:
    assert len(runs(corners(Core(FULL)), FULL)) > len(CORNERS)


@pytest.mark.long
def test_masks_end_far_in_a_row_and_begin_ahead_of_it() -> None:
    made = Corners(FULL, 7000, (Load,))
    made.build_masks()
    drawn = [item for item in made.program if isinstance(item, Softmax)]
    assert any(item.causal and not item.relative and item.diagonal < -1 for item in drawn)
    assert any(not item.causal and not item.relative and item.length > 128 for item in drawn)


@pytest.mark.long
def test_quotients_show_the_last_bit_of_their_factor() -> None:
    """Some results of each sum and scale change with it."""
    seen = []

    class Watched(Apart):
        def draw_valid(self, kind: type[Instruction], change: Any, *, observe: bool = True) -> None:
            if kind is Normalise and "scale" in change:
                seen.append(self._sharpness(change["state"], change["scale"], self.scratchpad // 2))
            super().draw_valid(kind, change, observe=observe)

    Watched(FULL, 7000, (Load,)).build_quotients()
    assert len(seen) > 100
    assert np.mean(seen) > 2


def test_a_kernel_runs_while_products_read() -> None:
    """Neither waits for the other."""
    scenario = next(crowded_scenarios(Core(FULL)))
    program = scenario.steps[0].program
    first = next(index for index, item in enumerate(program) if isinstance(item, Mm))
    beside = [item for item in program[first + 1 : first + 7] if isinstance(item, (Kernel, Store))]
    assert [item.wait & program[first].signal for item in beside if isinstance(item, Kernel)] == [0] * 5


def test_signals_are_of_all_kinds_but_kernels() -> None:
    (scenario,) = signals(Core(FULL))
    kinds = {type(item.program[0]) for item in scenario.steps if item.program}
    assert {type(item) for item in KINDS} == kinds
    assert len(scenario.steps) == len(KINDS) * (len(MASKS) + 16)


def test_a_signal_that_is_lost_is_seen() -> None:
    (scenario,) = signals(Core(SMALL))
    step = next(step for step in scenario.steps if step.program[0].signal == 0x5555)
    given, taken = step.program
    lost = ends([dataclasses.replace(given, signal=0x5554), taken], "one is lost")
    more = ends([dataclasses.replace(given, signal=0x5555), taken], "none is lost", never=True)
    with HostedRtl(SMALL, MEMORY, latency=2) as device:
        assert [item.fault(device) for item in (step, lost, more)] == [
            None,
            "one is lost: not done",
            "none is lost: done, 2",
        ]


def test_sums_grow_to_the_largest_number_and_wrap() -> None:
    seen: list[list[int]] = []

    class Watched(WholeSums):
        def observe(self, *, accumulators: bool = False) -> None:
            super().observe(accumulators=accumulators)
            seen.append([int(total) for total in self.memories.sums[:2]])

    Watched(FULL, 6000, (Softmax,)).build_whole_sums()
    growing, largest = zip(*seen, strict=True)
    assert any(after < before for before, after in itertools.pairwise(growing))
    assert max(largest) >= (1 << 32) - 128  # which rounds up beyond 24 bits where 8 bits are left off
    assert 0 < largest[-1] < largest[-2]


@pytest.mark.long
def test_short_stores_wait_for_memory_that_is_late() -> None:
    scenario = next(item for item in large(Core(SMALL)) if "short" in item.name)
    (counters,) = runs([scenario])
    assert counters[Counter.STORE_BUSY] > 200 * SHORT_STORES / 4
    made = Large(SMALL, 6000, (Store,))
    made.build_short_stores()
    assert sum(isinstance(item, Store) for item in made.program) == SHORT_STORES


def test_registers_are_read_in_every_count() -> None:
    step = extremes._counts(Core(FULL), Benches(Core(FULL)).of({"latency": 1}))
    places = [(item.base, item.offset) for item in step.program if isinstance(item, Store)]
    assert len(set(places)) > sum(range(1, 9))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("config", [SMALL, FULL])
def test_long_programs_have_large_counts(config: Config) -> None:
    """Each bit of counts of pixels, rows and bytes, with and without the bit below it. Further transfers differ from
    shorter ones in all bits of a count."""
    items = [item for scenario in long(Core(config)) for step in scenario.steps for item in step.program]
    loads = [item for item in items if isinstance(item, Load)]
    for name, bits in (("pixels", range(9, 16)), ("length", range(9, 16)), ("rows", range(9, 12))):
        counts = {getattr(item, name) for item in loads}
        for bit in bits:
            assert {0b10, 0b11} <= {count >> bit - 1 for count in counts}, (name, bit)
    runs_ = {item.run for item in loads} | {
        item.pixels * item.length for item in items if isinstance(item, Store)
    }
    assert max(runs_) >> 21 == 0b11
    assert not long(Core(config, sequential=True))


@pytest.mark.long
@pytest.mark.parametrize("config", [SMALL, FULL])
def test_long_programs_are_right(config: Config) -> None:
    counters = runs(long(Core(config)), config)
    assert max(item[Counter.CYCLES] for item in counters) > 1 << 22
