"""The cycle model as a device: the counters of a program, without its results."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from weft.hdl.checker.extents import Cells, on_chip_accesses
from weft.hdl.isa import BASES, WORD_BYTES, Instruction, IsaError, Memory, Queue, decode
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter, ListProgress
from weft.hdl.isa.program_lists import DESCRIPTOR_BYTES, RECORD_READ_BYTES, Descriptor, Record, pitch
from weft.sim.device import (
    EXECUTED_MOST,
    Device,
    DeviceError,
    check_base,
    check_list,
    check_memory,
    check_program,
    check_range,
)
from weft.sim.memories import Sdram
from weft.sim.timing.hardware import parameters
from weft.sim.timing.library import ListedProgram, RawInterval, Request, library

LIMIT = 1 << 40
"""Cycles after which a program is given up if nobody says otherwise."""
SAMPLE = 64
"""Cycles that share one entry of `TimingDevice.beats`; as in memory.h."""
TOO_LARGE = "the cycle model needs more memory for this program than there is"
_OUTCOMES = ("done", "hangs", "timeout", "lost", "endless")
_KINDS = ("waits", "runs")


@dataclass(frozen=True)
class Interval:
    """The state of an instruction from cycle `start` to cycle `end` of the program, the latter not included.

    Attributes
    ----------
    unit : Queue
    instruction : int
        Its index in the program.
    kind : str
        ``waits`` for semaphores or its unit, at the head of the queue; or ``runs``, from the cycle after its acceptance
        to that of its signal: while one of its instructions runs, a unit is busy.
    """

    unit: Queue
    instruction: int
    kind: str
    start: int
    end: int


class TimingDevice(Device):
    """A `weft.sim.device.Device` that predicts `weft.hdl.core.Core`'s counters, and computes nothing.

    Memory keeps what the host wrote: programs, lists and page tables are read from it, everything else is not looked
    at, and `read` returns it unchanged by programs, but for the records of lists. Addresses outside memory are not
    noticed.

    Parameters
    ----------
    config : Config
    memory_bytes : int
        Size of the DRAM; zero at first.
    latency, bytes_per_cycle
        Of the memory, as in `weft.sim.rtl.device.RtlDevice`.
    sdram : Sdram, optional
        The memory is a board's SDRAM, in place of those two. Programs find it just refreshed.
    trace : bool
        Keep `intervals` and `beats` of the last program.

    Attributes
    ----------
    computes : bool
        False: results are not in memory after a program.
    intervals : list of Interval
        Those of all programs of a list, each with indices of its own.
    beats : list of (int, int)
        Read and written in every `SAMPLE` cycles from the start on, up to the last that has any.

    Raises
    ------
    weft.sim.verilate.BuildError
        If the model, which is C++, cannot be built.
    """

    computes = False

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        *,
        latency: int = 30,
        bytes_per_cycle: float | None = None,
        sdram: Sdram | None = None,
        trace: bool = False,
    ) -> None:
        check_memory(latency, bytes_per_cycle)
        self.config = config
        self.memory_bytes = memory_bytes
        self.latency = latency
        self.bytes_per_cycle = bytes_per_cycle
        self.trace = trace
        self.intervals: list[Interval] = []
        self.beats: list[tuple[int, int]] = []
        self._library = library()
        self._parameters = np.array(list(parameters(config).values()), np.int64)
        self._sdram = None if sdram is None else np.array(dataclasses.astuple(sdram), np.int64)
        self._memory = np.zeros(memory_bytes, np.uint8)
        self._bases = np.zeros(BASES, np.uint32)
        self._marks = np.zeros(0, np.uint64)
        self._marked: list[int] = []
        self._counters: dict[Counter, int] = dict.fromkeys(Counter, 0)
        self._tokens = 0.0  # bytes that memory has saved up, which the next program finds
        self._program: int | None = None
        self._list: int | None = None
        self._listed = ListProgress(0)

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it does not lie inside memory."""
        check_range(address, len(payload), self.memory_bytes)
        self._memory[address : address + len(payload)] = np.frombuffer(payload, np.uint8)

    def read(self, address: int, size: int) -> bytes:
        """Read `size` bytes of DRAM, as the host wrote them. Raises `DeviceError` if they do not lie inside memory."""
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
        """Start the list of programs at DRAM byte address `address`; `wait` runs it. Raises `DeviceError` if none can
        start there."""
        check_list(address, self.config, self.memory_bytes)
        self._list, self._program, self._listed = address, None, ListProgress(0, at_descriptor=True)

    def listed(self) -> ListProgress:
        """How far the last list has come; nowhere, if something is wrong with it."""
        return self._listed

    def mark_writes(self, totals: Sequence[int]) -> None:
        """As `weft.sim.rtl.device.RtlDevice.mark_writes`, counted from the start of the program."""
        self._marks = np.array(totals, np.uint64)

    def marks(self) -> list[int]:
        """The cycles noted for `mark_writes`; totals not reached are left out."""
        return self._marked

    def counters(self) -> dict[Counter, int]:
        """The counters of the last program."""
        return dict(self._counters)

    def wait(self, timeout: int | None = None) -> None:
        """Run the program or list that was started, if any.

        Raises
        ------
        DeviceError
            For a word that is no descriptor, or no instruction of this configuration; if a program waits for a
            semaphore that nothing will give; if it takes more than `timeout` cycles.
        MemoryError
            If the model needs more memory than there is.
        """
        program, address = self._program, self._list
        self._program = self._list = None
        if program is not None:
            self._run(program, timeout)
        elif address is not None:
            self._run_list(address, timeout)

    def _run_list(self, address: int, timeout: int | None) -> None:
        found = self._read_list(address)
        listed = (ListedProgram * len(found))(
            *(ListedProgram(item.program, (ctypes.c_uint32 * BASES)(*item.bases)) for item in found)
        )
        request = self._request(address, timeout)
        request.listed, request.listed_count = ctypes.addressof(listed), len(found)
        self._carry_out(request, address, timeout)
        self._bases[:] = found[-1].bases
        for index, program in enumerate(listed):
            self.write(
                address + index * pitch(self.config) + RECORD_READ_BYTES,
                Record(True, program.cycles, program.waited).encode(),
            )
        self._listed = ListProgress(len(found))

    def _read_list(self, address: int) -> list[Descriptor]:
        """The descriptors of a list, all of whose programs can be run."""
        found: list[Descriptor] = []
        while not found or not found[-1].last:
            try:
                descriptor = Descriptor.decode(self.read(address, DESCRIPTOR_BYTES))
            except (DeviceError, IsaError) as error:
                raise DeviceError(f"{ListProgress(len(found), at_descriptor=True)}: {error}") from None
            check = self._request(descriptor.program, None)
            faulty = self._library.weft_timing_check(ctypes.byref(check))
            if faulty < -1:
                raise MemoryError(TOO_LARGE)
            if faulty >= 0:
                raise DeviceError(f"{ListProgress(len(found))}: {self._fault(descriptor.program, faulty)}")
            found.append(descriptor)
            address += pitch(self.config)
        return found

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
                f"the program goes on after {EXECUTED_MOST} instructions: does the register of a loop never fall to 0?"
            )

    def _request(self, program: int, timeout: int | None) -> Request:
        return Request(
            self._parameters.ctypes.data, self._bases.ctypes.data, self._memory.ctypes.data, len(self._memory),
            self.latency, self.bytes_per_cycle or 0.0, self._tokens, program, self.trace, self._marks.ctypes.data,
            len(self._marks), LIMIT if timeout is None else timeout,
            EXECUTED_MOST if self.config.loops else LIMIT,
            None if self._sdram is None else self._sdram.ctypes.data, None, 0,
        )  # fmt: skip

    def _fault(self, program: int, index: int) -> str:
        """Why word `index` of the program cannot be executed."""
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
        self._marked = [int(cycle) for cycle in cycles[: self._library.weft_timing_marks(model, cycles)]]
        found = ctypes.POINTER(RawInterval)()
        count = self._library.weft_timing_intervals(model, ctypes.byref(found))
        raws = found[:count] if count else []
        self.intervals = [
            Interval(Queue(raw.unit), raw.instruction, _KINDS[raw.kind], raw.start, raw.end) for raw in raws
        ]
        samples = ctypes.POINTER(ctypes.c_uint32)()
        count = self._library.weft_timing_samples(model, ctypes.byref(samples))
        numbers = samples[:count] if count else []
        self.beats = list(zip(numbers[::2], numbers[1::2], strict=True))


Span = tuple[int, int]
"""First cycle, and the one after the last."""


class _Vectors:
    """Since when every vector of the scratchpad is in use (-1: it never was), and until when as far as is known."""

    def __init__(self, size: int) -> None:
        self.since = np.full(size, -1, np.int64)
        self.until = np.zeros(size, np.int64)
        self.changes: dict[int, int] = {}

    def read(self, cells: Cells, span: Span) -> None:
        self.until[cells] = np.maximum(self.until[cells], span[1])

    def write(self, cells: Cells, span: Span) -> None:
        """New contents: the old ones were in use until they were last read. No vector counts twice in a cycle."""
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
    """Scratchpad vectors in use, as (cycle, vectors) wherever that changes.

    A vector is in use from the start of the instruction that writes it to the end of the last one that reads it before
    it is written again; one that nobody reads, while it is written.

    Parameters
    ----------
    instructions : sequence of Instruction
        A program whose semaphores order its accesses, as the program checker wants them.
    spans : dict of int to Span
        By index, when instructions ran; others do not count.
    config : Config
        The accelerator it ran on.
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
