"""What a program is planned for: a configuration, and the memory behind its bus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.ir.graph import Window
from weft.hdl.isa import Opcode, Place, places
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import DIVISION_LATENCY, VEC_EARLY_OVERHEAD, vec_overhead

RUN = 2
"""Of a run of bytes on the bus, beside its beats."""
ATTENTION_RUN = 1
"""The same, of rows of keys and values that are no whole beats."""
LOAD = 8
"""From a LOAD's last vector to the first one of the next."""
ATTENTION_VEC = 60
"""Of an instruction of the vector unit in attention: its start, and the wait for the array, as they take turns."""
DIVIDE = 2 * DIVISION_LATENCY
"""The least that a row of Normalise is reckoned with. The divider takes half of that by itself."""
HANDOVER = 16
"""From one unit's signal to another's start, and through the accumulator."""
SWAP = 2
"""Of a tile of weights of attention, on average, that are lost to other units in a bank."""
SLOT_LATENCY = 50.0
"""From the end of a use of a slot to its next content."""
DRAIN = 60.0
"""From a block's last product to the next block's first, where they share accumulator rows."""
ENDS = 100
"""At the start of a convolution, before anything overlaps, and again at its end."""
ALONE = 300
"""Of a pooling, addition or requantisation by itself: both of its ends."""


@dataclass(frozen=True)
class SequentialCosts:
    """Cycles of so many instructions together, fetching included. All counts are numbers or arrays.

    Parameters
    ----------
    n : int
        Columns of the array, and bytes of a vector.
    mantissa_bits : int
        Of requantisation, two in a cycle.
    """

    n: int
    mantissa_bits: int

    def mm(self, instructions: Any, steps: Any, lines: Any, columns: Any) -> Any:
        """`steps` of the contraction of tiles, each with weights of its own, and over all of them `lines`, that is
        values of ``oy``, of `columns` rows each. The next line is got ready while rows enter."""
        return instructions * 240 + steps * (32 + 2 * self.n) + lines * np.maximum(21, columns + 13)

    def load(self, instructions: Any, rows: Any, pixels: Any, vectors: Any) -> Any:
        """`rows`, `pixels` and `vectors` over all of them. Pixels of a vector each take no longer than that."""
        beside = np.where(np.asarray(vectors) > pixels, 22, 3)
        return instructions * 165 + rows * 42 + pixels * beside + vectors * (7 + self.n)

    def store(self, instructions: Any, rows: Any, pixels: Any, vectors: Any) -> Any:
        return instructions * 100 + rows * 15 + pixels * 21 + vectors * (7 + self.n)

    def vec(self, instructions: Any, lines: Any, vectors: Any) -> Any:
        """`lines`, that is values of ``oy``, and `vectors` that are read over all of them: one for an output, or all of
        a window. Parameters are taken apart for every instruction."""
        value = 14 + self.mantissa_bits // 2
        return instructions * (300 + 34 * self.n) + lines * 30 + vectors * (16 + value * self.n)


