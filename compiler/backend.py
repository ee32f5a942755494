"""Back end: device operators to an encoded program with constants and a memory map."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.compiler.ir.graph import Buffer, DeviceOp, DeviceSegment
from weft.compiler.ir.layout import Rows
from weft.compiler.lower.rows import table_ahead
from weft.compiler.lowering import Lowering
from weft.compiler.machine.areas import Areas
from weft.compiler.machine.memory import Allocation
from weft.compiler.machine.schedule import overlapped, schedule
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task, Tasks
from weft.compiler.onnx.limits import check_memory
from weft.compiler.passes.depth_first import depth_first
from weft.compiler.passes.drop_channels import drop_channels
from weft.compiler.passes.keep_resident import keep_resident
from weft.compiler.passes.rows import gather_rows
from weft.compiler.pipeline import PIPELINE, Pass, Watch, run_passes
from weft.compiler.plan.conv_plan import SLOW, Chooser, plan, plan_apart
from weft.compiler.planner import Planner
from weft.hdl.isa import WORD_BYTES, Opcode, Queue
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config

_SMALL = 4096
"""Instructions of programs that are planned twice behind slow memories, with parameters beside weights and apart."""
_TOGETHER = 1 << 14
"""Tasks that become columns at a time, as long as memory allows: it takes long for a few."""
_WORTH = 1.01
"""What programs with parameters apart may take by estimate, in parts of the others: units wait there less."""


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
    `rows` are those input buffers that hold rows side by side. `compact` is as in `weft.compiler.machine.areas.Areas`.
    """

    name: str
    instructions: Code
    constants: bytes
    layers: tuple[Layer, ...]
    offsets: dict[str, int]
    buffers: dict[str, Buffer]
    rows: dict[str, Rows]
    compact: bool = False

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
        return Areas(
            len(self.constants), len(self.instructions) * WORD_BYTES, self.buffers, self.offsets, self.compact
        )

    @cached_property
    def narrow_bytes(self) -> int:
        """Bytes of the constants that hold two values of 4 bits each."""
        code = self.instructions
        loads = next((rows for opcode, rows in code.by_opcode() if opcode is Opcode.LOAD), np.empty(0, int))
        narrow = loads[code.field("int4", Opcode.LOAD, loads) != 0]
        used = np.zeros(len(self.constants) + 1, np.int32)
        first, run = (code.field(name, Opcode.LOAD, narrow) for name in ("offset", "run"))
        np.add.at(used, first, 1)
        np.add.at(used, first + run, -1)
        return int(np.count_nonzero(np.cumsum(used)))

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
    bandwidth: float | None = None,
    passes: Sequence[Pass] = PIPELINE,
    reuse: bool = True,
    plain_inputs: bool = False,
    room: int | None = None,
    sequential: bool = False,
    progress: Callable[[str], None] | None = None,
    choose: Chooser = plan,
    watch: Watch | None = None,
) -> DeviceProgram:
    """Compile one device segment.

    Parameters
    ----------
    segment : DeviceSegment
        Operators in order.
    config : Config
        The accelerator to compile for.
    bandwidth : float
        Bytes a cycle of the memory to plan for; as many as the bus is wide if None.
    passes : sequence of Pass
        What is done to the segment before it is lowered. Behind them all operators must have plans.
    reuse : bool
        Let results stay on chip from operator to operator, and temporaries whose lifetimes do not meet share
        DRAM; without it every intermediate that is not part of an operator is left in DRAM to look at.
    plain_inputs : bool
        Take all inputs in NHWC order; without it the host may have to lay rows of them side by side.
    room : int
        Bytes of memory beside constants and code, if it is small: inputs and outputs share it with temporaries then,
        and sums take the place of an operand, as far as possible. The host must write all inputs before each run.
        Not without `reuse`.
    sequential : bool
        Plan for the sequential core.
    progress : callable
        Called with the name of each operator before it is lowered.
    choose : Chooser
        Plans convolutions; the best by estimate, if it is not given.
    watch : callable
        Called with the name of each pass, and the segment behind it.

    Raises
    ------
    CompileError
        If an operator cannot be cut small enough for the configuration's memories.
    """
    unwanted = ([] if reuse else [drop_channels, depth_first, keep_resident]) + (
        [gather_rows] if plain_inputs else []
    )
    wanted = [item for item in passes if item.run not in unwanted]
    target = Target(config, bandwidth, sequential)
    compact = room is not None and reuse

    def made(planner: Planner, watch: Watch | None) -> tuple[DeviceProgram, int]:
        planned = run_passes(wanted, segment, planner, watch)
        return _lowered(planned, target, reuse=reuse, compact=compact, progress=progress)

    program, cycles = made(Planner(target, choose), watch)
    if choose is plan and target.beat > SLOW and len(program.instructions) < _SMALL:
        seen: list[tuple[str, DeviceSegment]] = []
        apart, other = made(Planner(target, plan_apart), lambda *item: seen.append(item))
        program = apart if other <= _WORTH * cycles else program
        if program is apart and watch is not None:
            for item in seen:
                watch(*item)
    if room is not None and compact and program.areas.values_bytes > room:
        tight, _ = made(Planner(target, choose, tight=True), watch)
        program = min(program, tight, key=lambda item: item.areas.values_bytes)
    check_memory(segment.name, program.areas.memory_bytes)
    return program


