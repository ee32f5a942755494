"""Compiled programs in one memory that run by one start, on every device."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.looking_device import Looking
from support.qdq_models import feeds
from support.small_models import small

import weft
from weft.boards.registry import find
from weft.compiler.backend import DeviceProgram
from weft.compiler.machine.areas import CONSTANTS, OUTPUTS
from weft.examples import digits
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.hdl.isa.program_lists import pitch
from weft.run.runtime import Image
from weft.run.stream import ProgramList, place_programs, stream
from weft.run.virtual import board_at
from weft.sim.device import Device, DeviceError
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

CONFIG = PRESETS["tiny"].replace(probability_bits=0, loops=1, descriptors=1)


@functools.cache
def parts(config: weft.Config = CONFIG) -> tuple[tuple[weft.Program, DeviceProgram], ...]:
    """Two models, each with its device program."""
    programs = [weft.compile(model, config=config) for model in (small(), digits.model())]
    return tuple((program, program.device_programs[0]) for program in programs)


def inputs(program: weft.Program, seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    if "image" in program.inputs:
        return {"image": digits.held_out()[0][seed][None]}
    return feeds(small(), draw)


def contents(program: weft.Program, part: DeviceProgram, seed: int) -> dict[str, np.ndarray]:
    """Initial contents of the program's buffers, as the host writes them."""
    from weft.compiler.host.segments import run_host

    values: dict[str, Any] = program._check(inputs(program, seed))
    for segment in program.segments[: program.segments.index(part)]:
        values |= run_host(segment, values)
    return program._entering(part, values)


def outputs(image: Image, device: Device) -> dict[str, np.ndarray]:
    return {
        name: image.read(device, name)
        for name, buffer in image.program.buffers.items()
        if buffer.kind == "output"
    }


def run(device: Device, order: list[int]) -> list[tuple[int, int]]:
    """Run two models in one memory, in any order, compare outputs with single runs, and return cycles of each."""
    images = place_programs([part for _, part in parts(device.config)])
    at = -(-images[-1].memory_bytes // pitch(device.config)) * pitch(device.config)
    listed = ProgramList([images[place] for place in order], device.config, at, device.memory_bytes)
    listed.load(device)
    for seed, (image, (program, part)) in enumerate(zip(images, parts(device.config), strict=True)):
        image.write(device, contents(program, part, seed))
    listed.start(device)
    device.wait()
    assert device.list_progress().done == len(order)
    records = listed.records(device)
    assert all(record.done for record in records)
    if device.computes:
        for place in set(order):
            program, part = parts(device.config)[place]
            alone, single = GoldenDevice(device.config, 1 << 20), Image(part)
            single.run(alone, contents(program, part, place))
            expected = outputs(single, alone)
            assert expected.keys() == outputs(images[place], device).keys() != set()
            for name, array in outputs(images[place], device).items():
                assert np.array_equal(array, expected[name])
    return [(record.cycles, record.memory) for record in records]


def memory(config: weft.Config = CONFIG) -> int:
    return place_programs([part for _, part in parts(config)])[-1].memory_bytes + 4096


def test_list_may_overwrite_another_program() -> None:
    """The overwritten contents are checked before the next start only."""
    device = Looking(CONFIG, memory())
    for image in place_programs([part for _, part in parts()]):
        for base in image.bases.keys() - {CONSTANTS}:
            device.load(image.bases[base], b"weft" * 4, "another program")
    run(device, [0, 1, 0])
    run(device, [1])


def test_two_models_run_by_one_start() -> None:
    order = [0, 1, 0]
    assert run(GoldenDevice(CONFIG, memory()), order) == [(0, 0)] * 3
    model = TimingDevice(CONFIG, memory(), latency=9)
    with RtlDevice(CONFIG, memory(), latency=9) as device:
        cycles = run(device, order)
        assert cycles == run(model, order)
        assert device.counters() == model.counters()
        assert sum(count for count, _ in cycles) < device.counters()[Counter.CYCLES]


def test_invalid_lists_are_refused() -> None:
    images = place_programs([part for _, part in parts()])
    size = memory()
    with pytest.raises(weft.InputError, match=r"^a list has 1 to 16777215 programs, not 0$"):
        ProgramList([], CONFIG, 0, size)
    with pytest.raises(weft.InputError, match=r"^the list's address 0x20 is no multiple of 64 bytes$"):
        ProgramList(images, CONFIG, 0x20, size)
    with pytest.raises(weft.InputError, match=r"which do not lie in a memory of 64 bytes$"):
        ProgramList(images, CONFIG, 0, 64)
    with pytest.raises(
        weft.InputError, match=r"^program 0 of the list may write to the list: bytes .* are output "
    ):
        ProgramList(images, CONFIG, images[0].bases[OUTPUTS], size)
    with pytest.raises(
        weft.InputError, match=r"^program 1 of the list has memory in the list: bytes .* are the constants$"
    ):
        ProgramList(images, CONFIG, images[1].bases[CONSTANTS], size)
    with pytest.raises(weft.InputError, match=r"^the configuration runs no lists of programs"):
        ProgramList(images, PRESETS["tiny"], size - 4096, size)
    with pytest.raises(weft.InputError, match=r"^there are registers for 1 images, not for 2$"):
        ProgramList(images, CONFIG, size - 4096, size, [{}])
    over = Image(images[1].program, moved={OUTPUTS: images[0].bases[CONSTANTS] + images[0].program.entry})
    with pytest.raises(weft.InputError, match=r"^program 1 of the list may write to the code of program 0: "):
        ProgramList([images[0], over], CONFIG, size - 4096, size)


@pytest.mark.long
def test_simulated_board_runs_lists(tmp_path: Path) -> None:
    """Run two models by one start and groups of one model; refuse an invalid list."""
    config = find("ulx3s-12f").config.replace(
        descriptors=1, n=4, lanes=2, bus_bytes=4, kernel=0, depthwise_taps=0
    )
    (tmp_path / "own.json").write_text(json.dumps(config.to_dict()))
    with board_at(f"virtual:ulx3s-12f@{tmp_path}/own.json", config) as board:
        cycles = run(board, [1, 0, 1])
        assert all(count > 0 for count, _ in cycles)
        (program, _), _ = parts(config)
        runs = [inputs(program, seed) for seed in range(6)]
        for given, result in zip(runs, stream(program, runs, board), strict=True):
            for name, array in program.run(given).outputs.items():
                assert np.array_equal(result.outputs[name], array)
            assert result.report["cycles"] > 0
        # A single program after a list: its base registers differ from the previous ones.
        for given in runs[:2]:
            result = program.run(given, on=board, memory=False)
            for name, array in program.run(given).outputs.items():
                assert np.array_equal(result.outputs[name], array)
        board.write(0, bytes(64))
        board.start_list(0)
        with pytest.raises(
            DeviceError, match=r"^descriptor 0 of the list: what memory holds there is no descr"
        ):
            board.wait()
        again = [count for count, _ in run(board, [0, 1])]
        assert again == pytest.approx([cycles[1][0], cycles[0][0]], rel=0.05)
