"""Traces of runs: timelines of device segments, and waveforms with files that arrange them in GTKWave and Surfer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Unpack

from weft.compiler.backend import DeviceProgram
from weft.configurations import sequential_boards, sequential_core_sentence
from weft.errors import FileError, InputError
from weft.files import whole_file, write_text
from weft.hdl.isa import Instruction, Queue
from weft.hdl.isa.code import format_instruction
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.options import MemoryKeywords, RunOptions
from weft.run.program import Program
from weft.run.runtime import Image
from weft.sim.device import DeviceError
from weft.sim.rtl.trace import TracedRtl
from weft.sim.timing import TimingDevice
from weft.sim.timing.device import SAMPLE, Interval, occupancy
from weft.sim.waves import FORMATS, Waves, gtkw, sucl, variables

LAYERS = "layers"
"""Track of layers. As in reports, a layer reaches from the previous layer's last write to its own last write, and
includes preceding layers that write nothing."""
TRACKS = (LAYERS, *(queue.name for queue in Queue))
_MAX_WINDOWS = 2000  # of bandwidth in a timeline


@dataclass(frozen=True)
class Slice:
    """Part of a track from cycle `start` to cycle ``end - 1``.

    Attributes
    ----------
    layer : int
        Index into `Timeline.layers`.
    instruction : int or None
        Index in the program; None for a slice of a layer.
    waits : bool
        True while the instruction waits for semaphores or its unit, and the unit runs no other instruction.
    """

    name: str
    layer: int
    instruction: int | None
    waits: bool
    start: int
    end: int
    details: dict[str, Any]


@dataclass(frozen=True)
class Window:
    """DRAM bytes transferred from cycle `start` to cycle ``end - 1``: whole beats, including instruction fetch."""

    start: int
    end: int
    read: int
    written: int


@dataclass(frozen=True)
class Timeline:
    """Timeline of one device segment. Cycles count from the segment's start, which is cycle `origin` of the program.

    Slices of a track do not overlap. A unit accepts an instruction before the previous one is done; the slice of the
    later instruction then begins where the earlier slice ends. `vectors` is the number of scratchpad vectors in use, as
    (cycle, number) at every change.
    """

    name: str
    origin: int
    cycles: int
    layers: tuple[str, ...]
    tracks: dict[str, list[Slice]]
    windows: list[Window]
    vectors: list[tuple[int, int]]
    counters: dict[Counter, int]


def timelines_of(
    program: Program, on: str | RunOptions = "timing", **memory: Unpack[MemoryKeywords]
) -> list[Timeline]:
    """Run a program with inputs of zeros, and return the timelines of its device segments.

    The host's segments take no time.

    Parameters
    ----------
    program : Program
    on : "timing", "rtl" or RunOptions
        The cycle model, or the RTL. On the RTL only softmax's cycles depend on the inputs.
    memory
        ``latency`` and ``bandwidth`` of `RunOptions`.

    Raises
    ------
    InputError
        If an option is invalid, or if the program is for a sequential core, which has no traces.
    FileError
        If no part of the program runs on the device.
    weft.sim.device.DeviceError
        If the model or the RTL fails.
    """
    options = RunOptions.of(on, **memory).planned_for(program.memory)
    if options.on not in ("timing", "rtl"):
        raise InputError(f"traces are of 'timing' or 'rtl', not of {options.on!r}")
    boards = sequential_boards(program.config)
    if boards:
        raise InputError(
            f"{sequential_core_sentence(boards)}: there are no traces of it, as it does one thing at a time"
        )
    timelines: list[Timeline] = []
    for segment in program.segments:
        if isinstance(segment, DeviceProgram):
            image = Image(segment)
            with _tracing_device(options, program.config, image.memory_bytes) as device:
                image.run(device, {})
                timelines.append(_timeline(segment, device, sum(earlier.cycles for earlier in timelines)))
    if not timelines:
        raise FileError("nothing of this program runs on the device, so there is nothing to trace")
    return timelines


@contextmanager
def _tracing_device(
    options: RunOptions, config: Config, memory_bytes: int
) -> Iterator[TimingDevice | TracedRtl]:
    if options.on == "rtl":
        with TracedRtl(config, memory_bytes, **options.memory) as device:
            yield device
    else:
        yield TimingDevice(config, memory_bytes, trace=True, **options.memory)


def _timeline(program: DeviceProgram, device: TimingDevice | TracedRtl, origin: int) -> Timeline:
    counters = device.counters()
    cycles = counters[Counter.CYCLES]
    places = _places(program)
    tracks = {LAYERS: list(_layers(program, device.marks()))}
    for queue in Queue:
        own = [item for item in device.intervals if item.unit == queue]
        tracks[queue.name] = list(_slices(own, program, places))
    spans = {item.instruction: (item.start, item.end) for item in device.intervals if item.kind == "runs"}
    return Timeline(
        program.name,
        origin,
        cycles,
        tuple(layer.name for layer in program.layers),
        tracks,
        list(_windows(device.beats, cycles, device.config)),
        occupancy(program.instructions, spans, device.config),
        counters,
    )


def _places(program: DeviceProgram) -> dict[int, tuple[int, int]]:
    """Return each instruction's layer, and its number among the layer's instructions in its queue, by index."""
    # Within a queue, instructions of layers keep the order of layers.
    waiting = {
        queue: deque(
            (index, number)
            for index, layer in enumerate(program.layers)
            for number in range(layer.queued[queue.name])
        )
        for queue in Queue
    }
    return {
        index: waiting[instruction.QUEUE].popleft()
        for index, instruction in enumerate(program.instructions)
        if instruction.QUEUE is not None
    }


def _layers(program: DeviceProgram, marks: Sequence[int]) -> Iterator[Slice]:
    """Yield slices of layers that write to memory, each including preceding layers that do not."""
    for (index, layer), (start, end) in zip(
        program.timed_layers.items(), pairwise([0, *marks]), strict=False
    ):
        details = {"kind": layer.kind, "macs": layer.macs, "dram_bytes": layer.dram_bytes}
        yield Slice(layer.name, index, None, False, start, end, details)


def _slices(
    intervals: Iterable[Interval], program: DeviceProgram, places: dict[int, tuple[int, int]]
) -> Iterator[Slice]:
    """Yield the slices of one unit, in the order of its instructions, without overlap."""
    at = 0  # end of the previous slice
    for item in sorted(intervals, key=lambda item: (item.instruction, item.kind == "runs")):
        waits = item.kind == "waits"
        start, end = max(at, item.start), max(at, item.end)
        if waits and start == end:  # the unit was busy with earlier instructions all the time
            continue
        layer, number = places[item.instruction]
        name = f"{program.layers[layer].name} {number + 1}/{program.layers[layer].queued[item.unit.name]}"
        details: dict[str, Any] = {} if waits else {"index": item.instruction, "accepted": item.start}
        details |= _fields(program.instructions[item.instruction])
        yield Slice(f"wait: {name}" if waits else name, layer, item.instruction, waits, start, end, details)
        at = end


def _fields(instruction: Instruction) -> dict[str, str]:
    """Return the fields of an instruction as the disassembler writes them, without fields at their default."""
    opcode, *fields = format_instruction(instruction).split()
    return {"opcode": opcode} | {name: value for name, _, value in (field.partition("=") for field in fields)}


def _windows(beats: Sequence[tuple[int, int]], cycles: int, config: Config) -> Iterator[Window]:
    samples = -(-cycles // (SAMPLE * _MAX_WINDOWS))  # per window
    for at in range(0, -(-cycles // SAMPLE), samples):
        read, written = (sum(pair[way] for pair in beats[at : at + samples]) for way in (0, 1))
        end = min(cycles, (at + samples) * SAMPLE)
        yield Window(at * SAMPLE, end, read * config.bus_bytes, written * config.bus_bytes)


VIEWERS = (".gtkw", ".sucl")
"""Endings of the files next to a waveform, for GTKWave and Surfer."""


@contextmanager
def recording(options: RunOptions) -> Iterator[RunOptions]:
    """Yield options of a run that records the waveforms of `options`, if they name a file.

    When the block ends, the waveforms and the files of both viewers are written, all of them or none. If the device
    fails after its first recorded cycle, they are written too, because they show the cause.

    Raises
    ------
    FileError
        If the suffix of the file names no format, or no cycle was recorded.
    """
    wanted = options.recording
    if wanted is None:
        yield options
        return
    path, first = wanted.path, wanted.first
    if path.suffix not in FORMATS:
        raise FileError(f"{path}: the file of waveforms must end in {' or '.join(FORMATS)}")
    with whole_file(path) as part:
        waves = Waves(part, first, wanted.cycles)
        failure = None
        try:
            yield replace(options, waves=waves)
        except DeviceError as error:
            if waves.zero is None:  # it failed before the program started
                raise
            failure = error
        if waves.zero is None:
            raise FileError("nothing of this program runs on the device, so there are no waveforms")
        # `waves.ran` counts the cycles of the program, from its start.
        if waves.ran <= first:
            raise failure or FileError(
                f"there are no waveforms from cycle {first:,} on: the program takes {waves.ran:,}"
            )
        signals = variables(part)
        texts = (gtkw(signals, waves, path), sucl(signals, waves))
        for suffix, text in zip(VIEWERS, texts, strict=True):
            write_text(path.with_suffix(suffix), text)
    if failure is not None:
        raise failure
