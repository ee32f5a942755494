"""The RTL device that also tells what its units did when, as the cycle model does."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.hdl.isa import WORD_BYTES, End, Instruction, Load, Queue, decode
from weft.hdl.isa.config import Config
from weft.sim.rtl.device import Observed, RtlDevice
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
"""Ports of components, as others change their names in Verilog."""
# Bits of what rtl_observe.h notes; of the first three there is one for each queue.
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
    """A `weft.sim.rtl.device.RtlDevice` that keeps `intervals` and `beats`, as `weft.sim.timing.TimingDevice` does.

    Cycles count as there: 0 is the one in which the program starts. Without softmax, and with the same memory, the two
    agree in all of them.

    Parameters
    ----------
    config, memory_bytes, options
        As of `RtlDevice`.

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
        self._marked = 0

    def start(self, program: int) -> None:
        super().start(program)
        self._program = program

    def mark_writes(self, totals: Sequence[int]) -> None:
        super().mark_writes(totals)
        self._marked = self.cycles

    def marks(self) -> list[int]:
        """As of `RtlDevice`, but counted from the start of the program."""
        return [cycle + self._marked - self._begun() for cycle in super().marks()]

    def wait(self, timeout: int | None = None) -> None:
        """As of `RtlDevice`; `intervals` and `beats` are then those of the program that is done."""
        super().wait(timeout)
        watched = _Watched(self._changes())
        program = list(self._instructions())
        self.intervals = [
            interval for queue in Queue for interval in _intervals(watched, queue, program, self.config)
        ]
        self.beats = watched.beats()

    def _changes(self) -> np.ndarray:
        found = ctypes.POINTER(ctypes.c_uint64)()
        count = self._library.weft_observed(self._handle, ctypes.byref(found))
        flat = np.ctypeslib.as_array(found, (2 * count,)) if count else np.zeros(0, np.uint64)
        return flat.reshape(-1, 2).copy()

    def _instructions(self) -> Iterator[Instruction]:
        at = self._program
        while not isinstance(instruction := decode(self.read(at, WORD_BYTES)), End):
            yield instruction
            at += WORD_BYTES


class _Watched:
    """Observed signals, bit by bit: an entry of an array for every cycle, that of cycle 1 first."""

    def __init__(self, changes: np.ndarray) -> None:
        self._words = changes[:-1, 1]
        cycles = changes[:, 0].astype(np.int64)
        self._lengths = cycles[1:] - cycles[:-1]

    def bit(self, number: int) -> np.ndarray:
        """Whether bit `number` is 1."""
        return np.repeat((self._words >> np.uint64(number) & np.uint64(1)).astype(bool), self._lengths)

    def cycles(self, number: int) -> np.ndarray:
        """The cycles in which it is."""
        return np.flatnonzero(self.bit(number)) + 1

    def beats(self) -> list[tuple[int, int]]:
        """Read and written in every `SAMPLE` cycles, up to the last that has any."""
        ways = [self.cycles(bit) // SAMPLE for bit in (_READ, _WRITTEN)]
        samples = max((int(way[-1]) + 1 for way in ways if way.size), default=0)
        read, written = (np.bincount(way, minlength=samples).tolist() for way in ways)
        return list(zip(read, written, strict=True))


def _intervals(
    watched: _Watched, queue: Queue, program: Sequence[Instruction], config: Config
) -> Iterator[Interval]:
    """The intervals of one unit, in the order of its instructions."""
    own = [index for index, instruction in enumerate(program) if queue is instruction.QUEUE]
    offered = watched.bit(_OFFERED + queue)
    accepted = np.flatnonzero(offered & watched.bit(_READY + queue)) + 1
    # At the head of the queue: it waits, or is offered, or has just got what it waited for and will be.
    head = np.flatnonzero(offered | watched.bit(_WAITING + queue) | np.append(offered[1:], False)) + 1
    first = head[np.searchsorted(head, np.append(0, accepted[:-1] + 1))] if accepted.size else accepted
    ends = _ends(watched, queue, [program[index] for index in own], config)
    for index, since, at, end in zip(own, first.tolist(), accepted.tolist(), ends, strict=True):
        if at > since + 1:
            yield Interval(queue, index, "waits", since, at + 1)
        yield Interval(queue, index, "runs", at + 1, end)


def _ends(watched: _Watched, queue: Queue, own: Sequence[Instruction], config: Config) -> list[int]:
    """The cycle after that of each instruction's signal, or in which the signal would be if there is none to give.

    No unit says which instruction it is at, so this counts what an instruction does, which is known.
    """
    silent = np.array([not instruction.signal for instruction in own], np.int64)
    if queue is Queue.VEC:
        # The writer is busy between the last results and the signal.
        busy = watched.bit(_RESULTS)
        return (np.flatnonzero(busy[1:] & ~busy[:-1]) + 4).tolist()
    if queue is Queue.STORE:
        return (watched.cycles(_CONFIRMED) + 2 - silent).tolist()
    counts = np.cumsum([_steps(instruction, config) for instruction in own], dtype=np.int64)
    if queue is Queue.LOAD:
        return (watched.cycles(_LOADED)[counts - 1] + 2 - silent).tolist()
    return (watched.cycles(_ROW)[counts - 1] + 2).tolist()


def _steps(instruction: Instruction, config: Config) -> int:
    """Vectors that a LOAD writes, rows of A that an MM reads."""
    operand = instruction.operand("dst" if isinstance(instruction, Load) else "a")
    return math.prod(count for count, _ in operand.nest(instruction, config))
