"""The cycle models of both cores as devices, which return the counters of a program but no results."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from weft.hdl.checker.extents import Cells, on_chip_accesses
from weft.hdl.errors import IsaError
from weft.hdl.isa import BASES, WORD_BYTES, Instruction, Memory, Queue, decode
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter, ListProgress
from weft.hdl.isa.program_lists import DESCRIPTOR_BYTES, RECORD_READ_BYTES, Descriptor, Record, pitch
from weft.hdl.sequential.control import BASE, PROGRAM
from weft.hdl.sequential.core import check_config
from weft.sim.device import (
    MAX_EXECUTED,
    Device,
    DeviceError,
    check_base,
    check_list,
    check_memory,
    check_program,
    check_range,
)
from weft.sim.memories import Sdram, TimedFlash
from weft.sim.timing.hardware import parameters
from weft.sim.timing.library import (
    ListedProgram,
    RawInterval,
    Request,
    SequentialRequest,
    core_parameters,
    library,
    microprogram,
)

LIMIT = 1 << 40
"""Default timeout in cycles."""
SAMPLE = 64
"""Cycles per entry of `TimingDevice.beats`; must equal the constant in memory.h."""
TOO_LARGE = "the cycle model needs more memory for this program than there is"
_OUTCOMES = ("done", "hangs", "timeout", "lost", "endless")
_KINDS = ("waits", "runs")


@dataclass(frozen=True)
class Interval:
    """State of an instruction from cycle `start` of the program to cycle ``end - 1``.

    Attributes
    ----------
    unit : Queue
    instruction : int
        Index in the program.
    kind : str
        ``waits``: the instruction is at the head of its queue, and waits for semaphores or its unit. ``runs``: from the
        cycle after its acceptance to the cycle of its signal, during which the unit is busy.
    """

    unit: Queue
    instruction: int
    kind: str
    start: int
    end: int


class TimingDevice(Device):
    """A `weft.sim.device.Device` that predicts `weft.hdl.core.Core`'s counters, and computes nothing.

    The model reads only programs, lists and page tables from memory. Programs do not change memory, except that lists
    write their records. Accesses outside memory go unnoticed.

    Parameters
    ----------
    config : Config
    memory_bytes : int
        Size of the DRAM; zero at first.
    latency, bandwidth
        Latency and bandwidth of the memory, as in `weft.sim.rtl.device.RtlDevice`.
    sdram : Sdram, optional
        Model a board's SDRAM instead, which ignores `latency` and `bandwidth`. It is refreshed just before each
        program.
    trace : bool
        Record `intervals` and `beats` of the last program.

    Attributes
    ----------
    computes : bool
        False: a program leaves no results in memory.
    intervals : list of Interval
        After a list, the intervals of all its programs; indices restart with each program.
    beats : list of (int, int)
        Beats read and written in every `SAMPLE` cycles since the start, up to the last sample with a beat.

    Raises
    ------
    weft.sim.verilate.BuildError
        If the C++ model cannot be built.
    """

    computes = False

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        *,
        latency: int = 30,
        bandwidth: float | None = None,
        sdram: Sdram | None = None,
        trace: bool = False,
    ) -> None:
        check_memory(latency, bandwidth)
        self.config = config
        self.memory_bytes = memory_bytes
        self.latency = latency
        self.bandwidth = bandwidth
        self.trace = trace
        self.intervals: list[Interval] = []
        self.beats: list[tuple[int, int]] = []
        self._library = library()
        self._parameters = np.array(list(parameters(config).values()), np.int64)
        self._sdram = None if sdram is None else np.array(dataclasses.astuple(sdram), np.int64)
        self._memory = np.zeros(memory_bytes, np.uint8)
        self._bases = np.zeros(BASES, np.uint32)
        self._marks = np.zeros(0, np.uint64)
        self._mark_cycles: list[int] = []
        self._counters: dict[Counter, int] = dict.fromkeys(Counter, 0)
        # Bytes that memory of a limited bandwidth has saved for bursts, at the start of a program.
        self._tokens = 0.0
        self._program: int | None = None
        self._list: int | None = None
        self._listed = ListProgress(0)

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it does not lie inside memory."""
        check_range(address, len(payload), self.memory_bytes)
        self._memory[address : address + len(payload)] = np.frombuffer(payload, np.uint8)

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes of DRAM as written by the host. Raises `DeviceError` if they do not lie inside memory."""
        check_range(address, size, self.memory_bytes)
        return self._memory[address : address + size].tobytes()

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a 32-bit DRAM byte address."""
        check_base(index, address)
        self._bases[index] = address

    def start(self, program: int) -> None:
        """Start the program at DRAM byte address `program`, a multiple of the bus width; `wait` runs it."""
        check_program(program, self.config)
        check_range(program, 0, self.memory_bytes)
        self._program, self._list = program, None

    def start_list(self, address: int) -> None:
        """Start the list of programs at DRAM byte address `address`; `wait` runs it.

        Raises `DeviceError` if no list can start there.
        """
        check_list(address, self.config, self.memory_bytes)
        self._list, self._program, self._listed = address, None, ListProgress(0, at_descriptor=True)

    def list_progress(self) -> ListProgress:
        """Return the progress of the list that was started last; a faulty list makes none."""
        return self._listed

    def mark_writes(self, totals: Sequence[int]) -> None:
        """Have programs record the cycle at which they have written each of `totals` bytes (ascending) to DRAM."""
        self._marks = np.array(totals, np.uint64)

    def marks(self) -> list[int]:
        """Return the recorded cycles, counted from the start of the program, without totals that were not reached."""
        return self._mark_cycles

    def counters(self) -> dict[Counter, int]:
        """Return the counters of the last program."""
        return dict(self._counters)

    def wait(self, timeout: int | None = None) -> None:
        """Run the program or list that was started, if any.

        Raises
        ------
        DeviceError
            If a descriptor is invalid, or an instruction for this configuration. If a program waits for a semaphore
            that no instruction will signal, or takes more than `timeout` cycles.
        MemoryError
            If the model runs out of memory.
        """
        program, address = self._program, self._list
        self._program = self._list = None
        if program is not None:
            self._run(program, timeout)
        elif address is not None:
            self._run_list(address, timeout)

    def _run_list(self, address: int, timeout: int | None) -> None:
        descriptors = self._read_list(address)
        listed = (ListedProgram * len(descriptors))(
            *(ListedProgram(item.program, (ctypes.c_uint32 * BASES)(*item.bases)) for item in descriptors)
        )
        request = self._request(address, timeout)
        request.listed, request.listed_count = ctypes.addressof(listed), len(descriptors)
        self._carry_out(request, address, timeout)
        # After a list, base registers hold the values of its last descriptor.
        self._bases[:] = descriptors[-1].bases
        for index, program in enumerate(listed):
            self.write(
                address + index * pitch(self.config) + RECORD_READ_BYTES,
                Record(True, program.cycles, program.waited).encode(),
            )
        self._listed = ListProgress(len(descriptors))

    def _read_list(self, address: int) -> list[Descriptor]:
        """Return the descriptors of a list. Raises `DeviceError` if one of its programs cannot run."""
        descriptors: list[Descriptor] = []
        while not descriptors or not descriptors[-1].last:
            try:
                descriptor = Descriptor.decode(self.read(address, DESCRIPTOR_BYTES))
            except (DeviceError, IsaError) as error:
                raise DeviceError(f"{ListProgress(len(descriptors), at_descriptor=True)}: {error}") from None
            check = self._request(descriptor.program, None)
            faulty = self._library.weft_timing_check(ctypes.byref(check))
            if faulty < -1:
                raise MemoryError(TOO_LARGE)
            if faulty >= 0:
                raise DeviceError(
                    f"{ListProgress(len(descriptors))}: {self._fault(descriptor.program, faulty)}"
                )
            descriptors.append(descriptor)
            address += pitch(self.config)
        return descriptors

    def _run(self, program: int, timeout: int | None) -> None:
        self._carry_out(self._request(program, timeout), program, timeout)

    def _carry_out(self, request: Request, program: int, timeout: int | None) -> None:
        outcome = ctypes.c_int64()
        model = self._library.weft_timing_run(ctypes.byref(request), ctypes.byref(outcome))
        if not model:
            raise MemoryError(TOO_LARGE)
        try:
            self._collect(model)
        finally:
            self._library.weft_timing_free(model)
        # Negative outcomes are -1 - i for an invalid word i.
        if outcome.value < 0:
            raise DeviceError(self._fault(program, -1 - outcome.value))
        if _OUTCOMES[outcome.value] == "hangs":
            raise DeviceError("the program hangs: what can run waits for semaphores that nothing will give")
        if _OUTCOMES[outcome.value] == "timeout":
            raise DeviceError(f"the program is not done after {timeout} cycles")
        if _OUTCOMES[outcome.value] == "lost":
            raise DeviceError("the program jumps to where it has no instruction")
        if _OUTCOMES[outcome.value] == "endless":
            raise DeviceError(
                f"the program goes on after {MAX_EXECUTED} instructions: does the register of a loop never fall to 0?"
            )

    def _request(self, program: int, timeout: int | None) -> Request:
        return Request(
            self._parameters.ctypes.data, self._bases.ctypes.data, self._memory.ctypes.data, len(self._memory),
            self.latency, self.bandwidth or 0.0, self._tokens, program, self.trace, self._marks.ctypes.data,
            len(self._marks), LIMIT if timeout is None else timeout,
            MAX_EXECUTED if self.config.loops else LIMIT,
            None if self._sdram is None else self._sdram.ctypes.data, None, 0,
        )  # fmt: skip

    def _fault(self, program: int, index: int) -> str:
        """Return the reason why word `index` of the program cannot be executed."""
        try:
            at = program + index * WORD_BYTES
            check_range(at, WORD_BYTES, len(self._memory))
            name = decode(self._memory[at : at + WORD_BYTES].tobytes()).OPCODE.name
        except (DeviceError, IsaError) as error:
            return f"instruction {index}: {error}"
        return f"instruction {index}: the configuration has no {name}"

    def _collect(self, model: int) -> None:
        self._tokens = self._library.weft_timing_tokens(model)
        counters = (ctypes.c_uint64 * len(Counter))()
        self._library.weft_timing_counters(model, counters)
        self._counters = dict(zip(Counter, map(int, counters), strict=True))
        cycles = (ctypes.c_uint64 * max(1, len(self._marks)))()
        self._mark_cycles = [int(cycle) for cycle in cycles[: self._library.weft_timing_marks(model, cycles)]]
        # The arrays of intervals and samples belong to the model: copy them before it is freed.
        intervals = ctypes.POINTER(RawInterval)()
        count = self._library.weft_timing_intervals(model, ctypes.byref(intervals))
        raws = intervals[:count] if count else []
        self.intervals = [
            Interval(Queue(raw.unit), raw.instruction, _KINDS[raw.kind], raw.start, raw.end) for raw in raws
        ]
        samples = ctypes.POINTER(ctypes.c_uint32)()
        count = self._library.weft_timing_samples(model, ctypes.byref(samples))
        numbers = samples[:count] if count else []
        self.beats = list(zip(numbers[::2], numbers[1::2], strict=True))


