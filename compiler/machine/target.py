"""Planning target: a configuration, and the memory behind its bus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.ir.windows import Window
from weft.hdl.isa import Opcode, Place, places
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import DIVISION_LATENCY, VEC_EARLY_OVERHEAD, vec_overhead

RUN_CYCLES = 2
"""Cycles of a run of bytes on the bus, in addition to its beats."""
ATTENTION_RUN_CYCLES = 1
"""Cycles of a run of a key's or value's row that is not a whole number of beats, in addition to its beats."""
LOAD_GAP_CYCLES = 8
"""Cycles from a LOAD's last vector to the next LOAD's first."""
ATTENTION_VEC_CYCLES = 60
"""Cycles of a vector instruction in attention: its start, and the wait for the array, because the two alternate."""
NORMALISE_ROW_CYCLES = 2 * DIVISION_LATENCY
"""Least cycles of a row of Normalise: an allowance of twice the divider's latency."""
HANDOVER_CYCLES = 16
"""Cycles from one unit's signal to another unit's start, including the accumulator."""
WEIGHT_SWAP_CYCLES = 2
"""Average cycles per tile of attention weights that bank conflicts with other units cost."""
SLOT_REFILL_CYCLES = 50.0
"""Cycles from the last use of a slot to its next content."""
BLOCK_SWITCH_CYCLES = 60.0
"""Cycles from a block's last product to the next block's first, if they share accumulator rows."""
RAMP_CYCLES = 100
"""Cycles at the start of a convolution before anything overlaps, and again at its end."""
STANDALONE_CYCLES = 300
"""Cycles at both ends of a pooling, addition or requantisation that is an operator by itself."""


@dataclass(frozen=True)
class SequentialCosts:
    """Cycle costs of instructions on the sequential core, fetch included. All counts are totals, numbers or arrays.

    Parameters
    ----------
    n : int
        Columns of the array, and bytes of a vector.
    mantissa_bits : int
        Mantissa bits of requantisation, two of which take a cycle.
    """

    n: int
    mantissa_bits: int

    def mm(self, instructions: Any, steps: Any, lines: Any, columns: Any) -> Any:
        """Return the cycles of MMs.

        `steps` are steps of tiles' contractions, each with weights of its own. `lines` are values of ``oy`` over all
        steps, of `columns` rows each; the core prepares the next line while rows enter.
        """
        return instructions * 240 + steps * (32 + 2 * self.n) + lines * np.maximum(21, columns + 13)

    def load(self, instructions: Any, rows: Any, pixels: Any, vectors: Any) -> Any:
        """Return the cycles of LOADs. Pixels of one vector each hide most of their own overhead."""
        beside = np.where(np.asarray(vectors) > pixels, 22, 3)
        return instructions * 165 + rows * 42 + pixels * beside + vectors * (7 + self.n)

    def store(self, instructions: Any, rows: Any, pixels: Any, vectors: Any) -> Any:
        return instructions * 100 + rows * 15 + pixels * 21 + vectors * (7 + self.n)

    def vec(self, instructions: Any, lines: Any, vectors: Any) -> Any:
        """Return the cycles of VECs, each of which unpacks its parameters.

        `lines` are values of ``oy``. `vectors` are vectors read: one per output, or all of a window.
        """
        value = 14 + self.mantissa_bits // 2
        return instructions * (300 + 34 * self.n) + lines * 30 + vectors * (16 + value * self.n)


