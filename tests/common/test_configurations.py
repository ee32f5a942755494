"""Configurations by name, and the core that a board has with each: all presets, all boards."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import qdq_models

import weft
from weft import ConfigError, InputError, Program
from weft import __main__ as command
from weft.api import _check_program
from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.artefact import Compiled
from weft.compiler.backend import DeviceProgram
from weft.configurations import configuration, names, sequential_boards
from weft.examples import digits
from weft.hdl import core as pipelined
from weft.hdl import verilog as generating
from weft.hdl.errors import ProgramError
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential import core as sequential
from weft.run.attention import PagedAttention
from weft.run.trace import timelines_of
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl import device as rtl
from weft.sim.timing.device import SequentialTimingDevice

SEQUENTIAL = [name for name, board in BOARDS.items() if board.core is CoreKind.SEQUENTIAL]
PIPELINED = [name for name, board in BOARDS.items() if board.core is CoreKind.PIPELINED]
INPUTS = {"image": digits.held_out()[0][:1]}


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


@pytest.mark.parametrize("name", [*PRESETS, *BOARDS])
def test_names(name: str, tmp_path: Path) -> None:
    expected = PRESETS[name] if name in PRESETS else BOARDS[name].config
    file = tmp_path / "config.json"
    file.write_text(json.dumps(expected.to_dict()))
    assert name in names()
    for source in (name, expected, file, str(file)):
        assert configuration(source) == expected


def test_unknown_names_are_refused() -> None:
    choice = rf"choose a preset \({', '.join(PRESETS)}\), a board \({', '.join(BOARDS)}\), or a .json file"
    for name in ("", "vast", "ULX3S", "small.onnx"):
        with pytest.raises(ConfigError, match=f"^unknown configuration '{name}'; {choice}$"):
            configuration(name)
    with pytest.raises(ConfigError, match=r"^cannot read configuration none.json: No such file"):
        configuration("none.json")


def test_boards_have_pipelined_or_sequential_cores() -> None:
    """No configuration is pipelined on one board and sequential on another."""
    assert SEQUENTIAL
    assert PIPELINED
    for config in [*PRESETS.values(), *(BOARDS[name].config for name in PIPELINED)]:
        assert sequential_boards(config) == []
    for name in SEQUENTIAL:
        assert name in sequential_boards(BOARDS[name].config)


@pytest.fixture(params=SEQUENTIAL)
def board(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["name", "configuration", "file", "folder"])
def program(request: pytest.FixtureRequest, board: str, tmp_path: Path) -> Program:
    """The digits network for a board: compiled by board name, by configuration, from a JSON file, and read back."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(BOARDS[board].config.to_dict()))
    sources: dict[str, str | Config | Path] = {"configuration": BOARDS[board].config, "file": file}
    compiled = weft.compile(digits.model(), config=sources.get(request.param, board))
    if request.param == "folder":
        compiled.save(tmp_path / "program")
        return weft.load(tmp_path / "program")
    return compiled


@pytest.mark.drawn(5)
def test_cycle_model_counts_the_sequential_core(program: Program) -> None:
    """The pipelined core takes 123,150 cycles."""
    assert 900_000 < program.run(INPUTS, on="timing").report["cycles"] < 2_000_000


@pytest.mark.drawn(5)
def test_pipelined_core_features_are_refused(program: Program, board: str) -> None:
    message = f"^this is the configuration of .*{board}.*, which (have|has) the sequential core"
    for on in ("timing", "rtl"):
        with pytest.raises(InputError, match=message + ": there are no traces of it"):
            timelines_of(program, on=on)


