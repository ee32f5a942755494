"""The memories of the golden interpreter, and the addresses and coordinates that instructions count in them."""

from __future__ import annotations

import numpy as np

from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.sim.device import DeviceError


class Memories:
    """All state that outlives an instruction; zero at first.

    Attributes
    ----------
    dram : uint8
    scratchpad : int8 (``config.scratchpad_size``, N)
    accumulator : int32 (``config.accumulator_size``, N)
    bases : list of int
        Base registers, 32 bits unsigned.
    maxima : int32 (``config.row_states``)
        ``m`` of the row states, -256 to 256.
    sums : int64 (``config.row_states``)
        ``l`` of the row states, 32 bits unsigned.
    alignments : int32 (``config.alignments``)
        -31 to 31.
    table : uint8 (``config.table_depth``)
    """

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.config = config
        self.dram = np.zeros(memory_bytes, np.uint8)
        self.scratchpad = np.zeros((config.scratchpad_size, config.n), np.int8)
        self.accumulator = np.zeros((config.accumulator_size, config.n), np.int32)
        self.bases = [0] * BASES
        self.maxima = np.zeros(config.row_states, np.int32)
        self.sums = np.zeros(config.row_states, np.int64)
        self.alignments = np.zeros(config.alignments, np.int32)
        self.table = np.zeros(config.table_depth, np.uint8)

    def dram_range(self, address: int, size: int) -> np.ndarray:
        """A view of DRAM bytes. Raises `DeviceError` if they do not lie inside memory."""
        if not (address >= 0 and size >= 0 and address + size <= self.dram.size):
            raise DeviceError(
                f"{size} bytes at DRAM address {address:#x} leave the memory of {self.dram.size} bytes"
            )
        return self.dram[address : address + size]

    def vectors(self, address: np.ndarray) -> np.ndarray:
        """`address` modulo 2**16, checked to be scratchpad vectors."""
        return _checked(address, self.config.scratchpad_size, "scratchpad address", "rows")

    def rows(self, address: np.ndarray) -> np.ndarray:
        """`address` modulo 2**16, checked to be accumulator rows."""
        return _checked(address, self.config.accumulator_size, "accumulator address", "rows")

    def states(self, address: np.ndarray) -> np.ndarray:
        """`address` modulo 2**16, checked to be row states."""
        return _checked(address, self.config.row_states, "row state", "entries")

    def aligned(self, address: np.ndarray) -> np.ndarray:
        """`address` modulo 2**16, checked to be alignments."""
        return _checked(address, self.config.alignments, "alignment", "entries")


def _checked(address: np.ndarray, size: int, name: str, unit: str) -> np.ndarray:
    address = address & 0xFFFF
    if address.size and int(address.max()) >= size:
        raise DeviceError(f"{name} {int(address.max())} is outside its {size} {unit}")
    return address


def loops(start: int, *nest: tuple[int, int]) -> np.ndarray:
    """``start + i*stride_i + ...`` for nested loops (count, stride), outermost first; int64, an axis each."""
    total = np.array(start, np.int64)
    for count, stride in nest:
        total = total[..., None] + np.arange(count, dtype=np.int64) * stride
    return total


def inside(coordinate: np.ndarray, bound: int) -> np.ndarray:
    """Whether coordinates, as 16-bit two's complement, lie in [0, bound)."""
    coordinate = coordinate & 0xFFFF
    return (coordinate < 0x8000) & (coordinate < bound)
