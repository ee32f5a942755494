"""Running a program on a board, with what the cycle model says of its layers: the board counts whole programs only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.report import Progress, say, warn
from weft.run.runtime import Image

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.boards.link.host import BoardDevice
    from weft.hdl.isa.config import Config
    from weft.run.program import Program, Result
    from weft.run.variants import Variants
    from weft.sim.timing import TimingDevice


@contextlib.contextmanager
def opened(port: str | None, config: Config, baud: int | None, progress: Progress) -> Iterator[BoardDevice]:
    """The board that `weft.run.virtual.board_at` opens; `progress` is told what takes time."""
    from weft.run.virtual import PREFIX, board_at

    if port is None:
        progress("asking the serial ports for a board")
    elif port.startswith(PREFIX):
        progress("building the board's simulator (about a minute, the first time only)")
    with board_at(port, config, baud) as device:
        yield device


def run_on_board(
    program: Program,
    runs: Sequence[dict[str, np.ndarray]],
    port: str | None,
    baud: int | None,
    progress: Progress,
    variants: Variants | None = None,
) -> list[Result]:
    """Run on the board at a port, as `weft.run.virtual.board_at` opens it, once for each of `runs`, and tell of the
    last one's layers as `add_model` does. Its report has ``link``: bytes of code and weights that were written for
    all runs, those that were there before, requests that were sent again, and what is wrong with the program in its
    flash.

    With `variants`, whose first is `program`, each run is of one of those; one ends before the next begins.

    Raises
    ------
    weft.boards.board.BoardError
    weft.sim.device.DeviceError
    """
    from weft.boards.registry import BOARDS
    from weft.run.stream import stream

    with opened(port, program.config, baud, progress) as device:
        progress(f"running on {device.identity.board} at {device.port}")
        results = []
        given = stream(program, runs, device) if variants is None else _chosen(variants, runs, device)
        for result in given:
            results.append(result)
            progress(f"{len(results):,} of {len(runs):,} runs are done")
        device.confirm()
        if variants is not None:
            program = variants.programs[results[-1].report["variant"]["ran"]]
        flash = all(device.kept(Image(part).fixed) is not None for part in program.device_programs)
        board, clock = BOARDS.get(device.identity.board), float(device.identity.clock)
        results[-1].report["link"] = link_of(device)
    if board is not None:
        progress("asking the cycle model for the layers' shares")
        add_model(results[-1].report, program, board, clock, flash=flash)
    return results


def _chosen(
    variants: Variants, runs: Sequence[dict[str, np.ndarray]], device: BoardDevice
) -> Iterator[Result]:
    return (variants.run(inputs, on=device, memory=False) for inputs in runs)


def add_model(
    report: dict[str, Any], program: Program, board: Board, clock: float, *, flash: bool = False
) -> None:
    """Give every layer of a board's report ``modelled_cycles``, and the report ``modelled``: the ``cycles`` of all of
    them, the ``clock`` in Hz, on which the memory's timings in cycles depend, and the memory's ``bandwidth`` in bytes
    a cycle as programs are planned for it. With `flash`, the program's code and constants were in the board's flash.
    """
    device = board_model(board, program.config, clock, flash=flash)
    zeros = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    model = program.run(zeros, on=device, memory=False).report
    for layer, known in zip(report["layers"], model["layers"], strict=True):
        layer["modelled_cycles"] = known["cycles"]
    report["modelled"] = {
        "cycles": model["cycles"],
        "clock": clock,
        "bandwidth": board.memory.planning_model[1],
    }


def board_model(
    board: Board, config: Config, clock: float, memory_bytes: int | None = None, *, flash: bool = False
) -> TimingDevice:
    """The cycle model of a board's core with a configuration, behind the board's memory at a clock in Hz.

    `memory_bytes` is for programs that need more than the board has; None is the board's own size. With `flash`, code
    and constants lie in the board's flash.

    Raises
    ------
    weft.boards.board.BoardError
        If the board's memory cannot run at that clock.
    """
    from weft.boards.board import CoreKind
    from weft.sim.timing import SequentialTimingDevice, TimingDevice

    latency, bandwidth = board.memory.planning_model
    size = memory_bytes or board.memory.size
    if board.core is CoreKind.SEQUENTIAL:
        timed = board.timed_flash(config, clock) if flash else None
        return SequentialTimingDevice(config, size, latency=latency, bytes_per_cycle=bandwidth, flash=timed)
    sdram = board.sdram(clock)
    return TimingDevice(config, size, latency=latency, bytes_per_cycle=bandwidth, sdram=sdram)


def link_of(device: BoardDevice) -> dict[str, Any]:
    """What crossed the link to a board so far, and what is wrong with its flash."""
    from weft.boards.link.serial_ports import flash_fault

    return {
        "written_bytes": device.transfer.written,
        "kept_bytes": device.transfer.kept,
        "repeated": device.retries,
        "flash_fault": flash_fault(device.identity),
    }


def link_text(link: dict[str, Any]) -> str:
    """What of a program crossed the link, and what was on the board."""
    text = f"code and weights: {link['written_bytes']:,} bytes uploaded"
    if link["kept_bytes"]:
        text += f", {link['kept_bytes']:,} bytes were on the board already"
    if link["repeated"]:
        text += f"; {link['repeated']:,} requests had to be sent again: the line loses bytes"
    return text


def say_link(report: dict[str, Any]) -> None:
    """Say what of a program crossed the link, and what was on the board."""
    link = report["link"]
    if link["flash_fault"]:
        warn(link["flash_fault"])
    say(link_text(link))


def say_source(report: dict[str, Any]) -> None:
    """Say where the cycles of a board's report come from."""
    model = report.get("modelled")
    if model is None:
        say("the board counts cycles of whole programs; `--on rtl` counts those of layers")
        return
    more = model["cycles"] / report["cycles"] - 1
    say(
        "cycles are what the board counted, of whole programs; modelled cycles are the cycle model's, with the board's "
        f"memory at {model['clock'] / 1e6:g} MHz: in total {abs(more):.1%} {'more' if more > 0 else 'fewer'}"
    )
