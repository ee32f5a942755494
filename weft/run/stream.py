"""Stream many runs through one device: inputs and outputs are transferred while the device computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.host.segments import prepare, run_host
from weft.compiler.ir.model import HostSegment
from weft.compiler.machine.areas import CONSTANTS, INPUTS, OUTPUTS
from weft.errors import InputError
from weft.hdl.checker.program import ListedProgram, check_places
from weft.hdl.errors import ProgramError
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import Record, encode_list, pitch
from weft.run.options import RunOptions
from weft.run.program import Program, Result
from weft.run.runtime import Execution, Image

if TYPE_CHECKING:
    from weft.sim.device import Device


def place_programs(programs: Sequence[DeviceProgram]) -> list[Image]:
    """Return images of programs one after the other in memory, from address 0 on.

    The `memory_bytes` of the last image is the total.
    """
    images: list[Image] = []
    at = 0
    for program in programs:
        images.append(Image(program, moved={base: at + to for base, to in program.areas.bases.items()}))
        at += program.areas.memory_bytes
        images[-1].memory_bytes = at
    return images


class ProgramList:
    """List of images that a device runs in order, without the host.

    Images may share code and buffers, because they run one after the other. Programs must not write to code or list.

    Parameters
    ----------
    images : sequence of Image
        Images in the device's memory; an image may occur more than once.
    config : Config
        Configuration of the device, with `descriptors`.
    address : int
        Address of the list, a multiple of `weft.hdl.isa.program_lists.pitch`; `bytes_of` returns the list's size.
    memory_bytes : int
        Size of the device's memory.
    registers : sequence of mapping of int to int, optional
        For each image, values of base registers that do not hold addresses of its areas.

    Raises
    ------
    InputError
        If `images` is empty, `address` is not aligned or outside memory, or a program may write to the list or to code.
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
        overrides = [{}] * len(self.images) if registers is None else list(registers)
        if len(overrides) != len(self.images):
            raise InputError(f"there are registers for {len(overrides)} images, not for {len(self.images)}")
        self._programs = [
            ListedProgram(
                image.bases[CONSTANTS] + image.program.entry,
                image.program.instructions,
                {**image.bases, **override},
                image.program.areas.extents,
            )
            for image, override in zip(self.images, overrides, strict=True)
        ]
        try:
            check_places(address, self._programs, config, memory_bytes)
        except ProgramError as error:
            raise InputError(str(error)) from None

    @staticmethod
    def bytes_of(count: int, config: Config) -> int:
        """Return the size of a list of `count` programs in bytes."""
        return count * pitch(config)

    def load(self, device: Device) -> None:
        """Load each program once, unless it is in flash."""
        loaded: set[tuple[int, int]] = set()
        for image in self.images:
            key = id(image.program), image.bases[CONSTANTS]
            if key not in loaded:
                image.load(device)
            loaded.add(key)

    def start(self, device: Device) -> None:
        """Write the list with empty records and start it, after programs were loaded and their inputs were written.

        Raises
        ------
        weft.sim.device.DeviceError
            See `weft.sim.device.Device.start_list`.
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
        """Return the record of each program, which is empty until the program is done."""
        raw, step = (
            device.read(self.address, self.bytes_of(len(self.images), self.config)),
            pitch(self.config),
        )
        return [Record.decode(raw[index * step :]) for index in range(len(self.images))]


Values = dict[str, np.ndarray]
MAX_LIST_RUNS = 4
"""Most runs that a device gets in one list."""


def stream(program: Program, runs: Sequence[Mapping[str, np.ndarray]], device: Device) -> Iterator[Result]:
    """Run a model once for each of `runs`, like `Program.run` with ``memory=False``; yield results as they are ready.

    Inputs and outputs are double-buffered: while the device computes a run, the host reads the outputs of the previous
    run, runs its own segments, and writes the inputs of the next run. Runs do not overlap if the host computes with the
    model's states, if the model does not have exactly one device program, or if memory is too small.

    States stay in the device's memory: they are written before the first run, and read after the last run.

    A device whose configuration has `descriptors` gets lists of up to `MAX_LIST_RUNS` runs, which it computes without
    the host. Each run of a list has buffers of its own for inputs and outputs. Meanwhile the host transfers the buffers
    of the previous and the next list. Reports then have only two counters, ``cycles`` and ``load_memory``.

    Raises
    ------
    InputError, weft.sim.device.DeviceError
        As `Program.run` does.
    """
    lists = _list_stream(program, device, len(runs))
    if lists is not None:
        yield from lists.run(runs)
        return
    images = alternate_images(program, device.memory_bytes, device.find_in_flash) if len(runs) > 1 else None
    if images is None:
        for inputs in runs:
            yield program.run(inputs, on=device, memory=False)
        return
    yield from _AlternatingStream(program, device, images).run(runs)


def alternate_images(
    program: Program,
    memory_bytes: int,
    find: Callable[[bytes], int | None] = lambda fixed: None,
    count: int = 2,
) -> list[Image] | None:
    """Return `count` images of the only device program, each with its own buffers for inputs and outputs.

    Returns None if the program does not allow it, or memory is too small. `find` returns the address of code and
    constants in flash, like `Device.find_in_flash`.
    """
    parts = [part for part in program.segments if isinstance(part, DeviceProgram)]
    if len(parts) != 1 or parts[0].compact:  # inputs of compact programs share memory with temporaries
        return None
    (part,) = parts
    if {buffer.kind for buffer in part.buffers.values()} - {"input", "output", "temp", "state"}:
        return None
    if not _states_stay(program, part):
        return None
    flash_address = find(Image(part).read_only)
    first = Image(part, flash_address)
    bases = {base: at for base, at in first.bases.items() if flash_address is None or base != CONSTANTS}
    ends = [*sorted(bases.values())[1:], first.memory_bytes]
    # Areas follow one another, so each ends where the next begins.
    sizes = {base: end - bases[base] for base, end in zip(sorted(bases), ends, strict=True)}
    # Only inputs and outputs are duplicated, after the first image; images share everything else.
    step = sizes[INPUTS] + sizes[OUTPUTS]
    if first.memory_bytes + (count - 1) * step > memory_bytes:
        return None
    starts = [first.memory_bytes + number * step for number in range(count - 1)]
    return [first, *(Image(part, flash_address, {INPUTS: at, OUTPUTS: at + sizes[INPUTS]}) for at in starts)]


def _list_stream(program: Program, device: Device, runs: int) -> _ListStream | None:
    """Return a stream that runs lists of programs, or None if the device or the program does not support it."""
    if not program.config.descriptors or device.config != program.config:
        return None
    # Two groups of buffers alternate; the list lies at the end of memory.
    for size in range(min(MAX_LIST_RUNS, runs), 1, -1):
        room = device.memory_bytes - ProgramList.bytes_of(size, program.config)
        address = room // pitch(program.config) * pitch(program.config)
        images = alternate_images(program, address, device.find_in_flash, 2 * size)
        if images is not None:
            return _ListStream(program, device, images, address)
    return None


def _states_stay(program: Program, part: DeviceProgram) -> bool:
    """Return True if all states of the model stay in this program's memory, and the host does not read them."""
    # A state stays if its input and its output are the same buffer of the device, and no host segment reads it.
    compiled = program._compiled
    ends = [(state.source, state.target) for state in compiled.states]
    buffers = [
        {item.value: item.buffer.name for item in items if item.buffer.name in part.buffers}
        for items in (compiled.to_device, compiled.from_device)
    ]
    host_inputs = {
        name
        for segment in program.segments
        if isinstance(segment, HostSegment)
        for name in segment.network.inputs
    }
    return all(
        source in buffers[0]
        and buffers[0][source] == buffers[1].get(target)
        and part.buffers[buffers[0][source]].kind == "state"
        and not {source, target} & host_inputs
        for source, target in ends
    )


