"""Many runs on one device, one behind the other: what the next one needs crosses while this one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.host.segments import prepare, run_host
from weft.compiler.ir.model import HostSegment
from weft.compiler.machine.memory import CONSTANTS, INPUTS, OUTPUTS
from weft.errors import InputError
from weft.hdl.checker.extents import ProgramError
from weft.hdl.checker.program import ListedProgram, check_places
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import Record, encode_list, pitch
from weft.run.devices import Simulation
from weft.run.execution import Execution
from weft.run.program import Program, Result
from weft.run.runtime import Image

if TYPE_CHECKING:
    from weft.sim.device import Device


def side_by_side(programs: Sequence[DeviceProgram]) -> list[Image]:
    """Images of programs that lie in memory one behind the other, from address 0 on. The last one's `memory_bytes` is
    what they take together."""
    images: list[Image] = []
    at = 0
    for program in programs:
        images.append(Image(program, moved={base: at + to for base, to in program.areas.bases.items()}))
        at += program.areas.memory_bytes
        images[-1].memory_bytes = at
    return images


class ProgramList:
    """Images on one device, which runs them in their order by itself.

    Images may share memory, be it code, buffers or all: they run one after the other. Only code and the list itself no
    program may write.

    Parameters
    ----------
    images : sequence of Image
        Placed in the device's memory; one may be there more than once.
    config : Config
        The device's, with `descriptors`.
    address : int
        Where the list goes, a multiple of `weft.hdl.isa.program_lists.pitch`; `bytes_of` tells how much it takes.
    memory_bytes : int
        Of the device.
    registers : sequence of mapping of int to int, optional
        For each image base registers that hold something else than an address of its memory.

    Raises
    ------
    InputError
        For no image, an address that is not aligned or beyond memory, or programs that may write to the list or to
        code; the sentence says which.
    """

    def __init__(
        self,
        images: Sequence[Image],
        config: Config,
        address: int,
        memory_bytes: int,
        registers: Sequence[Mapping[int, int]] | None = None,
    ) -> None:
        self.images, self.config, self.address = list(images), config, address
        more = [{}] * len(self.images) if registers is None else list(registers)
        if len(more) != len(self.images):
            raise InputError(f"there are registers for {len(more)} images, not for {len(self.images)}")
        self._programs = [
            ListedProgram(
                image.bases[CONSTANTS] + image.program.entry,
                image.program.instructions,
                {**image.bases, **given},
                image.program.areas.extents,
            )
            for image, given in zip(self.images, more, strict=True)
        ]
        try:
            check_places(address, self._programs, config, memory_bytes)
        except ProgramError as error:
            raise InputError(str(error)) from None

    @staticmethod
    def bytes_of(count: int, config: Config) -> int:
        """What a list of `count` programs takes in memory."""
        return count * pitch(config)

    def load(self, device: Device) -> None:
        """Load the programs, each once, unless the device has kept them."""
        loaded: set[tuple[int, int]] = set()
        for image in self.images:
            key = id(image.program), image.bases[CONSTANTS]
            if key not in loaded:
                image.load(device)
            loaded.add(key)

    def start(self, device: Device) -> None:
        """Write the list, with empty records, and start it; programs are loaded and have their inputs.

        Raises
        ------
        weft.sim.device.DeviceError
            As `weft.sim.device.Device.start_list` does.
        """
        runs = [
            (
                device.origin + program.address,
                [device.origin + program.bases.get(base, 0) for base in range(BASES)],
            )
            for program in self._programs
        ]
        for image in self.images:
            image.unload(device)
        device.write(self.address, encode_list(runs, self.config))
        device.start_list(self.address)

    def records(self, device: Device) -> list[Record]:
        """What the device has told about each program, as far as they are done."""
        raw, step = (
            device.read(self.address, self.bytes_of(len(self.images), self.config)),
            pitch(self.config),
        )
        return [Record.decode(raw[index * step :]) for index in range(len(self.images))]


Values = dict[str, np.ndarray]
LISTED = 4
"""Runs at most that a device gets at a start."""


def stream(program: Program, runs: Sequence[Mapping[str, np.ndarray]], device: Device) -> Iterator[Result]:
    """Run a model once for each of `runs`, as `Program.run` does without `memory`; yields results as they come.

    Inputs and outputs have two places in memory, by turns: while the device computes, the outputs of the run before are
    read, the host computes what comes before and behind the device's part, and the inputs of the next run are written.
    Where that cannot be, as the host computes with what the model keeps from run to run, the model has several parts on
    the device or none, or memory is too small, one run ends before the next begins.

    What is kept stays in the device's memory: it is written before the first run, and read behind the last one.

    A device whose configuration has `descriptors` gets up to `LISTED` runs at a start: they are computed one behind the
    other without the host, each with a place of its own for inputs and outputs, while it reads and writes those of the
    start before and the next. Their reports have the cycles of whole runs, and of counters only `load_memory`.

    Raises
    ------
    InputError, weft.sim.device.DeviceError
        As `Program.run` does.
    """
    queued = _queued(program, device, len(runs))
    if queued is not None:
        yield from queued.run(runs)
        return
    images = places(program, device.memory_bytes, device.kept) if len(runs) > 1 else None
    if images is None:
        for inputs in runs:
            yield program.run(inputs, on=device, memory=False)
        return
    yield from _Stream(program, device, images).run(runs)


def places(
    program: Program,
    memory_bytes: int,
    find: Callable[[bytes], int | None] = lambda fixed: None,
    count: int = 2,
) -> list[Image] | None:
    """So many images of the device's part that differ in where inputs and outputs lie; None if there cannot be as many.
    `find` tells where the device keeps code and constants, as `Device.kept` does."""
    parts = [part for part in program.segments if isinstance(part, DeviceProgram)]
    if len(parts) != 1 or parts[0].compact:  # inputs of compact programs lie among temporaries
        return None
    (part,) = parts
    if {buffer.kind for buffer in part.buffers.values()} - {"input", "output", "temp", "state"}:
        return None
    if not _stay(program, part):
        return None
    kept = find(Image(part).fixed)
    first = Image(part, kept)
    bases = {base: at for base, at in first.bases.items() if kept is None or base != CONSTANTS}
    ends = [*sorted(bases.values())[1:], first.memory_bytes]
    sizes = {base: end - bases[base] for base, end in zip(sorted(bases), ends, strict=True)}
    step = sizes[INPUTS] + sizes[OUTPUTS]
    if first.memory_bytes + (count - 1) * step > memory_bytes:
        return None
    starts = [first.memory_bytes + number * step for number in range(count - 1)]
    return [first, *(Image(part, kept, {INPUTS: at, OUTPUTS: at + sizes[INPUTS]}) for at in starts)]


def _queued(program: Program, device: Device, runs: int) -> _Queued | None:
    """What has the device run several of so many at a start; None if it cannot."""
    if not program.config.descriptors or device.config != program.config:
        return None
    for size in range(min(LISTED, runs), 1, -1):
        room = device.memory_bytes - ProgramList.bytes_of(size, program.config)
        address = room // pitch(program.config) * pitch(program.config)
        images = places(program, address, device.kept, 2 * size)
        if images is not None:
            return _Queued(program, device, images, address)
    return None


def _stay(program: Program, part: DeviceProgram) -> bool:
    """Whether all that the model keeps is kept in the memory of this part, and nobody else reads it."""
    compiled = program._compiled
    ends = [(state.source, state.target) for state in compiled.states]
    places = [
        {item.value: item.buffer.name for item in items if item.buffer.name in part.buffers}
        for items in (compiled.to_device, compiled.from_device)
    ]
    hosted = {
        name
        for segment in program.segments
        if isinstance(segment, HostSegment)
        for name in segment.network.inputs
    }
    return all(
        source in places[0]
        and places[0][source] == places[1].get(target)
        and part.buffers[places[0][source]].kind == "state"
        and not {source, target} & hosted
        for source, target in ends
    )


class _Run:
    """One of the runs, from its inputs to its result; `states` are what it begins with, if nothing has run yet."""

    def __init__(
        self, program: Program, device: Device, inputs: Mapping[str, np.ndarray], image: Image, states: Values
    ) -> None:
        self.program, self.device, self.image = program, device, image
        self.execution = Execution(
            device, program.config, Simulation(), keep=False, warnings=program.warnings
        )
        self.values: Values = program._check(inputs) | states
        segments = list(program.segments)
        at = segments.index(image.program)
        self._before: Sequence[Any] = segments[:at]
        self._behind: Sequence[Any] = segments[at + 1 :]

    def send(self) -> None:
        """Compute what comes before the device's part, and write its inputs."""
        self._host(self._before)
        self.image.write(self.device, self.program._entering(self.image.program, self.values))

    def finish(self, *, last: bool) -> Result:
        """Read its outputs, of the last run what is kept as well, and compute what comes behind."""
        part, program = self.image.program, self.program
        names = {
            item.buffer.name
            for item in program._compiled.from_device
            if item.buffer.name in part.buffers and (last or part.buffers[item.buffer.name].kind != "state")
        }
        self.values |= program._leaving(part, {name: self.image.read(self.device, name) for name in names})
        self._host(self._behind)
        outputs = {name: np.asarray(self.values[name]) for name in program.outputs}
        if last:
            program._states = {
                state.source: np.asarray(self.values[state.target]) for state in program._compiled.states
            }
        return Result(outputs, self.execution.report, b"")

    def _host(self, segments: Sequence[HostSegment]) -> None:
        for segment in segments:
            prepare(segment)
            started = perf_counter()
            self.values |= run_host(segment, self.values)
            self.execution.add_host(segment, perf_counter() - started)


