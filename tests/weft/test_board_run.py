"""What `weft run` does on a board behind its runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.qdq_models import feeds
from support.small_models import small

import weft
from weft import board_run
from weft.boards.frames import Identity
from weft.boards.memory import Transfer
from weft.boards.registry import find
from weft.runtime import Image
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import GoldenDevice

BOARD = find("icebreaker")


class Forgetful(GoldenDevice):
    """A board that computes all right, and whose memory has lost what was loaded in the end, if it `forgets`."""

    identity, port, repeated = Identity(BOARD.name, 0, 0, int(BOARD.clock), 0), "/dev/board", 0
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
def test_results_are_confirmed_before_any_is_told(
    runs: int, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = weft.compile(small(), BOARD.config, memory=BOARD.name)
    device = Forgetful(BOARD.config, 2 * Image(program.device_programs[0]).memory_bytes, forgets=forgets)

    @contextlib.contextmanager
    def opened(*given: Any) -> Iterator[GoldenDevice]:
        yield device

    monkeypatch.setattr(board_run, "opened", opened)
    inputs = [feeds(small(), np.random.default_rng(seed)) for seed in range(runs)]
    expected = (
        pytest.raises(DeviceError, match="the weights changed") if forgets else contextlib.nullcontext()
    )
    with expected:
        assert len(board_run.run_on_board(program, inputs, None, None, lambda text: None)) == runs
    assert device.log == ["start"] * runs + ["confirm"]
