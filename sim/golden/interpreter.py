"""The golden interpreter: a device in numpy, and the specification of what all other devices compute.

It decodes the program from its own DRAM, so that a comparison also tests the compiler and the encoding. Formats:

- DRAM is an array of bytes. Base registers and offsets have 32 bits; their sum wraps modulo 2**32 and must lie in
  memory.
- The scratchpad holds vectors of N int8, the accumulator rows of N int32. `weft.sim.golden.memories` lists the other
  memories. All are zero at first and keep their contents between programs, like block RAM. Semaphores start at zero in
  every program.
- On-chip addresses have 16 bits: strides are added modulo 2**16, and the sum must be below the memory's size.
- Coordinates (y, x) are 16-bit two's complement; a row is in range if ``0 <= y < h`` and ``0 <= x < w``.

`weft.sim.golden.units` and, for the VEC queue, `weft.sim.golden.vector` compute the instructions: one function per
opcode. Instructions without a queue (loops, register changes) are executed first, which unrolls the program. An
instruction is atomic: all its reads come before its writes. Where a program leaves the order of two instructions open,
they run in program order if their semaphores allow it. A program that `weft.hdl.checker.program.check` accepts has the
same result in any order.

A list reads each descriptor after the previous program has ended and its record is written. An error ends the list.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from weft.hdl.errors import IsaError
from weft.hdl.isa import (
    PROGRAM_REGISTERS,
    SEMAPHORE_MAX,
    SEMAPHORES,
    WORD_BYTES,
    End,
    Instruction,
    LoopNext,
    LoopStart,
    Mode,
    Queue,
    ReadRegisters,
    SlotInstruction,
    decode,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import READ_BYTES, find_fault
from weft.hdl.isa.memmap import Counter, ListProgress
from weft.hdl.isa.program_lists import DESCRIPTOR_BYTES, RECORD_READ_BYTES, Descriptor, Record, pitch
from weft.sim.device import MAX_EXECUTED, Device, DeviceError, check_base, check_list, check_program
from weft.sim.golden import kernel, vector  # noqa: F401 -- they register functions in EXECUTE
from weft.sim.golden.memories import Memories
from weft.sim.golden.units import EXECUTE

_WORD = (1 << 32) - 1


@dataclass(frozen=True)
class Stretch:
    """Consecutive instructions `first` to ``stop - 1`` that run with unchanged registers."""

    first: int
    stop: int
    registers: tuple[int, ...]


class Walk:
    """Control flow of a program, from its first instruction to END.

    Parameters
    ----------
    config : Config
    control : mapping of int to Instruction
        The instructions without a queue by index, except END.
    end : int
        Index of the program's END.
    bases : sequence of int
        Base registers as set by the host.
    memory : callable
        ``memory(address, size)`` returns bytes of DRAM; it raises `DeviceError` if they do not lie in memory.

    Attributes
    ----------
    stretches : list of Stretch
        The instructions with a queue, in the order of execution.
    reads : list of (int, int)
        Start and stop of the DRAM ranges that READs read; the program must not write them.

    Raises
    ------
    DeviceError
        Naming the instruction: the configuration does not support it, it breaks a rule, or it jumps out of the program.
        Also after `MAX_EXECUTED` instructions, for example if a loop's register never falls to 0.
    """

    def __init__(
        self,
        config: Config,
        control: Mapping[int, Instruction],
        end: int,
        bases: Sequence[int],
        memory: Callable[[int, int], bytes],
    ) -> None:
        self._config, self._control, self._end, self._memory = config, control, end, memory
        self._registers = [*bases, *[0] * (PROGRAM_REGISTERS - len(bases))]
        self.stretches: list[Stretch] = []
        self.reads: list[tuple[int, int]] = []
        self._follow()

    def _follow(self) -> None:
        order, at, executed = sorted(self._control), 0, 0
        registers = tuple(self._registers)
        while True:
            # Instructions up to the next control instruction (or END) run with the current registers.
            place = bisect.bisect_left(order, at)
            stop = order[place] if place < len(order) else self._end
            if at < stop:
                self.stretches.append(Stretch(at, stop, registers))
            executed += stop - at + 1
            if stop == self._end:
                return
            if executed > MAX_EXECUTED:
                raise DeviceError(
                    f"the program goes on after {MAX_EXECUTED} instructions, the last of them instruction {stop} "
                    f"({self._control[stop].OPCODE.name}): does the register of a loop never fall to 0?"
                )
            try:
                at = self._carry_out(stop, self._control[stop])
            except DeviceError as error:
                raise DeviceError(
                    f"instruction {stop} ({self._control[stop].OPCODE.name}): {error}"
                ) from None
            registers = tuple(self._registers)

    def _carry_out(self, at: int, instruction: Instruction) -> int:
        """Execute an instruction and return the index of the next one."""
        if reason := find_fault(instruction, self._config):
            raise DeviceError(reason)
        if isinstance(instruction, SlotInstruction):
            self._change(instruction)
        if isinstance(instruction, ReadRegisters):
            self._read(instruction)
        if isinstance(instruction, LoopNext):
            return self._back(at - instruction.back)
        # A loop whose register is not positive (as int32) is skipped.
        if isinstance(instruction, LoopStart) and not 0 < self._registers[instruction.register] <= _WORD >> 1:
            target = at + 1 + instruction.skip
            if target > self._end:
                raise DeviceError(f"it passes over {instruction.skip} instructions, and END is among them")
            return target
        return at + 1

    def _back(self, target: int) -> int:
        if not isinstance(self._control.get(target), LoopStart):
            raise DeviceError(f"it goes back to instruction {target}, which is no LOOP")
        return target

    def _change(self, instruction: SlotInstruction) -> None:
        for number, mode, value in instruction.slots:
            before = 0 if mode == Mode.SET else self._registers[number]
            added = self._registers[value % PROGRAM_REGISTERS] if mode == Mode.ADD_REGISTER else value
            self._registers[number] = (before + added) & _WORD

    def _read(self, instruction: ReadRegisters) -> None:
        check_read(instruction)
        start = (self._registers[instruction.base] + instruction.offset) & _WORD
        if start % READ_BYTES:
            raise DeviceError(f"DRAM address {start:#x} is no multiple of {READ_BYTES} bytes")
        words = np.frombuffer(self._memory(start, 4 * instruction.count), "<u4").tolist()
        self._registers[instruction.first : instruction.first + len(words)] = words
        self.reads.append((start, start + 4 * len(words)))


def check_read(instruction: ReadRegisters) -> None:
    """Raise `DeviceError` if a READ exceeds its maximum of words, or the registers."""
    last = instruction.first + instruction.count
    if not 1 <= instruction.count <= READ_BYTES // 4:
        raise DeviceError(f"'count' is {instruction.count}, outside 1 to {READ_BYTES // 4}")
    if last > PROGRAM_REGISTERS:
        raise DeviceError(f"it reads registers up to {last - 1}; there are {PROGRAM_REGISTERS}")


def executed_instructions(stretches: Sequence[Stretch]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the index of each instruction that enters its queue, with the registers at that time, in order."""
    for stretch in stretches:
        for index in range(stretch.first, stretch.stop):
            yield index, stretch.registers