Span = tuple[int, int]
"""First cycle, and the cycle after the last."""


class _Vectors:
    """First cycle in which each scratchpad vector's contents are in use (-1: never written), and the last known use."""

    def __init__(self, size: int) -> None:
        self.since = np.full(size, -1, np.int64)
        self.until = np.zeros(size, np.int64)
        self.changes: dict[int, int] = {}

    def read(self, cells: Cells, span: Span) -> None:
        self.until[cells] = np.maximum(self.until[cells], span[1])

    def write(self, cells: Cells, span: Span) -> None:
        """Replace contents. The old contents were in use until their last read."""
        # The new use begins after the old one ends, so that no vector counts twice in a cycle.
        self.close(cells)
        self.since[cells] = np.maximum(self.until[cells], span[0])
        self.until[cells] = np.maximum(self.since[cells], span[1])

    def close(self, cells: Cells) -> None:
        used = self.since[cells] >= 0
        self._change(self.since[cells][used], 1)
        self._change(self.until[cells][used], -1)

    def _change(self, cycles: np.ndarray, by: int) -> None:
        for cycle, count in zip(*np.unique(cycles, return_counts=True), strict=True):
            self.changes[int(cycle)] = self.changes.get(int(cycle), 0) + by * int(count)


def occupancy(
    instructions: Sequence[Instruction], spans: dict[int, Span], config: Config
) -> list[tuple[int, int]]:
    """Return the number of scratchpad vectors in use, as (cycle, vectors) at every change.

    A vector is in use from the start of the instruction that writes it to the end of the last instruction that reads it
    before the next write. A vector that is never read is in use while it is written.

    Parameters
    ----------
    instructions : sequence of Instruction
        A program that the program checker accepts.
    spans : dict of int to Span
        Cycles of instructions by index; other instructions are ignored.
    config : Config
        Configuration of the accelerator that ran the program.
    """
    vectors = _Vectors(config.scratchpad_size)
    for index, instruction in enumerate(instructions):
        if index not in spans:
            continue
        for access in on_chip_accesses(instruction, config):
            if access.memory is Memory.SCRATCHPAD:
                change = vectors.write if access.write else vectors.read
                change(access.cells, spans[index])
    vectors.close(slice(None))
    cycles = sorted(cycle for cycle, change in vectors.changes.items() if change)
    return list(zip(cycles, accumulate(vectors.changes[cycle] for cycle in cycles), strict=True))


