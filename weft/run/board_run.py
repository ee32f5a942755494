"""Run a program on a board, and add the cycle model's counts of layers: a board counts only whole programs."""

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
def open_board(
    port: str | None, config: Config, baud: int | None, progress: Progress
) -> Iterator[BoardDevice]:
    """Open a board with `weft.run.virtual.board_at`, and report slow steps to `progress`."""
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
    """Run a program on the board at a port (see `weft.run.virtual.board_at`), once for each of `runs`.

    The last result's report gets the additions of `add_model`, and ``link``, see `link_of`. With `variants`, whose
    first program is `program`, each run uses the current choice of variant, and ends before the next run begins.

    Raises
    ------
    weft.boards.errors.BoardError
    weft.sim.device.DeviceError
    """
    from weft.boards.registry import BOARDS
    from weft.run.stream import stream

    with open_board(port, program.config, baud, progress) as device:
        progress(f"running on {device.identity.board} at {device.port}")
        results = []
        if variants is None:
            pending = stream(program, runs, device)
        else:
            pending = (variants.run(inputs, on=device, memory=False) for inputs in runs)
        for result in pending:
            results.append(result)
            progress(f"{len(results):,} of {len(runs):,} runs are done")
        device.confirm()  # results count only if the loaded program is still intact
        if variants is not None:
            program = variants.programs[results[-1].report["variant"]["ran"]]
        flash = all(
            device.find_in_flash(Image(part).read_only) is not None for part in program.device_programs
        )
        board, clock = BOARDS.get(device.identity.board), float(device.identity.clock)
        results[-1].report["link"] = link_of(device)
    if board is not None:
        progress("asking the cycle model for the layers' shares")
        add_model(results[-1].report, program, board, clock, flash=flash)
    return results


def add_model(
    report: dict[str, Any], program: Program, board: Board, clock: float, *, flash: bool = False
) -> None:
    """Add cycles from the cycle model to a board's report.

    Every layer gets ``modelled_cycles``. The report gets ``modelled``: ``cycles`` of the whole program, ``clock`` in Hz
    (which determines the memory's timings in cycles), and the memory's ``bandwidth`` in bytes a cycle that programs are
    planned for. With `flash`, the program's code and constants are in the board's flash.
    """
    device = board_model(board, program.config, clock, flash=flash)
    # The pipelined core's cycles do not depend on data.
    zeros = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    model = program.run(zeros, on=device, memory=False).report
    for layer, modelled in zip(report["layers"], model["layers"], strict=True):
        layer["modelled_cycles"] = modelled["cycles"]
    report["modelled"] = {
        "cycles": model["cycles"],
        "clock": clock,
        "bandwidth": board.memory.planning_model[1],
    }


def board_model(
    board: Board, config: Config, clock: float, memory_bytes: int | None = None, *, flash: bool = False
) -> TimingDevice:
    """Return the cycle model of a board's core and memory, for a configuration and a clock in Hz.

    `memory_bytes` is the size of the memory (None: the board's size), for programs that need more than the board has.
    With `flash`, code and constants are in the board's flash.

    Raises
    ------
    weft.boards.errors.BoardError
        If the board's memory cannot run at that clock.
    """
    from weft.boards.board import CoreKind
    from weft.sim.timing import SequentialTimingDevice, TimingDevice

    latency, bandwidth = board.memory.planning_model
    size = memory_bytes or board.memory.size
    if board.core is CoreKind.SEQUENTIAL:
        timed = board.timed_flash(config, clock) if flash else None
        return SequentialTimingDevice(config, size, latency=latency, bandwidth=bandwidth, flash=timed)
    sdram = board.sdram(clock)
    return TimingDevice(config, size, latency=latency, bandwidth=bandwidth, sdram=sdram)


def link_of(device: BoardDevice) -> dict[str, Any]:
    """Return statistics of the link to a board, with the fault of its flash, if any.

    ``written_bytes`` and ``kept_bytes`` are code and weights that were written, and that the board already had;
    ``repeated`` is the number of requests sent again.
    """
    from weft.boards.link.serial_ports import flash_fault

    return {
        "written_bytes": device.transfer.written,
        "kept_bytes": device.transfer.kept,
        "repeated": device.retries,
        "flash_fault": flash_fault(device.identity),
    }


def link_text(link: dict[str, Any]) -> str:
    text = f"code and weights: {link['written_bytes']:,} bytes uploaded"
    if link["kept_bytes"]:
        text += f", {link['kept_bytes']:,} bytes were on the board already"
    if link["repeated"]:
        text += f"; {link['repeated']:,} requests had to be sent again: the line loses bytes"
    return text


def say_link(report: dict[str, Any]) -> None:
    """Print the statistics of the link to a board."""
    link = report["link"]
    if link["flash_fault"]:
        warn(link["flash_fault"])
    say(link_text(link))


def say_source(report: dict[str, Any]) -> None:
    """Print the source of the cycles in a board's report."""
    model = report.get("modelled")
    if model is None:
        say("the board counts cycles of whole programs; `--on rtl` counts those of layers")
        return
    more = model["cycles"] / report["cycles"] - 1
    say(
        "cycles are what the board counted, of whole programs; modelled cycles are the cycle model's, with the board's "
        f"memory at {model['clock'] / 1e6:g} MHz: in total {abs(more):.1%} {'more' if more > 0 else 'fewer'}"
    )