_decode = lru_cache(maxsize=1 << 16)(decode)


class GoldenDevice(Device):
    """A `weft.sim.device.Device` that computes with numpy and has no notion of time.

    Parameters
    ----------
    config : Config
        The accelerator.
    memory_bytes : int
        Size of the DRAM in bytes, zero at first.

    Attributes
    ----------
    memories : Memories
        All state on the chip and in DRAM. Its scratchpad and accumulator are attributes here, too.
    scratchpad : numpy.ndarray
        int8 of shape (``config.scratchpad_size``, ``config.n``).
    accumulator : numpy.ndarray
        int32 of shape (``config.accumulator_size``, ``config.n``).
    instructions : int
        Instructions that units executed for the last program.
    """

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.config = config
        self.memory_bytes = memory_bytes
        self.instructions = 0
        self.memories = Memories(config, memory_bytes)
        # Address of what `wait` runs: a program or a list
        self._program: int | None = None
        self._list: int | None = None
        self._listed = ListProgress(0)

    @property
    def scratchpad(self) -> np.ndarray:
        return self.memories.scratchpad

    @property
    def accumulator(self) -> np.ndarray:
        return self.memories.accumulator

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it does not lie inside memory."""
        data = np.frombuffer(payload, np.uint8)
        self.memories.dram_range(address, data.size)[:] = data

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes of DRAM. Raises `DeviceError` if they do not lie inside memory."""
        return self.memories.dram_range(address, size).tobytes()

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a 32-bit DRAM byte address."""
        check_base(index, address)
        self.memories.bases[index] = address

    def start(self, program: int) -> None:
        """Start the program at DRAM byte address `program`, a multiple of the bus width; `wait` runs it."""
        check_program(program, self.config)
        self._program, self._list = program, None

    def start_list(self, address: int) -> None:
        """Start the list of programs at DRAM byte address `address`; `wait` runs it.

        Raises `DeviceError` if no list can start there.
        """
        check_list(address, self.config, self.memory_bytes)
        self._list, self._program, self._listed = address, None, ListProgress(0, at_descriptor=True)

    def list_progress(self) -> ListProgress:
        """Return the progress of the list that was started last."""
        return self._listed

    def wait(self, timeout: int | None = None) -> None:
        """Execute the program or list that was started, if any. `timeout` is ignored.

        Raises
        ------
        DeviceError
            Naming the instruction: an invalid word, an address outside a memory, a broken rule of the instruction set,
            or a semaphore that no instruction will signal.
        """
        program, address = self._program, self._list
        self._program = self._list = None
        if program is not None:
            self._start(program)
        elif address is not None:
            self._walk_list(address)

    def counters(self) -> dict[Counter, int]:
        """Return no counters, because all of them count cycles or bus beats."""
        return {}

    def _walk_list(self, address: int) -> None:
        while True:
            try:
                last = self._run_listed(address)
            except DeviceError as error:
                raise DeviceError(f"{self._listed}: {error}") from None
            self._listed = ListProgress(self._listed.done + 1, at_descriptor=not last)
            if last:
                return
            address += pitch(self.config)

    def _run_listed(self, address: int) -> bool:
        """Run the program of the descriptor at `address`. Return True if it is the last of the list."""
        try:
            descriptor = Descriptor.decode(self.read(address, DESCRIPTOR_BYTES))
        except IsaError as error:
            raise DeviceError(str(error)) from None
        for index, value in enumerate(descriptor.bases):
            self.set_base(index, value)
        check_program(descriptor.program, self.config)
        self._listed = ListProgress(self._listed.done)
        self._start(descriptor.program)
        # The record follows the descriptor's part that is read.
        self.write(address + RECORD_READ_BYTES, Record(done=True).encode())
        return descriptor.last

    def _start(self, program: int) -> None:
        instructions = self._fetch(program)
        control = {index: item for index, item in enumerate(instructions) if item.QUEUE is None}
        walk = self._walk(control, len(instructions))
        with self._following(walk):
            self._run(instructions, list(executed_instructions(walk.stretches)))

    def _walk(self, control: Mapping[int, Instruction], end: int) -> Walk:
        return Walk(self.config, control, end, self.memories.bases, self.read)

    @contextmanager
    def _following(self, walk: Walk) -> Iterator[None]:
        # `walk` has read registers before any instruction runs, so the program must not write that memory.
        self.memories.read_only = walk.reads
        try:
            yield
        finally:
            self.memories.read_only, self.memories.registers = (), None

    def _fetch(self, address: int) -> list[Instruction]:
        """Return the decoded instructions from `address` up to END, which is left out."""
        instructions: list[Instruction] = []
        while True:
            try:
                word = self.read(address, WORD_BYTES)
                instruction = _decode(word)
            except (DeviceError, IsaError) as error:
                raise DeviceError(f"instruction {len(instructions)}: {error}") from None
            if isinstance(instruction, End):
                return instructions
            instructions.append(instruction)
            address += WORD_BYTES

    def _run(self, instructions: list[Instruction], order: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        """Execute instructions: of the four queue heads, always the earliest in `order` that need not wait."""
        queues: dict[Queue, list[int]] = {queue: [] for queue in Queue}
        for place, (index, _) in enumerate(order):
            queue = instructions[index].QUEUE
            assert queue is not None
            queues[queue].append(place)
        for places in queues.values():
            places.reverse()  # so that pop() takes the head
        counts = [0] * SEMAPHORES
        self.instructions = 0
        while heads := sorted(queue[-1] for queue in queues.values() if queue):
            for place in heads:
                if not _missing(instructions[order[place][0]], counts):
                    break
            else:
                place = heads[0]  # all wait: report the earliest as deadlocked
            index, self.memories.registers = order[place]
            instruction = instructions[index]
            assert instruction.QUEUE is not None
            queues[instruction.QUEUE].pop()
            self._carry_out_one(index, instruction, counts)
            self.instructions += 1

    def _carry_out_one(self, index: int, instruction: Instruction, counts: MutableSequence[int]) -> None:
        # The caller prefers instructions that need not wait, so a wait here never ends.
        if missing := _missing(instruction, counts):
            raise DeviceError(
                f"deadlock: instruction {index} ({instruction.OPCODE.name}) waits for semaphore"
                f" {missing[0]}, which no instruction that can run will signal"
            )
        for semaphore in _mask(instruction.wait):
            counts[semaphore] -= 1
        try:
            if reason := instruction.unsupported(self.config):
                raise DeviceError(reason)
            self._execute(index, instruction)
        except DeviceError as error:
            raise DeviceError(f"instruction {index} ({instruction.OPCODE.name}): {error}") from None
        for semaphore in _mask(instruction.signal):
            counts[semaphore] += 1
            if counts[semaphore] > SEMAPHORE_MAX:
                raise DeviceError(f"instruction {index}: semaphore {semaphore} passes {SEMAPHORE_MAX}")

    def _execute(self, index: int, instruction: Instruction) -> None:
        EXECUTE[type(instruction)](self.memories, instruction)


def _mask(mask: int) -> list[int]:
    """Return the semaphores whose bits are set in `mask`."""
    return [semaphore for semaphore in range(SEMAPHORES) if mask >> semaphore & 1] if mask else []


def _missing(instruction: Instruction, counts: Sequence[int]) -> list[int]:
    """Return the semaphores that `instruction` waits for and whose count is 0."""
    return [semaphore for semaphore in _mask(instruction.wait) if not counts[semaphore]]