_SEQUENTIAL_OUTCOMES = ("done", "hangs", "timeout", "outside")


class SequentialTimingDevice(TimingDevice):
    """A `weft.sim.device.Device` that predicts the counters of `weft.hdl.sequential.core.SequentialCore`.

    It executes the microprogram cycle by cycle on the data in memory, because the time of SOFTMAX, NORMALISE and some
    micro-operations of kernels depends on data. Programs write to a copy of memory. Each program starts on a ready
    core, with zeros in all memories on chip.

    Parameters
    ----------
    config : Config
    memory_bytes : int
        Size of the DRAM; zero at first.
    latency, bandwidth
        Latency and bandwidth of the memory, as in `weft.sim.rtl.device.RtlDevice`.
    flash : TimedFlash, optional
        Flash next to that memory, for read-only data.

    Attributes
    ----------
    computed : ndarray, uint8
        Contents of DRAM after the last program.

    Raises
    ------
    weft.hdl.errors.ConfigError
        If the sequential core does not support this configuration.
    weft.sim.verilate.BuildError
        If the C++ model cannot be built.
    """

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        *,
        latency: int = 30,
        bandwidth: float | None = None,
        flash: TimedFlash | None = None,
    ) -> None:
        check_config(config)
        self.sequential = True
        super().__init__(config, memory_bytes, latency=latency, bandwidth=bandwidth)
        self.flash = flash
        if flash is not None:  # one array holds DRAM and, from `window` on, flash
            self._memory = np.zeros(flash.window + flash.end, np.uint8)
        self._core = np.array(list(core_parameters(config).values()), np.int64)
        self.computed = self._memory

    def find_in_flash(self, payload: bytes) -> int | None:
        """Write `payload` to flash and return its address, or None if flash is absent or too small."""
        if self.flash is None or len(payload) > self.flash.end - self.flash.first:
            return None
        at = self.flash.window + self.flash.first
        self._memory[at : at + len(payload)] = np.frombuffer(payload, np.uint8)
        return at

    def start(self, program: int) -> None:
        """Start the program at an address of memory or flash, a multiple of the bus width; `wait` runs it."""
        if self.flash is None or program < self.flash.window:
            super().start(program)
            return
        check_program(program, self.config)
        check_range(program, 0, len(self._memory))
        self._program = program

    def _run(self, program: int, timeout: int | None) -> None:
        check = self._request(program, timeout)
        faulty = self._library.weft_timing_check(ctypes.byref(check))
        if faulty < -1:
            raise MemoryError(TOO_LARGE)
        if faulty >= 0:
            raise DeviceError(self._fault(program, faulty))
        # The model does not check instructions itself. The host's registers are words of data memory.
        words, memory = microprogram(self.config)
        memory = memory.copy()
        memory[PROGRAM], memory[BASE : BASE + BASES] = program, self._bases
        self.computed = self._memory.copy()
        request = SequentialRequest(
            self._core.ctypes.data, words.ctypes.data, len(words), memory.ctypes.data, len(memory),
            self.computed.ctypes.data, len(self.computed), self.latency, self.bandwidth or 0.0, self._tokens,
            self._marks.ctypes.data, len(self._marks), LIMIT if timeout is None else timeout,
            *((flash.window, flash.page, flash.jump, flash.word) if (flash := self.flash) else (0,) * 4),
        )  # fmt: skip
        outcome = ctypes.c_int64()
        model = self._library.weft_sequential_run(ctypes.byref(request), ctypes.byref(outcome))
        if not model:
            raise MemoryError(TOO_LARGE)
        try:
            self._collect_core(model)
        finally:
            self._library.weft_sequential_free(model)
        result = _SEQUENTIAL_OUTCOMES[outcome.value]
        if result == "timeout":
            raise DeviceError(f"the program is not done after {timeout} cycles")
        if result == "outside":
            raise DeviceError("the program reads or writes outside memory")
        if result == "hangs":
            raise DeviceError("the program hangs: the microprogram waits for what no unit will do")

    def _collect_core(self, model: int) -> None:
        self._tokens = self._library.weft_sequential_tokens(model)
        counters = (ctypes.c_uint64 * len(Counter))()
        self._library.weft_sequential_counters(model, counters)
        self._counters = dict(zip(Counter, map(int, counters), strict=True))
        cycles = (ctypes.c_uint64 * max(1, len(self._marks)))()
        self._mark_cycles = [
            int(cycle) for cycle in cycles[: self._library.weft_sequential_marks(model, cycles)]
        ]
