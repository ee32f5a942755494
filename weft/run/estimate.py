"""Estimate a model's speed and memory on boards, without the boards."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.ir.model import CONVERTING, host_reasons
from weft.compiler.onnx.reader import Source
from weft.errors import InputError
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config
from weft.run.runtime import Image

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.compiler.ir.model import HostSegment, Transfer
    from weft.run.program import Program

BITS_PER_BYTE = 10
"""Bits of a byte on the serial line, including start and stop bit."""


@dataclass(frozen=True)
class Estimate:
    """Estimate for a model on a board.

    Parameters
    ----------
    board : str
        Name of the board.
    config : Config
        Configuration of the accelerator on the board.
    clock : float
        Clock of the core in Hz.
    available : int
        Bytes of the board's memory.
    nodes, on_device : int
        Number of nodes in the model, and of those on the device.
    refused : str
        The reason why the model cannot be compiled for the board (a sentence; then all fields below are 0 or empty),
        or an empty string.
    code, constants, working : int
        Bytes of instructions, of weights and parameters, and of inputs, outputs and intermediate results. `code` and
        `constants` are sums over all device programs, `working` is a maximum.
    flash : int
        Bytes of code and constants in the board's flash, if memory has no room for them; else 0.
    needed : int
        Bytes of memory that the largest device program needs, without its data in flash.
    cycles : int
        Cycles of all device programs, from the cycle model with the board's memory.
    macs : int
        Useful multiply-accumulate operations.
    utilisation : float
        `macs` divided by the array's peak in these cycles.
    moved : int
        Bytes transferred between core and memory.
    bound : dict of str to float
        Bottlenecks of layers with their shares of the cycles, largest first; empty for the sequential core.
    upload, link : float
        Seconds on the serial line: to upload code and constants to memory, and to transfer all values of a sample.
    between : float
        The part of `link` for values that the host receives from the device to compute the device's inputs.
    reasons : dict of str to int
        Reasons why nodes run on the host with their numbers of nodes, most frequent first. Conversions between
        real numbers and integers are not counted, because they only follow their neighbours.
    """

    board: str
    config: Config
    clock: float
    available: int
    nodes: int = 0
    on_device: int = 0
    refused: str = ""
    code: int = 0
    constants: int = 0
    working: int = 0
    flash: int = 0
    needed: int = 0
    cycles: int = 0
    macs: int = 0
    utilisation: float = 0.0
    moved: int = 0
    bound: Mapping[str, float] = field(default_factory=dict)
    upload: float = 0.0
    link: float = 0.0
    between: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """True if the model compiles and fits the board's memory."""
        return not self.refused and self.needed <= self.available

    @property
    def seconds(self) -> float:
        """Seconds per sample on the device, without link and host."""
        return self.cycles / self.clock

    @property
    def sample_seconds(self) -> float:
        """Seconds per sample on device and link, without the host."""
        return self.seconds + self.link

    @property
    def sensible(self) -> bool:
        """True if the model fits, and round trips to the host take no longer than the device computes."""
        return self.fits and self.between <= self.seconds

    @property
    def macs_per_second(self) -> float:
        """MACs per second while the device computes."""
        return self.macs / self.seconds if self.cycles else 0.0


def estimate(
    model: Source,
    boards: Collection[str] | None = None,
    *,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Estimate]:
    """Estimate the speed and memory of a model on boards with their own configurations.

    Parameters
    ----------
    model, shapes, states
        See `weft.compile`.
    boards : collection of str, optional
        Names of boards (`weft boards` lists them); default: all boards.
    progress : callable
        Called with a line of text before each step.

    Returns
    -------
    list of Estimate
        Estimates in the order of `boards`. `Estimate.refused` has the reason if the model does not compile for a board.

    Raises
    ------
    BoardError
        If a board does not exist.
    CompileError, InputError
        As `weft.compile`, if the model is invalid on every board.
    """
    from weft.boards.registry import BOARDS, find

    if isinstance(boards, str) or (boards is not None and not all(isinstance(name, str) for name in boards)):
        raise InputError(f"'boards' is a collection of names, not {boards!r}")
    selected = [find(name) for name in (BOARDS if boards is None else dict.fromkeys(boards))]
    if not isinstance(model, (str, os.PathLike, bytes)):
        model = model.SerializeToString()
    programs: dict[tuple[Any, ...], Program | WeftError] = {}
    estimates = []
    for board in selected:
        (progress or _ignore)(f"compiling for {board.name}")
        key = (
            board.config,
            board.core,
            board.memory.planning_model,
        )  # plans depend on no other details of the memory
        if key not in programs:
            programs[key] = _compile(model, board, shapes, states)
        program = programs[key]
        if isinstance(program, WeftError):
            estimates.append(_start(board, refused=str(program)))
        else:
            (progress or _ignore)(f"counting cycles on {board.name}")
            estimates.append(_estimate(program, board))
    # The same error for every configuration is about the model itself.
    errors = [item for item in programs.values() if isinstance(item, WeftError)]
    if len(errors) == len(programs) and len(set(map(str, errors))) == 1:
        raise errors[0]
    return estimates


def _ignore(text: str) -> None:
    return None


def _compile(
    model: Source, board: Board, shapes: Mapping[str, int] | None, states: Mapping[str, str] | None
) -> Program | WeftError:
    import weft

    try:
        return weft.compile(model, board.config, memory=board.name, shapes=shapes, states=states)
    except weft.CompileError as error:
        return error