class _Stream:
    def __init__(self, program: Program, device: Device, images: Sequence[Image]) -> None:
        self.program, self.device, self.images = program, device, images

    def run(self, runs: Sequence[Mapping[str, np.ndarray]]) -> Iterator[Result]:
        device = self.device
        self.images[0].load(device)
        waiting = [
            _Run(
                self.program, device, inputs, self.images[number % 2], {} if number else self.program._states
            )
            for number, inputs in enumerate(runs)
        ]
        done: _Run | None = None
        waiting[0].send()
        for number, now in enumerate(waiting):
            now.image.start(device)
            # The core computes; nothing of what is moved here is in its two places.
            if done is not None:
                yield done.finish(last=False)
            if number + 1 < len(waiting):
                waiting[number + 1].send()
            device.wait()
            now.execution.count(now.image.program, device)
            done = now
        assert done is not None
        yield done.finish(last=True)


class _Queued:
    """Runs in groups, one start for each: half of the images by turns. The list of a group lies at `address`."""

    def __init__(self, program: Program, device: Device, images: Sequence[Image], address: int) -> None:
        self.program, self.device = program, device
        half = len(images) // 2
        self.halves, self.address = (images[:half], images[half:]), address

    def run(self, runs: Sequence[Mapping[str, np.ndarray]]) -> Iterator[Result]:
        device = self.device
        size = len(self.halves[0])
        waiting = [
            _Run(
                self.program,
                device,
                inputs,
                self.halves[number // size % 2][number % size],
                {} if number else self.program._states,
            )
            for number, inputs in enumerate(runs)
        ]
        self.halves[0][0].load(device)
        groups = [waiting[at : at + size] for at in range(0, len(waiting), size)]
        done: list[_Run] = []
        _send(groups[0])
        for number, group in enumerate(groups):
            listed = ProgramList(
                [run.image for run in group], self.program.config, self.address, device.memory_bytes
            )
            listed.start(device)
            # The core computes; nothing of what is moved here is in the places of this group.
            for run in done:
                yield run.finish(last=False)
            if number + 1 < len(groups):
                _send(groups[number + 1])
            device.wait()
            for run, record in zip(group, listed.records(device), strict=True):
                run.execution.count_listed(run.image.program, device, record)
            done = group
        for run in done:
            yield run.finish(last=run is waiting[-1])


def _send(group: Sequence[_Run]) -> None:
    for run in group:
        run.send()
