"""The cycle model with a board's SDRAM against simulations of whole boards."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.memory_cases import KINDS, case, cases
from support.preloaded_board import Preloaded, preloaded_board

from weft.boards.registry import find
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.memories import Sdram
from weft.sim.timing import TimingDevice

Counters = dict[Counter, int]
BANDWIDTH = 1.9
SHORT = 12_000
"""Cycles of programs that are tried at every phase of the refreshes."""
CLOSE, TOGETHER = 0.03, 0.003
"""Part of the cycles by which a program may differ whose phase is not known, and many on average."""
SLACK = 60
"""Cycles by which shorter ones may differ, as a refresh at their end is or is not part of them."""


def sdram_of(name: str, clock: float | None = None) -> Sdram:
    board = find(name)
    found = board.sdram(clock or board.clock)
    assert found is not None
    return found


def modelled(config: Config, image: Image, inputs: dict[str, np.ndarray], sdram: Sdram) -> Counters:
    device = TimingDevice(config, image.memory_bytes, sdram=sdram)
    image.run(device, inputs)
    return device.counters()


def counted(device: Preloaded, image: Image, inputs: dict[str, np.ndarray]) -> Counters:
    image.run(device, inputs)
    return device.counters()


def nearest(image: Image, inputs: dict[str, np.ndarray], sdram: Sdram, real: Counters, config: Config) -> int:
    """Difference of all counters together at the phase where it is smallest."""
    least = 1 << 60
    for phase in range(sdram.refresh):
        model = modelled(config, image, inputs, dataclasses.replace(sdram, phase=phase))
        least = min(least, sum(abs(model[counter] - real[counter]) for counter in Counter))
        if least == 0:
            break
    return least


def test_every_counter_is_exact_at_some_phase() -> None:
    """Refreshes go on between programs, so the first one's offset within a program is unknown."""
    board, rng = find("ulx3s-12f"), np.random.default_rng(21)
    sdram = sdram_of(board.name)
    with preloaded_board(board, board.config) as device:
        for kind in KINDS:
            while True:
                image, inputs = case(rng, board.config, kind, BANDWIDTH)
                if modelled(board.config, image, inputs, sdram)[Counter.CYCLES] < SHORT:
                    break
            real = counted(device, image, inputs)
            assert nearest(image, inputs, sdram, real, board.config) == 0, kind


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "clock"),
    [
        ("ulx3s-12f", None),
        ("ulx3s-45f", None),
        ("ulx3s-85f", None),
        ("ulx3s-12f", 25e6),
        ("ulx3s-45f", 100e6),
        ("ulx3s-85f", 50e6),
    ],
)
def test_cycles_are_the_boards(name: str, clock: float | None) -> None:
    """The 25F is a 12F with another name. Attention's divisions depend on data that the model does not see."""
    board = find(name)
    board = dataclasses.replace(board, clock=clock or board.clock)
    sdram = sdram_of(name, clock)
    exact, apart = 0, []
    with preloaded_board(board, board.config) as device:
        for title, image, inputs in cases(board.config, 22, 5, BANDWIDTH):
            real = counted(device, image, inputs)
            model = modelled(board.config, image, inputs, sdram)
            cycles = real[Counter.CYCLES]
            apart.append(model[Counter.CYCLES] / cycles - 1)
            assert abs(model[Counter.CYCLES] - cycles) <= max(CLOSE * cycles, SLACK), title
            if cycles < SHORT and not title.startswith("attention") and exact < 8:
                assert nearest(image, inputs, sdram, real, board.config) == 0, title
                exact += 1
    assert exact
    assert abs(np.mean(apart)) < TOGETHER


def test_phases_repeat() -> None:
    """After any pause of memory, a program finds the state of one interval less or more."""
    config, sdram = find("ulx3s-12f").config, sdram_of("ulx3s-12f")
    image, inputs = case(np.random.default_rng(23), config, "depthwise", BANDWIDTH)
    cycles = []
    for phase in (0, 1, 7, 100, sdram.refresh - 3):
        alike = [
            modelled(config, image, inputs, dataclasses.replace(sdram, phase=phase + times * sdram.refresh))
            for times in (0, 1, 3, 4, 5, 1000)
        ]
        assert all(other == alike[0] for other in alike[1:]), phase
        cycles.append(alike[0][Counter.CYCLES])
    assert np.ptp(cycles) < SLACK


def test_refreshes_cost_cycles() -> None:
    config, sdram = find("ulx3s-12f").config, sdram_of("ulx3s-12f")
    image, inputs = case(np.random.default_rng(24), config, "dense", BANDWIDTH)
    often, seldom = (
        modelled(config, image, inputs, dataclasses.replace(sdram, refresh=refresh))[Counter.CYCLES]
        for refresh in (100, 1 << 30)
    )
    # Closing, refreshing and opening take at least 12 cycles of every 100.
    assert often > 1.1 * seldom


def test_runs_follow_each_other() -> None:
    """A device that has run a program is as good as a new one."""
    config, sdram = find("ulx3s-45f").config, sdram_of("ulx3s-45f")
    image, inputs = case(np.random.default_rng(25), config, "copy", BANDWIDTH)
    device = TimingDevice(config, image.memory_bytes, sdram=sdram, trace=True)
    seen = []
    for _ in range(2):
        image.run(device, inputs)
        seen.append((device.counters(), device.beats, device.marks()))
    assert seen[0] == seen[1]
    counters, beats, marks = seen[0]
    assert counters == modelled(config, image, inputs, sdram)
    assert [sum(way) for way in zip(*beats, strict=True)] == [
        counters[Counter.READ_BEATS],
        counters[Counter.WRITE_BEATS],
    ]
    assert 0 < marks[-1] <= counters[Counter.CYCLES]
