"""`weft run` on a board: confirmation of results, and programs in several parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from support.looking_device import Looking
from support.qdq_models import Builder, feeds, finish_all
from support.small_models import small

import weft
from weft.boards.bus.memory import Transfer
from weft.boards.link.frames import Identity
from weft.boards.registry import find
from weft.run import board_run
from weft.run.runtime import Image
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice

BOARD = find("icebreaker")


class Forgetful(GoldenDevice):
    """Board with right results that, if it `forgets`, has lost the loaded weights at the end."""

    identity, port, retries = Identity(BOARD.name, 0, 0, int(BOARD.clock), 0), "/dev/board", 0
    transfer = Transfer()

    def __init__(self, config: Any, memory_bytes: int, *, forgets: bool) -> None:
        super().__init__(config, memory_bytes)
        self.forgets, self.log = forgets, []

    def start(self, program: int) -> None:
        self.log.append("start")
        super().start(program)

    def confirm(self) -> None:
        self.log.append("confirm")
        if self.forgets:
            raise DeviceError("the weights changed")


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("runs", [1, 3])
def test_results_are_confirmed_before_the_report(
    runs: int, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = weft.compile(small(), BOARD.config, memory=BOARD.name)
    device = Forgetful(BOARD.config, 2 * Image(program.device_programs[0]).memory_bytes, forgets=forgets)

    @contextlib.contextmanager
    def connect(*given: Any) -> Iterator[GoldenDevice]:
        yield device

    monkeypatch.setattr(board_run, "open_board", connect)
    inputs = [feeds(small(), np.random.default_rng(seed)) for seed in range(runs)]
    expected = (
        pytest.raises(DeviceError, match="the weights changed") if forgets else contextlib.nullcontext()
    )
    with expected:
        assert len(board_run.run_on_board(program, inputs, None, None, lambda text: None)) == runs
    assert device.log == ["start"] * runs + ["confirm"]


class LookingBoard(Looking):
    """Golden device with every attribute of a board that `weft run` reads."""

    identity, port, retries, transfer = Forgetful.identity, Forgetful.port, 0, Transfer()


def two_part_model() -> onnx.ModelProto:
    """Return a layer with many weights, a host operator, and a layer whose many outputs overlap the first layer's
    code."""
    builder = Builder(np.random.default_rng(6))
    first = builder.conv(builder.input((1, 8, 8, 8)), 32, (7, 7), pads=[3, 3, 3, 3])
    chosen = builder.node("Hardmax", [builder.dequantise(first)])
    return finish_all(
        builder, builder.conv(builder.quantise(chosen, (1, 32, 8, 8), 1 / 128, 0, False), 128, (1, 1))
    )


def test_parts_do_not_overwrite_each_others_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = weft.compile(two_part_model(), BOARD.config, memory=BOARD.name)
    assert len(program.device_programs) == 2
    device = LookingBoard(BOARD.config, max(Image(part).memory_bytes for part in program.device_programs))

    @contextlib.contextmanager
    def connect(*given: Any) -> Iterator[GoldenDevice]:
        yield device

    monkeypatch.setattr(board_run, "open_board", connect)
    inputs = [feeds(two_part_model(), np.random.default_rng(seed)) for seed in range(3)]
    actual = board_run.run_on_board(program, inputs, None, None, lambda text: None)
    for run, result in zip(inputs, actual, strict=True):
        for name, expected in program.run(run).outputs.items():
            assert np.array_equal(result.outputs[name], expected)
