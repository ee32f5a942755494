"""The RTL device with a trace of its units, in the form of the cycle model's."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.hdl.isa import WORD_BYTES, End, Instruction, Load, Queue, decode
from weft.hdl.isa.config import Config
from weft.sim.rtl.device import RtlDevice
from weft.sim.rtl.library import Observed
from weft.sim.timing.device import SAMPLE, Interval

OBSERVED: Observed = {
    "weft.counters": ("enable", "write"),
    **{
        f"weft.{queue.name.lower()}_queue": ("waiting", "instruction__valid", "instruction__ready")
        for queue in Queue
    },
    "weft.scratchpad": ("write__1__valid", "write__1__ready"),
    "weft.store.done": ("r_en",),
    "weft.vec.writer": ("busy",),
}
"""Ports of components only, because other signals are renamed in Verilog."""
# Numbers of bits in the words that rtl_observe.h records; the first three are one bit per queue.
_WAITING, _OFFERED, _READY, _LOADED, _ROW, _CONFIRMED, _READ, _WRITTEN, _RESULTS = (
    0,
    4,
    8,
    12,
    13,
    14,
    15,
    16,
    17,
)


class TracedRtl(RtlDevice):
    """A `weft.sim.rtl.device.RtlDevice` that records `intervals` and `beats` like `weft.sim.timing.TimingDevice`.

    Cycle 0 is the cycle in which the program starts. Both devices record equal cycles for a program without softmax, if
    their memories are alike.

    Parameters
    ----------
    config, memory_bytes, options
        See `RtlDevice`.

    Attributes
    ----------
    intervals : list of Interval
    beats : list of (int, int)
    """

    def __init__(self, config: Config, memory_bytes: int, **options: Any) -> None:
        super().__init__(config, memory_bytes, observed=OBSERVED, **options)
        self.intervals: list[Interval] = []
        self.beats: list[tuple[int, int]] = []
        self._program = 0
        self._marking_cycle = 0

    def start(self, program: int) -> None:
        super().start(program)
        self._program = program

    def mark_writes(self, totals: Sequence[int]) -> None:
        super().mark_writes(totals)
        self._marking_cycle = self.cycles

    def marks(self) -> list[int]:
        """Return the recorded cycles like `RtlDevice.marks`, but counted from the start of the program."""
        return [cycle + self._marking_cycle - self._begun() for cycle in super().marks()]

    def wait(self, timeout: int | None = None) -> None:
        """Wait like `RtlDevice.wait`, then set `intervals` and `beats`."""
        super().wait(timeout)
        observation = _Observation(self._changes())
        program = list(self._instructions())
        self.intervals = [
            interval for queue in Queue for interval in _intervals(observation, queue, program, self.config)
        ]
        self.beats = observation.beats()

    def _changes(self) -> np.ndarray:
        changes = ctypes.POINTER(ctypes.c_uint64)()
        count = self._library.weft_observed(self._handle, ctypes.byref(changes))
        flat = np.ctypeslib.as_array(changes, (2 * count,)) if count else np.zeros(0, np.uint64)
        return flat.reshape(-1, 2).copy()

    def _instructions(self) -> Iterator[Instruction]:
        at = self._program
        while not isinstance(instruction := decode(self.read(at, WORD_BYTES)), End):
            yield instruction
            at += WORD_BYTES


class _Observation:
    """Observed signals as arrays with one entry per cycle, from cycle 1 on."""

    def __init__(self, changes: np.ndarray) -> None:
        self._words = changes[:-1, 1]
        # A change is (cycle, word of all signals); the last one only marks the end.
        cycles = changes[:, 0].astype(np.int64)
        self._lengths = cycles[1:] - cycles[:-1]

    def bit(self, number: int) -> np.ndarray:
        """Return signal `number` in every cycle: bool."""
        return np.repeat((self._words >> np.uint64(number) & np.uint64(1)).astype(bool), self._lengths)

    def cycles(self, number: int) -> np.ndarray:
        """Return the cycles in which signal `number` is 1."""
        return np.flatnonzero(self.bit(number)) + 1

    def beats(self) -> list[tuple[int, int]]:
        """Return (beats read, beats written) of every `SAMPLE` cycles, up to the last sample with a beat."""
        directions = [self.cycles(bit) // SAMPLE for bit in (_READ, _WRITTEN)]
        samples = max((int(numbers[-1]) + 1 for numbers in directions if numbers.size), default=0)
        read, written = (np.bincount(numbers, minlength=samples).tolist() for numbers in directions)
        return list(zip(read, written, strict=True))


def _intervals(
    observation: _Observation, queue: Queue, program: Sequence[Instruction], config: Config
) -> Iterator[Interval]:
    """Yield the intervals of one unit, in the order of its instructions."""
    indices = [index for index, instruction in enumerate(program) if queue is instruction.QUEUE]
    offered = observation.bit(_OFFERED + queue)
    accepted = np.flatnonzero(offered & observation.bit(_READY + queue)) + 1
    # An instruction is at the head of its queue while it waits, while it is offered, and in the cycle between.
    head = np.flatnonzero(offered | observation.bit(_WAITING + queue) | np.append(offered[1:], False)) + 1
    first = head[np.searchsorted(head, np.append(0, accepted[:-1] + 1))] if accepted.size else accepted
    # The interval of an instruction begins in the cycle after its acceptance.
    ends = _ends(observation, queue, [program[index] for index in indices], config)
    for index, since, at, end in zip(indices, first.tolist(), accepted.tolist(), ends, strict=True):
        if at > since + 1:
            yield Interval(queue, index, "waits", since, at + 1)
        yield Interval(queue, index, "runs", at + 1, end)


def _ends(
    observation: _Observation, queue: Queue, instructions: Sequence[Instruction], config: Config
) -> list[int]:
    """Return the cycle after each instruction's signal, or after the last step of an instruction without a signal.

    Units do not report their current instruction. So this counts the steps of instructions, whose numbers are known.
    """
    silent = np.array([not instruction.signal for instruction in instructions], np.int64)
    if queue is Queue.VEC:
        # The writer is busy between the last results and the signal.
        busy = observation.bit(_RESULTS)
        return (np.flatnonzero(busy[1:] & ~busy[:-1]) + 4).tolist()
    # The signal follows 1 cycle after these events, and an interval ends in the cycle after it.
    if queue is Queue.STORE:
        return (observation.cycles(_CONFIRMED) + 2 - silent).tolist()
    counts = np.cumsum([_steps(instruction, config) for instruction in instructions], dtype=np.int64)
    if queue is Queue.LOAD:
        return (observation.cycles(_LOADED)[counts - 1] + 2 - silent).tolist()
    return (observation.cycles(_ROW)[counts - 1] + 2).tolist()


def _steps(instruction: Instruction, config: Config) -> int:
    """Return the number of vectors that a LOAD writes, or of rows of A that an MM reads."""
    operand = instruction.operand("dst" if isinstance(instruction, Load) else "a")
    return math.prod(count for count, _ in operand.nest(instruction, config))
