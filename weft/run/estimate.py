"""What a model needs on boards, and how fast it is there, before one has any."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.ir.model import reasons
from weft.compiler.onnx.reader import Source
from weft.errors import InputError
from weft.hdl.errors import WeftError
from weft.hdl.isa.config import Config
from weft.run.runtime import Image

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.compiler.ir.model import HostSegment, Transfer
    from weft.run.program import Program

CONVERTING = ("QuantizeLinear", "DequantizeLinear")
"""Operators that run on the host where their neighbours do."""
BITS = 10
"""Of a byte on the serial line: with a start and a stop bit."""


@dataclass(frozen=True)
class Estimate:
    """A model on a board.

    Parameters
    ----------
    board : str
        Its name.
    config : Config
        What is on the board.
    clock : float
        Hz of the core.
    available : int
        Bytes of the board's memory.
    nodes, on_device : int
        Of the model; those that run on the device.
    refused : str
        Why the model cannot be compiled for the board, in a sentence; empty if it can. Then all below is 0 or empty.
    code, constants, working : int
        Bytes of instructions, of weights and parameters, and of inputs, outputs and what lies between: of all device
        programs together, but of `working` the most that one of them needs.
    flash : int
        Bytes in the board's flash, where code and constants lie if they have no room in memory; else 0.
    needed : int
        Bytes of memory that the largest device program needs, of what is not in flash.
    cycles : int
        Of all device programs, by the cycle model behind the board's memory.
    macs : int
        Useful multiplications.
    utilisation : float
        `macs` in parts of what the array could do in these cycles.
    moved : int
        Bytes between core and memory.
    bound : dict of str to float
        What paces layers, with their part of the cycles, the largest first; empty for the sequential core.
    upload, link : float
        Seconds on the serial line: for code and constants in memory, and for all values of a sample.
    between : float
        The part of `link` for values that nodes on the host take from the device and give back to it.
    reasons : dict of str to int
        Why nodes run on the host, with how many do for it, the most first. QuantizeLinear and DequantizeLinear are left
        out: they are there because of others.
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
        """Whether the board's memory holds it."""
        return not self.refused and self.needed <= self.available

    @property
    def seconds(self) -> float:
        """Of computing a sample, without the link and what the host runs."""
        return self.cycles / self.clock

    @property
    def sample_seconds(self) -> float:
        """Of a sample on the device and on the link, without what the host computes."""
        return self.seconds + self.link

    @property
    def sensible(self) -> bool:
        """Whether it fits, and the host's nodes do not keep the link busy for longer than the device computes."""
        return self.fits and self.between <= self.seconds

    @property
    def macs_per_second(self) -> float:
        """While it computes."""
        return self.macs / self.seconds if self.cycles else 0.0


def estimate(
    model: Source,
    boards: Collection[str] | None = None,
    *,
    shapes: Mapping[str, int] | None = None,
    states: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Estimate]:
    """Tell how a model would do on boards with their own configurations, without any of them.

    Parameters
    ----------
    model, shapes, states
        As of `weft.compile`.
    boards : collection of str, optional
        Names, as `weft boards` lists them; all boards if not given.
    progress : callable
        Told what is being done.

    Returns
    -------
    list of Estimate
        In the order of `boards`. Where the model cannot be compiled for a board's configuration, it says why.

    Raises
    ------
    BoardError
        If there is no board of a name.
    CompileError, InputError
        As `weft.compile`, for what is wrong with the model whatever the board.
    """
    from weft.boards.registry import BOARDS, find

    if isinstance(boards, str) or (boards is not None and not all(isinstance(name, str) for name in boards)):
        raise InputError(f"'boards' is a collection of names, not {boards!r}")
    chosen = [find(name) for name in (BOARDS if boards is None else dict.fromkeys(boards))]
    if not isinstance(model, (str, os.PathLike, bytes)):
        model = model.SerializeToString()
    known: dict[tuple[Any, ...], Program | WeftError] = {}
    made = []
    for board in chosen:
        (progress or _nothing)(f"compiling for {board.name}")
        key = (
            board.config,
            board.core,
            board.memory.planning_model,
        )  # the memory's details are not in the plan
        if key not in known:
            known[key] = _compiled(model, board, shapes, states)
        program = known[key]
        if isinstance(program, WeftError):
            made.append(_start(board, refused=str(program)))
        else:
            (progress or _nothing)(f"counting cycles on {board.name}")
            made.append(_of(program, board))
    errors = [item for item in known.values() if isinstance(item, WeftError)]
    if len(errors) == len(known) and len(set(map(str, errors))) == 1:
        raise errors[0]
    return made