def _start(board: Board, **fields: Any) -> Estimate:
    return Estimate(board.name, board.config, board.clock, board.memory.size, **fields)


def _estimate(program: Program, board: Board) -> Estimate:
    nodes = program.assignment
    on_device = sum(place == "device" for _, _, place, _ in nodes)
    why = host_reasons(node for node in nodes if node[1] not in CONVERTING)
    counts = {"nodes": len(nodes), "on_device": on_device, "reasons": dict(why.most_common())}
    parts = [segment for segment in program.segments if isinstance(segment, DeviceProgram)]
    if not parts:
        return _start(
            board, **counts, refused="nothing of this model runs on the device: `weft check` says why"
        )
    needed, flash = memory_needs(parts, board)
    report = _report(program, board, needed, flash=flash > 0)
    upload, link, between = _link_seconds(program, parts, board)
    fixed = [len(part.code) + len(part.constants) for part in parts]
    return _start(
        board,
        **counts,
        code=sum(len(part.code) for part in parts),
        constants=sum(len(part.constants) for part in parts),
        working=max(Image(part).memory_bytes - size for part, size in zip(parts, fixed, strict=True)),
        flash=flash,
        needed=needed,
        cycles=report["cycles"],
        macs=report["macs"],
        utilisation=report["utilisation"],
        moved=report["dram_bytes"],
        bound=_bound(report["layers"]),
        upload=0.0 if flash else upload,
        link=link,
        between=between,
    )


def memory_needs(parts: list[DeviceProgram], board: Board) -> tuple[int, int]:
    """Return the bytes of a board's memory that the largest program needs, and the bytes of flash for all programs.

    Flash is used only if a program does not fit memory; its size is 0 if flash has no room either.
    """
    # Flash holds code and constants, so memory needs only values then.
    needed, flash = max(Image(part).memory_bytes for part in parts), 0
    if needed > board.memory.size and (flash := _in_flash(parts, board)):
        needed = max(Image(part, flash_address=0).memory_bytes for part in parts)
    return needed, flash


def _in_flash(parts: list[DeviceProgram], board: Board) -> int:
    """Return the bytes of code and constants in the board's flash, or 0 if it has no flash or no room."""
    from weft.boards.errors import FlashImageError
    from weft.boards.flash.image import build_image

    if board.flash_window is None:
        return 0
    try:
        return len(
            build_image([Image(part).read_only for part in parts], board.flash_window.room, board.name)
        )
    except FlashImageError:
        return 0


def _report(program: Program, board: Board, needed: int, *, flash: bool) -> dict[str, Any]:
    """Return the report of a run on the board's cycle model."""
    from weft.run.board_run import board_model

    # A model that is too large for the board still gets its cycles, with more memory.
    device = board_model(board, program.config, board.clock, max(needed, board.memory.size), flash=flash)
    # The cycle model computes no values.
    inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    return program.run(inputs, on=device, memory=False).report


def _bound(layers: list[dict[str, Any]]) -> dict[str, float]:
    """Return the bottlenecks of layers, with their shares of the cycles."""
    cycles: Counter[str] = Counter()
    for layer in layers:
        if layer["bound"]:
            cycles[layer["bound"]] += layer["cycles"] or 0
    return {name: count / max(cycles.total(), 1) for name, count in cycles.most_common()}


def _link_seconds(program: Program, parts: list[DeviceProgram], board: Board) -> tuple[float, float, float]:
    """Return the fields `upload`, `link` and `between` of `Estimate`. The line transfers in both directions at once."""
    from weft.boards.link.frames import Operation, transfer_bytes

    bytes_per_second = board.line(board.clock).baud / BITS_PER_BYTE
    compiled = program._compiled
    returning = _returning_values(compiled.segments, compiled.to_device, compiled.from_device)
    upload = link = between = 0.0
    for part in parts:
        # transfer_bytes returns the bytes in either direction; the longer transfer counts.
        upload += max(transfer_bytes(Operation.WRITE_MEMORY, len(part.code) + len(part.constants)))
        for transfers, operation in (
            (compiled.to_device, Operation.WRITE_MEMORY),
            (compiled.from_device, Operation.READ_MEMORY),
        ):
            values = {item.buffer.name: item.value for item in transfers if item.buffer.name in part.buffers}
            for name, value in values.items():
                count = max(transfer_bytes(operation, part.buffers[name].size))
                link += count
                between += count if value in returning else 0
    return upload / bytes_per_second, link / bytes_per_second, between / bytes_per_second


def _returning_values(
    segments: Sequence[DeviceProgram | HostSegment],
    to_device: Iterable[Transfer],
    from_device: Iterable[Transfer],
) -> set[str]:
    """Return the values on paths from one device program through the host to another."""
    ends = []
    for item in segments:
        if isinstance(item, DeviceProgram):
            reads = {transfer.value for transfer in to_device if transfer.buffer.name in item.buffers}
            writes = {transfer.value for transfer in from_device if transfer.buffer.name in item.buffers}
            ends.append((reads, writes, True))
        else:
            ends.append((set(item.inputs), set(item.outputs), False))
    # Values that depend on a device program, intersected with values that a device program depends on.
    from_programs: set[str] = set()
    for reads, writes, device in ends:
        from_programs |= writes if device or reads & from_programs else set()
    to_programs: set[str] = set()
    for reads, writes, device in reversed(ends):
        to_programs |= reads if device or writes & to_programs else set()
    return from_programs & to_programs
