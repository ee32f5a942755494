"""Streams of runs equal single runs for every device timing, and overlap where memory allows."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.logged_device import Logged, need
from support.qdq_models import feeds
from support.small_models import small
from support.state_models import Ring

import weft
from weft.examples import digits
from weft.hdl.isa.config import PRESETS
from weft.run.stream import MAX_LIST_RUNS, alternate_images, stream
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

CONFIG = PRESETS["tiny"]
LISTS = CONFIG.replace(probability_bits=0, loops=1, descriptors=1)


@functools.cache
def model(name: str, config: weft.Config = CONFIG) -> weft.Program:
    return weft.compile({"digits": digits.model, "small": small}[name](), config=config)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("config", [CONFIG, LISTS], ids=["alone", "lists"])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", ["digits", "small"])
def test_results_equal_single_runs(name: str, early: bool, config: weft.Config) -> None:
    program = model(name, config)
    draw = np.random.default_rng(1)
    if name == "digits":
        runs = [{"image": image[None]} for image in digits.held_out()[0][:3]]
    else:
        runs = [feeds(small(), draw) for _ in range(5)]
    reference = [program.run(inputs, on="golden") for inputs in runs]
    assert any(
        not np.array_equal(first, second)
        for first, second in zip(reference[0].outputs.values(), reference[1].outputs.values(), strict=True)
    )
    for count in (1, 2, len(runs)):
        device = Logged(2 * need(program), early=early, config=config)
        results = list(stream(program, runs[:count], device))
        assert len(results) == count
        assert ("list" in device.log) == (config is LISTS and count > 1)
        for result, expected in zip(results, reference, strict=False):
            for output, array in expected.outputs.items():
                assert np.array_equal(result.outputs[output], array)
            assert result.report["macs"] == expected.report["macs"]
            assert [layer["name"] for layer in result.report["layers"]] == [
                layer["name"] for layer in expected.report["layers"]
            ]


def test_transfers_overlap_computation() -> None:
    program = model("small")
    device = Logged(2 * need(program), early=False)
    results = stream(program, [feeds(small(), np.random.default_rng(seed)) for seed in range(3)], device)
    assert device.log == []
    next(results)  # before the second run has ended
    assert device.log == ["load", "load", "write", "start", "write", "wait", "start", "read"]
    list(results)
    assert device.log[8:] == ["write", "wait", "start", "read", "wait", "read"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("count", [2, 4, 5, 9])
def test_one_start_runs_a_group(count: int) -> None:
    program = model("small", LISTS)
    runs = [feeds(small(), np.random.default_rng(seed)) for seed in range(count)]
    device = Logged(40 * need(program), early=False, config=LISTS)
    results = list(stream(program, runs, device))
    size = min(MAX_LIST_RUNS, count)
    assert [entry for entry in device.log if entry in ("start", "list", "wait")] == (
        ["list", "wait"] * -(-count // size)
    )
    # The second group's inputs are written during the first group's computation.
    before = device.log[: device.log.index("wait")]
    assert before.count("write") == size + 1 + min(size, count - size)
    for inputs, result in zip(runs, results, strict=True):
        for output, array in program.run(inputs).outputs.items():
            assert np.array_equal(result.outputs[output], array)


def test_small_memory_limits_the_group() -> None:
    program = model("small", LISTS)
    runs = [feeds(small(), np.random.default_rng(seed)) for seed in range(8)]
    reference = [program.run(inputs).outputs for inputs in runs]
    starts = set()
    for memory in range(need(program), 4 * need(program), need(program) // 16):
        device = Logged(memory, early=False, config=LISTS)
        for expected, result in zip(reference, stream(program, runs, device), strict=True):
            for output, array in expected.items():
                assert np.array_equal(result.outputs[output], array)
        starts.add((device.log.count("list"), device.log.count("start")))
    assert starts >= {(0, 8), (4, 0), (3, 0), (2, 0)}


def test_reports_of_grouped_runs_have_their_own_cycles() -> None:
    program = model("small", LISTS)
    runs = [feeds(small(), np.random.default_rng(seed)) for seed in range(5)]
    with RtlDevice(LISTS, 8 * need(program), bandwidth=1.5) as device:
        results = list(stream(program, runs, device))
        alone = [program.run(inputs, on=device) for inputs in runs]
    for inputs, result, single in zip(runs, results, alone, strict=True):
        for output, array in program.run(inputs).outputs.items():
            assert np.array_equal(result.outputs[output], array)
        assert result.report["cycles"] == pytest.approx(single.report["cycles"], rel=0.01)
        assert result.report["counters"].keys() == {"cycles", "load_memory"}
        assert result.report["counters"]["load_memory"] == pytest.approx(
            single.report["counters"]["load_memory"], rel=0.05
        )
        assert {layer["cycles"] for layer in result.report["layers"]} == {None}


def test_small_memory_serialises_runs() -> None:
    program = model("small")
    runs = [feeds(small(), np.random.default_rng(seed)) for seed in range(3)]
    least = 2 * need(program)
    while alternate_images(program, least - 1) is not None:
        least -= 1
    assert need(program) < least < 2 * need(program)
    for memory, log in ((least, ["start", "write"]), (least - 1, ["start", "wait"])):
        device = Logged(memory, early=False)
        for inputs, result in zip(runs, stream(program, runs, device), strict=True):
            for output, array in program.run(inputs).outputs.items():
                assert np.array_equal(result.outputs[output], array)
        assert device.log[device.log.index("start") :][:2] == log


def test_inputs_within_temporaries_are_not_overwritten() -> None:
    """In programs for small memories the next run's inputs would be overwritten."""
    program = weft.compile(small(), "icebreaker")
    assert all(part.compact for part in program.device_programs)
    assert alternate_images(program, 1 << 30) is None
    runs = [feeds(small(), np.random.default_rng(seed)) for seed in range(3)]
    reference = [program.run(inputs).outputs for inputs in runs]
    device = GoldenDevice(program.config, 4 * need(program))
    for result, expected in zip(stream(program, runs, device), reference, strict=True):
        for output, array in expected.items():
            assert np.array_equal(result.outputs[output], array)


@pytest.mark.parametrize("config", [CONFIG, LISTS], ids=["alone", "lists"])
def test_states_persist(config: weft.Config) -> None:
    ring = Ring(taps=3, channels=4)
    program = weft.compile(ring.build(), config)
    runs = ring.feeds(4)
    name = next(iter(program.inputs))
    reference = [program.run({name: inputs}) for inputs in runs]
    kept = program.states
    program.reset()
    device = Logged(40 * need(program), early=False, config=config)
    results = list(stream(program, [{name: inputs} for inputs in runs], device))
    for result, expected in zip(results, reference, strict=True):
        for output, array in expected.outputs.items():
            assert np.array_equal(result.outputs[output], array)
    assert program.states.keys() == kept.keys() != set()
    assert all(np.array_equal(program.states[state], array) for state, array in kept.items())


def test_wrong_inputs_are_refused_before_the_first_start() -> None:
    program = model("small")
    good = feeds(small(), np.random.default_rng(1))
    device = Logged(2 * need(program), early=False)
    with pytest.raises(weft.InputError, match="is missing"):
        list(stream(program, [good, {}, good], device))
    assert "start" not in device.log
