"""Back end: device operators to an encoded program with constants and a memory map.

Operators are lowered in order. The steps of a recurrent network differ only in where their operands lie in memory, so
equal operators share their tasks: an operator is lowered for relocatable operands, and its tasks get their offsets
afterwards. The tasks also depend on look-up tables, kernels and parameters that earlier operators left on chip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Region
from weft.compiler.ir.layout import Rows
from weft.compiler.ir.views import Buffer
from weft.compiler.lower.rows import early_table_tasks
from weft.compiler.machine.areas import Areas
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.memory import Allocation, Constants, Ends, Kernels, Ring
from weft.compiler.machine.schedule import merge_overlapped, schedule
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task, Tasks
from weft.compiler.operators.record import operator_of
from weft.compiler.passes.depth_first import depth_first
from weft.compiler.passes.drop_channels import drop_channels
from weft.compiler.passes.gather_rows import gather_rows
from weft.compiler.passes.keep_resident import keep_resident
from weft.compiler.pipeline import PIPELINE, Pass, Watch, run_passes
from weft.compiler.plan.conv_plan import SLOW, Chooser, plan, plan_apart
from weft.compiler.plan.site import Site, resident_positions
from weft.compiler.planner import Planner
from weft.hdl.isa import WORD_BYTES, Opcode, Queue
from weft.hdl.isa.code import Code
from weft.hdl.isa.config import Config

_BITS = 40
"""Bits of an offset within an operand. Higher bits of a relocatable address are the operand's number, from 1 on."""
_IN_INSTRUCTIONS = ("pages", "table")
"""Kinds of buffers whose addresses are in instructions, so that operators that read them share no tasks."""


class _Part:
    """Part of the on-chip state that operators leave for later ones, with a history of numbered states.

    `now` is the state after the operators so far. The wrapped part itself may be in an older state, `_shown`, if
    operators since then had known tasks.
    """

    def __init__(self, part: Ring | Kernels | Ends) -> None:
        self._part = part
        self._numbers: dict[Hashable, int] = {}
        self._states: list[Any] = []
        self.note()

    def note(self) -> None:
        """Record that the part has changed."""
        state = self._part.state
        self.now = self._shown = self._numbers.setdefault(state, len(self._states))
        if self.now == len(self._states):
            self._states.append(state)

    def show(self) -> None:
        """Bring the part into the state `now`."""
        if self._shown != self.now:
            self._part.restore(self._states[self.now])
            self._shown = self.now


class _RelocatableTasks(NamedTuple):
    """Relocatable tasks, and the subsequent states of the parts that they depend on."""

    tasks: tuple[Task, ...]
    after: dict[str, int]