class _Run:
    """One run from inputs to result. `states` are the initial states for the first run, and empty for later runs."""

    def __init__(
        self, program: Program, device: Device, inputs: Mapping[str, np.ndarray], image: Image, states: Values
    ) -> None:
        self.program, self.device, self.image = program, device, image
        self.execution = Execution(RunOptions(device), program.config, keep=False, warnings=program.warnings)
        self.values: Values = program._check(inputs) | states
        segments = list(program.segments)
        at = segments.index(image.program)
        self._before: Sequence[Any] = segments[:at]
        self._after: Sequence[Any] = segments[at + 1 :]

    def send(self) -> None:
        """Run the host segments before the device program, and write its inputs."""
        self._host(self._before)
        self.image.write(self.device, self.program._entering(self.image.program, self.values))

    def finish(self, *, last: bool) -> Result:
        """Read the outputs (and after the last run the states), and run the host segments after the device program."""
        part, program = self.image.program, self.program
        names = {
            item.buffer.name
            for item in program._compiled.from_device
            if item.buffer.name in part.buffers and (last or part.buffers[item.buffer.name].kind != "state")
        }
        self.values |= program._leaving(part, {name: self.image.read(self.device, name) for name in names})
        self._host(self._after)
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


class _AlternatingStream:
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
            # The core is computing: these transfers use the other image's buffers.
            if done is not None:
                yield done.finish(last=False)
            if number + 1 < len(waiting):
                waiting[number + 1].send()
            device.wait()
            now.execution.count(now.image.program, device)
            done = now
        assert done is not None
        yield done.finish(last=True)


class _ListStream:
    """Stream of runs in groups, one list per group; groups alternate between two halves of the images."""

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
            # The core is computing: these transfers use the other half's buffers.
            for run in done:
                yield run.finish(last=False)
            if number + 1 < len(groups):
                _send(groups[number + 1])
            device.wait()
            for run, record in zip(group, listed.records(device), strict=True):
                run.execution.count_record(run.image.program, device, record)
            done = group
        for run in done:
            yield run.finish(last=run is waiting[-1])


def _send(group: Sequence[_Run]) -> None:
    for run in group:
        run.send()