@dataclass(frozen=True)
class Target:
    """A configuration, and the memory that programs are planned for.

    Parameters
    ----------
    config : Config
    bandwidth : float
        Bytes that the memory moves in a cycle; as many as the bus is wide if None.
    sequential : bool
        Whether the core is the sequential one, on which nothing overlaps.
    """

    config: Config
    bandwidth: float | None = None
    sequential: bool = False

    @cached_property
    def in_turn(self) -> SequentialCosts | None:
        """What instructions take where they are carried out one after the other; None where they overlap."""
        return SequentialCosts(self.config.n, self.config.mantissa_bits) if self.sequential else None

    @cached_property
    def beat(self) -> float:
        """Cycles from one beat of the bus to the next: 1, or more if the memory is slower than the bus."""
        return max(1.0, self.config.bus_bytes / self.bandwidth) if self.bandwidth else 1.0

    def vec_start(self, *, early: bool = False) -> float:
        """From a VEC to the next one, beside its elements, and one for its semaphores; `early`: this reads sums, and
        adds nothing to them."""
        overlaps = early and not self.sequential
        return (VEC_EARLY_OVERHEAD if overlaps else vec_overhead(self.config)) + 1.0

    def moved(self, size: Any) -> Any:
        """Cycles of the bus for `size` bytes, by their number alone."""
        return size * self.beat / self.config.bus_bytes

    def run(self, size: int, beside: int = RUN) -> float:
        """Cycles of the bus for a run of `size` bytes, an estimate: whole beats, and what it takes `beside` them, which
        a slow memory hides."""
        beats = -(-size // self.config.bus_bytes)
        return max(beats * self.beat, beats + beside)

    def runs(self, size: np.ndarray) -> np.ndarray:
        """The same for an array of sizes."""
        beats = np.ceil(size / self.config.bus_bytes)
        return np.maximum(beats * self.beat, beats + RUN)

    def span(self, size: Any) -> Any:
        """The same where runs begin and end anywhere: parts of beats count as such."""
        return np.maximum(self.moved(size), size / self.config.bus_bytes + RUN)


def _high(found: Iterable[Place]) -> int:
    return min(place.high for place in found)


def _named(name: str, *opcodes: Opcode) -> int:
    return _high(places(opcode)[name] for opcode in opcodes)


COUNT_MAX = _high(
    places(opcode)[name]
    for opcode, names in {
        Opcode.LOAD: ("rows", "line"),
        Opcode.STORE: ("rows",),
        Opcode.MM: ("nt", "ky", "kx", "kc", "oy", "ox"),
        Opcode.VEC: ("ob", "oy", "ox", "ry", "rx"),
    }.items()
    for name in names
)
"""The most that loops of MM and VEC count, and rows of LOAD and STORE."""
PIXELS_MAX = _named("pixels", Opcode.LOAD, Opcode.STORE)
"""Pixels of a row of LOAD and STORE."""
STRIDE_MAX = _high(
    place
    for opcode in (Opcode.LOAD, Opcode.MM, Opcode.VEC, Opcode.STORE)
    for name, place in places(opcode).items()
    if name.startswith(("a_", "c_", "src_", "dst_"))
)
"""Largest stride of an address on chip."""
STEP_MAX = _high(
    place
    for opcode in (Opcode.MM, Opcode.VEC)
    for name, place in places(opcode).items()
    if name.startswith(("y_", "x_"))
)
"""Largest step of a coordinate: strides and dilations of windows."""
LENGTH_MAX = _named("length", Opcode.LOAD, Opcode.STORE)
"""Bytes of a pixel that LOAD and STORE take."""
PITCH_MAX = _named("pitch", Opcode.LOAD, Opcode.STORE)
"""Bytes from one pixel to the next that LOAD and STORE take."""
BEFORE_MAX = _named("before", Opcode.LOAD)
"""Fill bytes ahead of a row of LOAD."""
RUN_MAX = _named("run", Opcode.LOAD)
"""Bytes of a row that LOAD takes."""


class Coordinates(NamedTuple):
    """The coordinate of the first element along one axis, its bound, and its steps per output and per element."""

    first: int
    bound: int
    output: int
    element: int


_INSIDE = Coordinates(0, 1, 0, 0)
"""Coordinates of a single element: nothing is outside."""


def is_far(window: Window, axis: int) -> bool:
    """Whether a stride or a dilation along an axis is above `STEP_MAX`."""
    return max(window.stride[axis], window.dilation[axis]) > STEP_MAX


def has_coordinates(window: Window, axis: int) -> bool:
    """Whether coordinates along an axis fit their fields, or need not be compared as there is no padding."""
    return not is_far(window, axis) or max(window.pad[axis], window.pad[axis + 2]) <= 0


def coordinates(window: Window, axis: int, first: int, bound: int) -> Coordinates:
    """Coordinates of the windows along an axis, from `first` on. Constant if the steps do not fit their fields."""
    if is_far(window, axis):
        return _INSIDE
    return Coordinates(first, bound, window.stride[axis], window.dilation[axis])