class Lowering:
    """Lowering of a program's operators, in order; `constants` are the program's."""

    def __init__(self, target: Target, allocation: Allocation) -> None:
        self.target, self.allocation, self.constants = target, allocation, Constants()
        self._tables = Ring(0, 1, target.config.lookup_tables)
        self._kernels, self._ends = Kernels(target.config.kernel), Ends()
        self._parts = {
            "tables": _Part(self._tables),
            "kernels": _Part(self._kernels),
            "ends": _Part(self._ends),
        }
        self._needs: dict[Hashable, tuple[str, ...]] = {}  # parts that operators of a form depend on
        self._known: dict[Hashable, _RelocatableTasks] = {}
        # The first operator of each form, with caches that later ones reuse.
        self._first: dict[Hashable, tuple[DeviceOp, Site]] = {}
        self._shared: dict[Hashable, Any] = {}

    def emitter(self, layer: int) -> Emitter:
        """Return an emitter for an operator's tasks."""
        return Emitter(self.target, self.constants, layer, self._tables, self._kernels, self._ends)

    def tasks(self, op: DeviceOp, layer: int, region: Region | None) -> Iterator[Task]:
        """Return the tasks of an operator, in sequential order."""
        views = (*op.sources, op.dst)
        if any(view.buffer.kind in _IN_INSTRUCTIONS for view in views):
            return iter(self._lower(op, layer, Site.of(op, self.allocation, self.target, region)).tasks)
        form = op.signature, resident_positions(op, self.allocation.resident), region
        known = self._known.get(self._key(form))
        if known is None:
            seen_before = form in self._first
            if not seen_before:
                self._first[form] = op, _relocatable(Site.of(op, self.allocation, self.target, region))
            op, site = self._first[form]
            size = self.constants.size
            before = {name: part.now for name, part in self._parts.items()}
            known = self._lower(op, layer, site, again=seen_before)
            if self.constants.size == size:  # else it added constants, and the next time its tasks differ
                self._needs[form] = tuple(known.after)
                self._known[form, tuple(before[name] for name in known.after)] = known
        for name, state in known.after.items():
            self._parts[name].now = state
        offsets = self.allocation.offsets
        # Operand numbers begin with 1 (see `_relocatable`); resident buffers have no offset.
        starts = [0, *(offsets.get(view.buffer.name, 0) + view.offset for view in views)]
        return _relocate(known.tasks, layer, starts)

    def _key(self, form: Hashable) -> Hashable:
        return form, tuple(self._parts[name].now for name in self._needs.get(form, ()))

    def _lower(self, op: DeviceOp, layer: int, site: Site, *, again: bool = False) -> _RelocatableTasks:
        for part in self._parts.values():
            part.show()
        emit = self.emitter(layer)
        if again:
            emit.shared = self._shared
        tasks = tuple(operator_of(op).lower(op, site, emit))
        for name in emit.used:
            self._parts[name].note()
        return _RelocatableTasks(tasks, {name: self._parts[name].now for name in sorted(emit.used)})


def _relocate(tasks: Iterable[Task], layer: int, starts: Sequence[int]) -> Iterator[Task]:
    """Yield tasks with relocatable addresses resolved: operand number i begins at ``starts[i]``."""
    for instruction, _, cycles, dram_bytes, paces, addresses in tasks:
        # Only DRAM addresses are relocatable; on-chip and constant addresses have no operand number.
        if addresses and addresses[0] >> _BITS:
            operand, at = divmod(addresses[0], 1 << _BITS)
            addresses = starts[operand] + at, *addresses[1:]
        yield Task(instruction, layer, cycles, dram_bytes, paces, addresses)


def _relocatable(site: Site) -> Site:
    """Return a site with relocatable operands: their offsets are their numbers."""
    tensors = [
        dataclasses.replace(item, offset=number << _BITS)
        for number, item in enumerate((*site.sources, site.dst), 1)
    ]
    return dataclasses.replace(site, sources=tuple(tensors[:-1]), dst=tensors[-1])


_MAX_MEMORY = 1 << 32
"""Most bytes of one device program with its constants and buffers: addresses have 32 bits."""
_MAX_INSTRUCTIONS_TO_PLAN_TWICE = 4096
"""Most instructions of a program to plan twice for slow memories: with parameters beside weights, and apart."""
_TASKS_PER_BATCH = 1 << 14
"""Tasks to convert to columns at a time: small batches are slow, large ones need memory."""
_MAX_SLOWDOWN_OF_SPLIT_PARAMETERS = 1.01
"""Most estimated cycles with parameters in banks of their own, relative to the other plans: units wait less there."""


