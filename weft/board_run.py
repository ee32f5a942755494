"""Running a program on a board, with what the cycle model says of its layers: the board counts whole programs only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.report import Progress, say

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.program import Program, Result


def run_on_board(
    program: Program,
    runs: Sequence[dict[str, np.ndarray]],
    port: str,
    baud: int | None,
    progress: Progress,
) -> list[Result]:
    """Run on the board at a port, as `weft.virtual.board_at` opens it, once for each of `runs`, and tell of the last
    one's layers as `add_model` does.

    Raises
    ------
    weft.boards.board.BoardError
    weft.sim.device.DeviceError
    """
    from weft.boards.registry import BOARDS
    from weft.virtual import PREFIX, board_at

    if port.startswith(PREFIX):
        progress("building the board's simulator (about a minute, the first time only)")
    with board_at(port, program.config, baud) as device:
        progress(f"running on {device.identity.board}")
        results = [program.run(inputs, on=device, memory=False) for inputs in runs]
        board = BOARDS.get(device.identity.board)
    if board is not None:
        progress("asking the cycle model for the layers' shares")
        add_model(results[-1].report, program, board)
    return results


def add_model(report: dict[str, Any], program: Program, board: Board) -> None:
    """Give every layer of a board's report ``modelled_cycles``, and the report ``modelled``: the ``cycles`` of all of
    them, and the memory behind which they are, by ``latency`` in cycles and ``bandwidth`` in bytes a cycle, None if as
    many as the bus is wide. The model is one of the board's core, whatever the configuration.
    """
    from weft.boards.board import CoreKind
    from weft.sim.timing import SequentialTimingDevice, TimingDevice

    latency, bandwidth = board.memory.modelled
    kind = SequentialTimingDevice if board.core is CoreKind.SEQUENTIAL else TimingDevice
    device = kind(program.config, board.memory.size, latency=latency, bytes_per_cycle=bandwidth)
    zeros = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    model = program.run(zeros, on=device).report
    for layer, known in zip(report["layers"], model["layers"], strict=True):
        layer["modelled_cycles"] = known["cycles"]
    report["modelled"] = {"cycles": model["cycles"], "latency": latency, "bandwidth": bandwidth}


def say_source(report: dict[str, Any]) -> None:
    """Say where the cycles of a board's report come from."""
    modelled = report.get("modelled")
    if modelled is None:
        say("the board counts cycles of whole programs; `--on rtl` counts those of layers")
        return
    more = modelled["cycles"] / report["cycles"] - 1
    bandwidth = "the bus's" if modelled["bandwidth"] is None else f"{modelled['bandwidth']:g}"
    say(
        "cycles are what the board counted, of whole programs; modelled cycles are the cycle model's, behind memory of "
        f"{bandwidth} bytes a cycle and {modelled['latency']} cycles of latency: in total "
        f"{abs(more):.1%} {'more' if more > 0 else 'fewer'}"
    )