def test_commands_for_the_sequential_core(
    board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("example", "digits") == 0
    assert call("compile", "digits.onnx", "-o", "program", "--config", board) == 0
    before = sorted(Path().rglob("*"))
    for arguments in (
        ["trace", "program", "-o", "trace.json"],
        ["trace", "program", "--on", "rtl", "--svg", "trace.svg"],
    ):
        capsys.readouterr()
        assert call(*arguments) == 2
        errors = capsys.readouterr().err.splitlines()
        assert re.match(f"error: this is the configuration of .*{board}.* the sequential core", errors[-1])
    assert sorted(Path().rglob("*")) == before


def reorder_for_queues(config: str | Config) -> Compiled:
    """Return digits with its first waiting instruction exchanged with the instruction before it."""
    compiled = weft.compile(digits.model(), config)._compiled
    segments = list(compiled.segments)
    number, segment = next((i, item) for i, item in enumerate(segments) if isinstance(item, DeviceProgram))
    order = list(segment.instructions)
    at = next(i for i in range(1, len(order)) if order[i].wait & order[i - 1].signal)
    order[at - 1 : at + 1] = order[at], order[at - 1]
    segments[number] = dataclasses.replace(segment, instructions=Code.of(order))
    return dataclasses.replace(compiled, segments=tuple(segments))


TOO_EARLY = r"waits for semaphore \d+, which no earlier instruction has signalled: the sequential core"


def test_order_that_needs_queues_is_refused(board: str) -> None:
    """Compiling, loading and running refuse it: see `weft.hdl.checker.order`."""
    with pytest.raises(ProgramError, match=rf"^device1: instruction \d+ \([A-Z]+\) {TOO_EARLY}"):
        _check_program(reorder_for_queues(board))


def test_order_that_needs_queues_runs_on_the_pipelined_core() -> None:
    config = PRESETS["tiny"].replace(depthwise_taps=0)
    program = _check_program(reorder_for_queues(config))
    outputs = program.run(INPUTS).outputs
    right = weft.compile(digits.model(), config).run(INPUTS).outputs
    assert all(np.array_equal(outputs[name], value) for name, value in right.items())
    with pytest.raises(ProgramError, match=rf"^instruction \d+ \([A-Z]+\) {TOO_EARLY}"):
        program.run(INPUTS, on=SequentialTimingDevice(config, 1 << 20))


@pytest.mark.parametrize("name", ["tiny", *BOARDS])
def test_rtl_and_verilog_match_the_core_of_the_board(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Asked(Exception):
        pass

    def device(config: Config, memory_bytes: int, **options: Any) -> None:
        made.append(options["sequential"])
        raise Asked

    monkeypatch.setattr(rtl, "RtlDevice", device)
    n = configuration(name).n
    attention = PagedAttention(name, heads=1, head_size=n, page=n, pages=1, capacity=1, largest=100)
    pool = np.zeros((1, n, 1, n), np.int8)
    with pytest.raises(Asked):
        attention.run(np.zeros((1, 1, n), np.int8), pool, pool, [0], 1, on="rtl")
    monkeypatch.setattr(generating, "generate", lambda core, **options: core)
    monkeypatch.setattr(pipelined, "Core", lambda config: "pipelined core")
    monkeypatch.setattr(sequential, "SequentialCore", lambda config: "sequential core")
    text, description = weft.verilog(name)
    assert made == [name in SEQUENTIAL]
    assert text == f"{description['core']} core"
    assert description["core"] == ("sequential" if name in SEQUENTIAL else "pipelined")
    assert description["format"] == "weft description 1"
    assert Config.from_dict(description["parameters"]) == configuration(name)


def test_digits_on_the_sequential_core() -> None:
    """The cycle estimate is near the simulated board's 1,358,289, not the pipelined core's 123,150."""
    result = weft.compile(digits.model(), "icebreaker").run(INPUTS, on="rtl", latency=1)
    golden = weft.compile(digits.model(), "icebreaker").run(INPUTS)
    assert result.memory[: len(golden.memory)] == golden.memory
    assert 900_000 < result.report["cycles"] < 2_000_000


class Named(GoldenDevice):
    """Golden interpreter that reports a board's name."""

    identity = SimpleNamespace(board="")


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", names())
def test_layer_bottleneck_is_that_of_the_running_core(name: str) -> None:
    """The core is the board's if the device names its board, else the configuration's."""
    model = qdq_models.LAYERS["conv"](np.random.default_rng(0))
    program = weft.compile(model, name)
    inputs = qdq_models.feeds(model, np.random.default_rng(1))
    device = Named(program.config, 1 << 20)
    for board in ("", "unknown", *BOARDS):
        device.identity.board = board
        in_turn = (board if board in BOARDS else name) in SEQUENTIAL
        bounds = {layer["bound"] for layer in program.run(inputs, on=device).report["layers"]}
        assert (bounds == {None}) == in_turn
        assert in_turn or bounds <= {"array", "vector unit", "memory"}