@dataclass(frozen=True)
class Layer:
    """Static facts about one operator.

    `cycles` are each queue's estimated cycles without stalls. `read_bytes` and `written_bytes` are what its LOADs and
    STOREs move, and `queued` are its instructions per queue; layers are consecutive in each queue.
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
    """One compiled device segment.

    The area of base register 0 holds `constants` at offset 0 and the encoded instructions at `entry`. `offsets` and
    `buffers` locate each buffer, except resident ones, relative to the base register of its kind. `rows` are the
    input buffers with interleaved rows. `compact` is as in `weft.compiler.machine.areas.Areas`.
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
        """Return the model's shape of an input buffer, whose own shape differs if its rows are interleaved."""
        n, h, w, c = self.buffers[name].shape
        rows = self.rows.get(name)
        return (n, h, w, c) if rows is None else (n, rows.height, w, c // rows.kernel)

    @property
    def timed_layers(self) -> dict[int, Layer]:
        """Layers whose end is visible in memory, by index; layers that write nothing are merged with the next that
        does."""
        layers: dict[int, Layer] = {}
        first = 0
        for index, layer in enumerate(self.layers):
            if layer.written_bytes:
                layers[index], first = _merge_layers(self.layers[first : index + 1]), index + 1
        return layers

    @cached_property
    def areas(self) -> Areas:
        """Memory map."""
        return Areas(
            len(self.constants), len(self.instructions) * WORD_BYTES, self.buffers, self.offsets, self.compact
        )

    @cached_property
    def narrow_bytes(self) -> int:
        """Bytes of constants that hold two 4-bit values each."""
        code = self.instructions
        loads = next((rows for opcode, rows in code.by_opcode() if opcode is Opcode.LOAD), np.empty(0, int))
        narrow = loads[code.field("int4", Opcode.LOAD, loads) != 0]
        used = np.zeros(len(self.constants) + 1, np.int32)
        first, run = (code.field(name, Opcode.LOAD, narrow) for name in ("offset", "run"))
        # Difference array: the running sum is positive inside a 4-bit run.
        np.add.at(used, first, 1)
        np.add.at(used, first + run, -1)
        return int(np.count_nonzero(np.cumsum(used)))

    @property
    def entry(self) -> int:
        """Offset of the first instruction from base register 0."""
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
        Bytes per cycle of the memory to plan for; None for the width of the bus.
    passes : sequence of Pass
        Passes to run before lowering. Afterwards all operators must have plans.
    reuse : bool
        Let results stay on chip between operators, and let temporaries with disjoint lifetimes share DRAM. Without it
        every intermediate result that is not inside an operator remains in DRAM for inspection.
    plain_inputs : bool
        Take all inputs in NHWC order; without it the host may have to interleave rows.
    room : int
        Bytes of memory beside constants and code, if memory is small. Inputs and outputs then share it with
        temporaries, and sums may overwrite an operand. The host must write all inputs before each run. Requires
        `reuse`.
    sequential : bool
        Plan for the sequential core.
    progress : callable
        Called with the name of each operator before it is lowered.
    choose : Chooser
        Planner of convolutions (default: the best plan by estimate).
    watch : callable
        Called with the name of each pass, and the segment after it.

    Raises
    ------
    CompileError
        If an operator cannot be tiled for the configuration's memories.
    """
    # These passes leave intermediate results out of DRAM.
    unwanted = ([] if reuse else [drop_channels, depth_first, keep_resident]) + (
        [gather_rows] if plain_inputs else []
    )
    wanted = [item for item in passes if item.run not in unwanted]
    target = Target(config, bandwidth, sequential)
    compact = room is not None and reuse

    def compile_with(planner: Planner, watch: Watch | None) -> tuple[DeviceProgram, int]:
        planned = run_passes(wanted, segment, planner, watch)
        return _lower(planned, target, reuse=reuse, compact=compact, progress=progress)

    program, cycles = compile_with(Planner(target, choose), watch)
    # Which plans are better depends on the whole program, so compile small programs both ways.
    if choose is plan and target.beat > SLOW and len(program.instructions) < _MAX_INSTRUCTIONS_TO_PLAN_TWICE:
        seen: list[tuple[str, DeviceSegment]] = []
        apart, other = compile_with(Planner(target, plan_apart), lambda *item: seen.append(item))
        program = apart if other <= _MAX_SLOWDOWN_OF_SPLIT_PARAMETERS * cycles else program
        if program is apart and watch is not None:
            for item in seen:
                watch(*item)
    # Too large: prefer plans that save memory over those that save time.
    if room is not None and compact and program.areas.values_bytes > room:
        tight, _ = compile_with(Planner(target, choose, tight=True), watch)
        program = min(program, tight, key=lambda item: item.areas.values_bytes)
    _check_memory(segment.name, program.areas.memory_bytes)
    return program


def _check_memory(name: str, total: int) -> None:
    """Raise `CompileError` for a device program of `total` bytes if 32-bit addresses do not reach all of them."""
    if total > _MAX_MEMORY:
        raise CompileError(
            f"{name} needs {total:,} bytes of the device's memory for constants, instructions and buffers; "
            f"addresses reach {_MAX_MEMORY:,}: split the model, or take fewer images at once"
        )


def _lower(
    segment: DeviceSegment,
    target: Target,
    *,
    reuse: bool,
    compact: bool,
    progress: Callable[[str], None] | None,
) -> tuple[DeviceProgram, int]:
    """Return the program of operators with plans, and `weft.compiler.machine.schedule.Scheduled.cycles`."""
    config = target.config
    allocation = Allocation(
        segment.ops, reuse=reuse, resident=segment.resident, overlapped=segment.overlapped, compact=compact
    )
    lowering = Lowering(target, allocation)
    parts = [early_table_tasks(segment.ops, lowering.emitter(0))] if segment.ops else []
    tasks: list[Task] = []
    for index, op in enumerate(segment.ops):
        if progress is not None:
            progress(op.name)
        tasks += lowering.tasks(op, index, segment.regions[index] if segment.regions else None)
        if len(tasks) >= _TASKS_PER_BATCH:
            parts.append(Tasks.of(tasks, config))
            tasks = []
    parts.append(Tasks.of(tasks, config))
    ordered, code, cycles = schedule(merge_overlapped(Tasks.concatenate(parts), segment.overlapped), target)
    blob = lowering.constants.finish()
    # Align the code that follows to 4 KiB, which AXI bursts must not cross.
    blob += bytes(-len(blob) % 4096)
    layers = _layers(segment, ordered)
    program = DeviceProgram(
        segment.name, code, blob, layers, allocation.offsets, allocation.buffers, dict(segment.rows), compact
    )
    return program, cycles


def _merge_layers(layers: Sequence[Layer]) -> Layer:
    """Merge layers that are consecutive or run at the same time.

    The result has the kind of the layer with most multiplications, or else of the last.
    """
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
    """Return a layer per operator; overlapping operators, and chains in strips, are merged."""
    continued = {index + 1 for index in segment.overlapped}
    continued |= {index for item in segment.strips for index in range(item.first + 1, item.stop)}
    macs = {item.first: item.macs for item in segment.strips}
    groups: dict[int, list[Layer]] = {}
    for index, layer in enumerate(_operator_layers(segment.ops, tasks)):
        first = next(reversed(groups)) if index in continued else index
        groups.setdefault(first, []).append(layer)
    # Strips compute some rows twice, so the chain's own number of multiplications replaces the sum.
    joined = {first: _merge_layers(layers) for first, layers in groups.items()}
    return tuple(
        dataclasses.replace(layer, macs=macs.get(first, layer.macs)) for first, layer in joined.items()
    )


def _operator_layers(ops: Sequence[DeviceOp], tasks: Tasks) -> Iterator[Layer]:
    cycles, moved, queued = (np.zeros((len(ops), len(Queue)), np.int64) for _ in range(3))
    cells = tasks.layer, tasks.queue
    np.add.at(cycles, cells, tasks.cycles)
    np.add.at(moved, cells, tasks.dram_bytes)
    np.add.at(queued, cells, 1)

    def by_queue(row: np.ndarray) -> dict[str, int]:
        return {queue.name: int(row[queue]) for queue in Queue}

    for index, op in enumerate(ops):
        yield Layer(
            op.name,
            type(op).__name__.lower(),
            op.macs,
            by_queue(cycles[index]),
            int(moved[index, Queue.LOAD]),
            int(moved[index, Queue.STORE]),
            by_queue(queued[index]),
        )
