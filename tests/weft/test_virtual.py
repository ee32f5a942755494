"""Whole boards in simulation, driven by the same host that drives real ones, over their serial line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import cli
from weft.boards import registry
from weft.boards.board import CoreKind
from weft.boards.host import BoardDevice
from weft.examples import digits
from weft.hdl.config import PRESETS
from weft.hdl.isa import Load
from weft.sim.device import DeviceError
from weft.virtual import VirtualBoard

CONFIGS = {"ulx3s-85f": PRESETS["small"]}
"""Smaller than what fits the board, so that its simulator builds faster."""


@pytest.mark.parametrize("name", ["ulx3s-85f", "icebreaker"])
def test_digits_on_a_board(name: str) -> None:
    board = registry.find(name)
    config = CONFIGS.get(name, board.config)
    program = weft.compile(digits.model(), config=config)
    inputs = {"image": digits.held_out()[0][:1]}
    golden = program.run(inputs, on="golden")
    with VirtualBoard(board, config) as virtual:
        device = BoardDevice.open(virtual.port, config, timeout=5.0)
        assert device.memory_bytes == board.memory.size
        result = program.run(inputs, on=device)
        assert virtual.violations == []
        assert np.array_equal(result.outputs["logits"], golden.outputs["logits"])
        assert result.memory == golden.memory
        slower = 3 if board.core is CoreKind.PIPELINED else 24
        assert result.report["cycles"] < slower * result.report["macs"] / config.n**2

        _survives_failure(device)
        again = program.run(inputs, on=device)
        assert again.memory == golden.memory
        assert again.report["cycles"] == pytest.approx(result.report["cycles"], rel=0.02)
        assert virtual.violations == []
        device.close()


def test_run_on_a_board_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    board = registry.find("icebreaker")
    weft.compile(digits.model(), config=board.config).save("program")
    np.savez("in.npz", image=digits.held_out()[0][:1])
    arguments = ["run", "program", "--input", "in.npz", "--on", "board", "--port"]
    assert _exit_code([*arguments, "virtual:icebreaker", "--report", "report.json"]) == 0
    assert capsys.readouterr().out.endswith("mismatching bytes: 0\n")
    assert json.loads(Path("report.json").read_text())["counters"]["array_active"] > 0
    assert _exit_code([*arguments, "virtual:icecream"]) == 2
    assert "error: unknown board 'icecream'; choose ulx3s-12f" in capsys.readouterr().err


def _exit_code(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return ended.value.code


def _survives_failure(device: BoardDevice) -> None:
    """A program that never ends, cut short while memory is at work; the device can be used again."""
    forever = Load(base=0, rows=4000, row_pitch=0, pixels=64, pitch=16, length=16, run=1024)
    device.write(0x8000, forever.encode() * 8 + Load(wait=1).encode())
    device.set_base(0, 0)
    device.start(0x8000)
    with pytest.raises(DeviceError):
        device.wait(timeout=5000)