@dataclass(frozen=True)
class Target:
    """A configuration, and the memory that programs are planned for.

    Parameters
    ----------
    config : Config
    bandwidth : float or None
        Bytes that the memory moves per cycle; None for the width of the bus.
    sequential : bool
        Whether the core is the sequential one, on which no instructions overlap.
    """

    config: Config
    bandwidth: float | None = None
    sequential: bool = False

    @cached_property
    def sequential_costs(self) -> SequentialCosts | None:
        """Instruction costs of the sequential core; None for the pipelined core."""
        return SequentialCosts(self.config.n, self.config.mantissa_bits) if self.sequential else None

    @cached_property
    def beat(self) -> float:
        """Cycles per beat of the bus: 1, or more if the memory is slower than the bus."""
        return max(1.0, self.config.bus_bytes / self.bandwidth) if self.bandwidth else 1.0

    def vec_start(self, *, early: bool = False) -> float:
        """Return the cycles of a VEC beyond its elements, semaphores included.

        `early` is for a VEC that reads sums and adds no operand to them.
        """
        # The parameter block is read while the previous VEC's results leave.
        overlaps = early and not self.sequential
        return (VEC_EARLY_OVERHEAD if overlaps else vec_overhead(self.config)) + 1.0

    def transfer_cycles(self, size: Any) -> Any:
        """Return the bus cycles of `size` bytes at full bandwidth, without overheads."""
        return size * self.beat / self.config.bus_bytes

    def run(self, size: int, overhead: int = RUN_CYCLES) -> float:
        """Return the estimated bus cycles of a run of `size` bytes: whole beats and `overhead`, which a slow memory
        hides."""
        beats = -(-size // self.config.bus_bytes)
        return max(beats * self.beat, beats + overhead)

    def runs(self, size: np.ndarray) -> np.ndarray:
        """Return the estimated bus cycles of a run, for an array of sizes."""
        beats = np.ceil(size / self.config.bus_bytes)
        return np.maximum(beats * self.beat, beats + RUN_CYCLES)

    def span(self, size: Any) -> Any:
        """Return the estimated bus cycles of a run that may start and end within a beat."""
        return np.maximum(self.transfer_cycles(size), size / self.config.bus_bytes + RUN_CYCLES)


def _common_limit(fields: Iterable[Place]) -> int:
    return min(place.high for place in fields)


def _field_limit(name: str, *opcodes: Opcode) -> int:
    return _common_limit(places(opcode)[name] for opcode in opcodes)


COUNT_MAX = _common_limit(
    places(opcode)[name]
    for opcode, names in {
        Opcode.LOAD: ("rows", "line"),
        Opcode.STORE: ("rows",),
        Opcode.MM: ("nt", "ky", "kx", "kc", "oy", "ox"),
        Opcode.VEC: ("ob", "oy", "ox", "ry", "rx"),
    }.items()
    for name in names
)
"""Largest count of the loops of MM and VEC, and of the rows of LOAD and STORE."""
PIXELS_MAX = _field_limit("pixels", Opcode.LOAD, Opcode.STORE)
"""Most pixels of a row of LOAD and STORE."""
STRIDE_MAX = _common_limit(
    place
    for opcode in (Opcode.LOAD, Opcode.MM, Opcode.VEC, Opcode.STORE)
    for name, place in places(opcode).items()
    if name.startswith(("a_", "c_", "src_", "dst_"))
)
"""Largest stride of an address on chip."""
STEP_MAX = _common_limit(
    place
    for opcode in (Opcode.MM, Opcode.VEC)
    for name, place in places(opcode).items()
    if name.startswith(("y_", "x_"))
)
"""Largest step of a coordinate: strides and dilations of windows."""
LENGTH_MAX = _field_limit("length", Opcode.LOAD, Opcode.STORE)
"""Most bytes of a pixel of LOAD and STORE."""
PITCH_MAX = _field_limit("pitch", Opcode.LOAD, Opcode.STORE)
"""Most bytes from one pixel to the next of LOAD and STORE."""
BEFORE_MAX = _field_limit("before", Opcode.LOAD)
"""Most fill bytes before a row of LOAD."""
RUN_MAX = _field_limit("run", Opcode.LOAD)
"""Most bytes of a row of LOAD."""


class Coordinates(NamedTuple):
    """Coordinate of the first element along one axis, its bound, and its steps per output and per element."""

    first: int
    bound: int
    output: int
    element: int


_INSIDE = Coordinates(0, 1, 0, 0)
"""Coordinates of a single element, which is always in range."""


def is_far(window: Window, axis: int) -> bool:
    """Return whether a stride or a dilation along an axis exceeds `STEP_MAX`."""
    return max(window.stride[axis], window.dilation[axis]) > STEP_MAX


def has_coordinates(window: Window, axis: int) -> bool:
    """Return whether coordinates along an axis fit their fields, or need no check because there is no padding."""
    return not is_far(window, axis) or max(window.pad[axis], window.pad[axis + 2]) <= 0


def coordinates(window: Window, axis: int, first: int, bound: int) -> Coordinates:
    """Return the coordinates of windows along an axis, from `first` on; constant if the steps do not fit their
    fields."""
    if is_far(window, axis):
        return _INSIDE
    return Coordinates(first, bound, window.stride[axis], window.dilation[axis])