def _lowered(
    segment: DeviceSegment,
    target: Target,
    *,
    reuse: bool,
    compact: bool,
    progress: Callable[[str], None] | None,
) -> tuple[DeviceProgram, int]:
    """The program of operators that have plans, and `weft.compiler.machine.schedule.Scheduled.cycles` of it."""
    config = target.config
    allocation = Allocation(
        segment.ops, reuse=reuse, resident=segment.resident, overlapped=segment.overlapped, compact=compact
    )
    lowering = Lowering(target, allocation)
    parts = [table_ahead(segment.ops, lowering.emitter(0))] if segment.ops else []
    tasks: list[Task] = []
    for index, op in enumerate(segment.ops):
        if progress is not None:
            progress(op.name)
        tasks += lowering.tasks(op, index, segment.regions[index] if segment.regions else None)
        if len(tasks) >= _TOGETHER:
            parts.append(Tasks.of(tasks, config))
            tasks = []
    parts.append(Tasks.of(tasks, config))
    ordered, code, cycles = schedule(overlapped(Tasks.joined(parts), segment.overlapped), target)
    blob = lowering.constants.finish()
    blob += bytes(-len(blob) % 4096)
    layers = _layers(segment, ordered)
    program = DeviceProgram(
        segment.name, code, blob, layers, allocation.offsets, allocation.buffers, dict(segment.rows), compact
    )
    return program, cycles


def _joined(layers: Sequence[Layer]) -> Layer:
    """Layers that follow each other, or run at the same time, as one: of the kind that has most multiplications, or of
    the last one's."""
    first, last = layers[0], layers[-1]
    kind = max(reversed(layers), key=lambda layer: layer.macs).kind
    if first is last:
        return first
    return Layer(
        f"{first.name} .. {last.name}",
        kind,
        sum(layer.macs for layer in layers),
        {queue: sum(layer.cycles[queue] for layer in layers) for queue in last.cycles},
        sum(layer.read_bytes for layer in layers),
        sum(layer.written_bytes for layer in layers),
        {queue: sum(layer.queued[queue] for layer in layers) for queue in last.queued},
    )


def _layers(segment: DeviceSegment, tasks: Tasks) -> tuple[Layer, ...]:
    """The operators, as one where two run at the same time, or a chain of them strip by strip."""
    behind = {index + 1 for index in segment.overlapped}
    behind |= {index for item in segment.strips for index in range(item.first + 1, item.stop)}
    macs = {item.first: item.macs for item in segment.strips}
    groups: dict[int, list[Layer]] = {}
    for index, layer in enumerate(_each(segment.ops, tasks)):
        first = next(reversed(groups)) if index in behind else index
        groups.setdefault(first, []).append(layer)
    joined = {first: _joined(layers) for first, layers in groups.items()}
    return tuple(
        dataclasses.replace(layer, macs=macs.get(first, layer.macs)) for first, layer in joined.items()
    )


def _each(ops: Sequence[DeviceOp], tasks: Tasks) -> Iterator[Layer]:
    cycles, moved, queued = (np.zeros((len(ops), len(Queue)), np.int64) for _ in range(3))
    where = tasks.layer, tasks.queue
    np.add.at(cycles, where, tasks.cycles)
    np.add.at(moved, where, tasks.dram_bytes)
    np.add.at(queued, where, 1)

    def named(row: np.ndarray) -> dict[str, int]:
        return {queue.name: int(row[queue]) for queue in Queue}

    for index, op in enumerate(ops):
        yield Layer(
            op.name, type(op).__name__.lower(), op.macs, named(cycles[index]), int(moved[index, Queue.LOAD]),
            int(moved[index, Queue.STORE]), named(queued[index]),
        )  # fmt: skip