def _nothing(text: str) -> None:
    return None


def _compiled(
    model: Source, board: Board, shapes: Mapping[str, int] | None, states: Mapping[str, str] | None
) -> Program | WeftError:
    import weft

    try:
        return weft.compile(model, board.config, memory=board.name, shapes=shapes, states=states)
    except weft.CompileError as error:
        return error


def _start(board: Board, **known: Any) -> Estimate:
    return Estimate(board.name, board.config, board.clock, board.memory.size, **known)


def _of(program: Program, board: Board) -> Estimate:
    nodes = program.assignment
    on_device = sum(place == "device" for _, _, place, _ in nodes)
    why = reasons(node for node in nodes if node[1] not in CONVERTING)
    counts = {"nodes": len(nodes), "on_device": on_device, "reasons": dict(why.most_common())}
    parts = [segment for segment in program.segments if isinstance(segment, DeviceProgram)]
    if not parts:
        return _start(
            board, **counts, refused="nothing of this model runs on the device: `weft check` says why"
        )
    needed, flash = placed(parts, board)
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


def placed(parts: list[DeviceProgram], board: Board) -> tuple[int, int]:
    """Bytes of a board's memory that the largest of some programs needs, and bytes that all take in its flash, which is
    0 if they are in memory, or have no room there either."""
    needed, flash = max(Image(part).memory_bytes for part in parts), 0
    if needed > board.memory.size and (flash := _in_flash(parts, board)):
        needed = max(Image(part, kept=0).memory_bytes for part in parts)
    return needed, flash


def _in_flash(parts: list[DeviceProgram], board: Board) -> int:
    """Bytes that code and constants take in the board's flash; 0 if there is none, or they have no room."""
    from weft.boards.flash.image import FlashImageError, build_image

    if board.flash_window is None:
        return 0
    try:
        return len(build_image([Image(part).fixed for part in parts], board.flash_window.room, board.name))
    except FlashImageError:
        return 0


def _report(program: Program, board: Board, needed: int, *, flash: bool) -> dict[str, Any]:
    """Of a run on the cycle model of the board's core behind the board's memory."""
    from weft.run.board_run import board_model

    device = board_model(board, program.config, board.clock, max(needed, board.memory.size), flash=flash)
    inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    return program.run(inputs, on=device, memory=False).report


def _bound(layers: list[dict[str, Any]]) -> dict[str, float]:
    """What paces layers, with its part of their cycles."""
    cycles: Counter[str] = Counter()
    for layer in layers:
        if layer["bound"]:
            cycles[layer["bound"]] += layer["cycles"] or 0
    return {name: count / max(cycles.total(), 1) for name, count in cycles.most_common()}


def _link_seconds(program: Program, parts: list[DeviceProgram], board: Board) -> tuple[float, float, float]:
    """Seconds for code and constants, for the values of a sample, and for those of them that the host's nodes take from
    the device and give back. The line carries both ways at once."""
    from weft.boards.link.frames import Operation, transfer_bytes

    second = board.line(board.clock).baud / BITS
    compiled = program._compiled
    returning = _returning(compiled.segments, compiled.to_device, compiled.from_device)
    upload = link = between = 0.0
    for part in parts:
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
    return upload / second, link / second, between / second


def _returning(
    segments: Sequence[DeviceProgram | HostSegment],
    to_device: Iterable[Transfer],
    from_device: Iterable[Transfer],
) -> set[str]:
    """Values on the way from one device program through the host to another: what comes from the device, or is computed
    of that, and is needed by the device, or by what that needs."""
    ends = []
    for item in segments:
        if isinstance(item, DeviceProgram):
            reads = {transfer.value for transfer in to_device if transfer.buffer.name in item.buffers}
            makes = {transfer.value for transfer in from_device if transfer.buffer.name in item.buffers}
            ends.append((reads, makes, True))
        else:
            ends.append((set(item.inputs), set(item.outputs), False))
    come: set[str] = set()
    for reads, makes, device in ends:
        come |= makes if device or reads & come else set()
    go: set[str] = set()
    for reads, makes, device in reversed(ends):
        go |= reads if device or makes & go else set()
    return come & go
