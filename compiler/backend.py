"""Back end: device operators to an encoded program with constants and a memory map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.compiler.ir.graph import (
    Attention,
    Buffer,
    CompileError,
    Conv,
    DeviceOp,
    DeviceSegment,
    Pool,
    Softmax,
    View,
    Window,
    readers,
    sources,
)
from weft.compiler.lower.attention import lower_attention
from weft.compiler.lower.conv import lower_conv
from weft.compiler.lower.softmax import lower_softmax
from weft.compiler.lower.vector import lower_vector, pointwise_cycles, pool_cycles
from weft.compiler.machine.areas import Areas
from weft.compiler.machine.limits import PITCH_MAX
from weft.compiler.machine.memory import Constants, Placement
from weft.compiler.machine.schedule import schedule
from weft.compiler.machine.tasks import Task, Tasks
from weft.compiler.onnx.limits import check_memory
from weft.compiler.passes import fuse_pool
from weft.compiler.passes.fuse_then import separate
from weft.compiler.plan.cascade import Cascade, cascade, planned
from weft.compiler.plan.conv_plan import Chooser, plan
from weft.compiler.plan.conv_shape import Room
from weft.compiler.plan.input_rows import Rows, gathered
from weft.hdl.isa import WORD_BYTES, Queue
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class Layer:
    """What is known of one operator before it runs.

    `cycles` has the time of each queue without stalls, an estimate; `read_bytes` and `written_bytes` are what its
    LOADs and STOREs move, and `queued` counts its instructions by queue: layers follow each other in each.
    """

    name: str
    kind: str
    macs: int
    cycles: dict[str, int]
    read_bytes: int
    written_bytes: int
    queued: dict[str, int]

    @property
    def dram_bytes(self) -> int:
        return self.read_bytes + self.written_bytes + sum(self.queued.values()) * WORD_BYTES


@dataclass(frozen=True)
class DeviceProgram:
    """One device segment, compiled.

    The area behind base register 0 holds `constants` at offset 0 and the encoded instructions at `entry`. `offsets` and
    `buffers` locate each buffer behind the register of its kind, but for those that are only on chip.
    `rows` are those input buffers that hold rows side by side.
    """

    name: str
    instructions: Code
    constants: bytes
    layers: tuple[Layer, ...]
    offsets: dict[str, int]
    buffers: dict[str, Buffer]
    rows: dict[str, Rows]

    def input_shape(self, name: str) -> tuple[int, int, int, int]:
        """Shape of what an operator reads from an input buffer, whose own shape is another if its rows lie side by
        side."""
        n, h, w, c = self.buffers[name].shape
        rows = self.rows.get(name)
        return (n, h, w, c) if rows is None else (n, rows.height, w, c // rows.kernel)

    @property
    def timed(self) -> dict[int, Layer]:
        """The layers by index, as far as memory tells when one is done: those that write nothing are one with the next
        that does."""
        found: dict[int, Layer] = {}
        since = 0
        for index, layer in enumerate(self.layers):
            if layer.written_bytes:
                found[index], since = _joined(self.layers[since : index + 1]), index + 1
        return found

    @cached_property
    def areas(self) -> Areas:
        """Where all of it lies in memory."""
        return Areas(len(self.constants), len(self.instructions) * WORD_BYTES, self.buffers, self.offsets)

    @property
    def entry(self) -> int:
        """Offset of the first instruction behind base register 0."""
        return len(self.constants)

    @property
    def code(self) -> bytes:
        return self.instructions.tobytes()


def compile_segment(
    segment: DeviceSegment,
    config: Config,
    *,
    reuse: bool = True,
    plain_inputs: bool = False,
    progress: Callable[[str], None] | None = None,
    choose: Chooser = plan,
    kept: Cascade | None = None,
) -> DeviceProgram:
    """Compile one device segment.

    Parameters
    ----------
    segment : DeviceSegment
        Operators in order.
    config : Config
        The accelerator to compile for.
    reuse : bool
        Let results stay on chip from convolution to convolution, and temporaries whose lifetimes do not meet share
        DRAM; without it every intermediate that is not part of an operator is left in DRAM to look at.
    plain_inputs : bool
        Take all inputs in NHWC order; without it the host may have to lay rows of them side by side.
    progress : callable
        Called with the name of each operator before it is lowered.
    choose : Chooser
        Plans convolutions; the best by estimate, if it is not given.
    kept : Cascade
        What stays on chip between operators; what is best by estimate, if it is not given.

    Raises
    ------
    CompileError
        If an operator cannot be cut small enough for the configuration's memories.
    """
    first, rows = (segment.ops, {}) if plain_inputs else _gather(segment.ops, config)
    ops = tuple(part for op in first for part in _rewrite(op, config))
    if kept is None:
        kept = cascade(ops, config) if reuse else Cascade()
    placement = Placement(ops, reuse=reuse, held=kept.held)
    constants = Constants()
    parts: list[Tasks] = []
    for index, op in enumerate(ops):
        if progress is not None:
            progress(op.name)
        room = kept.rooms[index] if kept.rooms else None
        lowered = _lower(op, placement, config, constants, index, choose, room)
        if lowered is None:
            raise CompileError(_too_large(op, config))
        parts.append(Tasks.of(lowered))
    ordered, code = schedule(Tasks.joined(parts))
    blob = constants.finish()
    blob += bytes(-len(blob) % 4096)
    layers = _layers(ops, ordered)
    program = DeviceProgram(segment.name, code, blob, layers, placement.offsets, placement.buffers, rows)
    check_memory(segment.name, program.areas.memory_bytes)
    return program


def _lower(
    op: DeviceOp,
    placement: Placement,
    config: Config,
    constants: Constants,
    layer: int,
    choose: Chooser,
    room: Room | None,
) -> list[Task] | None:
    dst = placement.source(op.dst)
    read = tuple(placement.source(view) for view in sources(op))
    if isinstance(op, Conv):
        return lower_conv(op, read, dst, config, constants, layer, choose, room)
    if isinstance(op, Attention | Softmax) and not config.softmax:
        raise CompileError(
            f"{op.name}: this configuration has no softmax unit; set 'probability_bits' to 8, or to 7 for small parts"
        )
    if isinstance(op, Attention):
        return lower_attention(op, read, dst, config, constants, layer)
    if isinstance(op, Softmax):
        return lower_softmax(op, read[0], dst, config, constants, layer)
    return lower_vector(op, read, dst, config, constants, layer)


def _gather(ops: tuple[DeviceOp, ...], config: Config) -> tuple[tuple[DeviceOp, ...], dict[str, Rows]]:
    """The operators with inputs laid out as is best for them, and how."""
    reads, made, rows = readers(ops), list(ops), dict[str, Rows]()
    for index, op in enumerate(ops):
        if isinstance(op, Conv) and reads[op.src.buffer.name] == 1 and (found := _quicker(op, config)):
            made[index], rows[op.src.buffer.name] = found
    return tuple(made), rows


def _quicker(op: Conv, config: Config) -> tuple[Conv, Rows] | None:
    """A convolution of an input as it is with rows side by side, if that is a tenth quicker by estimate."""
    kh, channels = op.window.kernel[0], op.src.shape[3]
    if (
        op.src.buffer.kind != "input"
        or not op.src.contiguous
        or op.groups > 1
        or kh == 1
        or kh * channels * op.window.stride[1] > PITCH_MAX
    ):
        return None
    found = gathered(op)
    before, after = planned(op, config), planned(found[0], config)
    return found if before and after and after.cycles < 0.9 * before.cycles else None


def _rewrite(op: DeviceOp, config: Config) -> tuple[DeviceOp, ...]:
    """Fused operators as they are best on `config`; and pooling over more than the scratchpad holds, in forms that can
    be cut: sums on the array, maxima by axis."""
    if isinstance(op, Conv) and op.then is not None:
        alone, then = separate(op)
        if _stays_fused(op, alone, config, *pointwise_cycles(then, config)):
            return (op,)
        return (*_rewrite(alone, config), then)
    if isinstance(op, Conv) and op.pool is not None:
        alone, pool = fuse_pool.separate(op)
        if not _stays_fused(op, alone, config, pool_cycles(pool, config)):
            return (alone, *_rewrite(pool, config))
    if not isinstance(op, Pool):
        return (op,)
    kh, kw = op.window.kernel
    spans = [(k - 1) * d + 1 for k, d in zip(op.window.kernel, op.window.dilation, strict=True)]
    held = min(spans[0], op.src.shape[1]) * min(spans[1], op.src.shape[2])
    if held * 2 + 64 * 8 <= config.scratchpad_size or kh * kw == 1:
        return (op,)
    channels = op.src.shape[3]
    if op.kind == "average" and op.window.pad == (0, 0, 0, 0):
        return (
            Conv(
                op.name, op.src, op.dst, np.ones((channels, kh, kw, 1), np.int16), np.zeros(channels, np.int32),
                np.full(channels, op.scale / (kh * kw)), op.window, channels, op.x_zero, op.y_zero, op.low, op.high,
            ),
        )  # fmt: skip
    if op.kind == "max" and kh > 1 and kw > 1:
        (sy, sx), (dy, dx), (top, left, bottom, right) = op.window.stride, op.window.dilation, op.window.pad
        n, h, _, c = op.src.shape
        between = Buffer(f"{op.name}/columns", (n, h, op.dst.shape[2], c))
        view = View(between, between.shape)
        columns = Window((1, kw), (1, sx), (1, dx), (0, left, 0, right))
        rows = Window((kh, 1), (sy, 1), (dy, 1), (top, 0, bottom, 0))
        return (
            Pool(f"{op.name}/columns", op.src, view, "max", columns),
            Pool(op.name, view, op.dst, "max", rows, op.scale, op.x_zero, op.y_zero, op.low, op.high),
        )
    return (op,)


def _stays_fused(op: Conv, alone: Conv, config: Config, cycles: float, traffic: float = math.inf) -> bool:
    """Whether a convolution with what comes then takes no longer, by estimate, than `alone` and that behind it, which
    takes `cycles`, and moves no more data than both, `traffic` cycles of the bus: what it has on chip for a second
    operand may cost it weights."""
    fused, apart = planned(op, config), planned(alone, config)
    if fused is None or apart is None:
        return apart is None
    return fused.cycles <= apart.cycles + cycles and fused.traffic <= apart.traffic + traffic


def _joined(layers: Sequence[Layer]) -> Layer:
    """Layers that follow each other as one."""
    first, last = layers[0], layers[-1]
    if first is last:
        return first
    return Layer(
        f"{first.name} .. {last.name}",
        last.kind,
        sum(layer.macs for layer in layers),
        {queue: sum(layer.cycles[queue] for layer in layers) for queue in last.cycles},
        sum(layer.read_bytes for layer in layers),
        sum(layer.written_bytes for layer in layers),
        {queue: sum(layer.queued[queue] for layer in layers) for queue in last.queued},
    )


def _too_large(op: DeviceOp, config: Config) -> str:
    return (
        f"{op.name}: not even one output of this {type(op).__name__.lower()} fits on chip "
        f"(scratchpad {config.scratchpad_size} vectors of {config.n} bytes); "
        "use a configuration with a larger scratchpad"
    )


def _layers(ops: Sequence[DeviceOp], tasks: Tasks) -> tuple[Layer, ...]:
    cycles, moved, queued = (np.zeros((len(ops), len(Queue)), np.int64) for _ in range(3))
    where = tasks.layer, tasks.queue
    np.add.at(cycles, where, tasks.cycles)
    np.add.at(moved, where, tasks.dram_bytes)
    np.add.at(queued, where, 1)

    def named(row: np.ndarray) -> dict[str, int]:
        return {queue.name: int(row[queue]) for queue in Queue}

    return tuple(
        Layer(
            op.name, type(op).__name__.lower(), op.macs, named(cycles[index]), int(moved[index, Queue.LOAD]),
            int(moved[index, Queue.STORE]), named(queued[index]),
        )
        for index, op in enumerate(ops)
    )  # fmt: skip
