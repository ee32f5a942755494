"""Choosing the tiles of stand-alone softmax."""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.memory import TensorRef
from weft.hdl.isa import COORDINATE_MAX, PARAMETER_VECTORS
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class SoftmaxPlan:
    """Rows of a tile, vectors of a chunk of a row, and the rings' slots for chunks of the source and of the rest."""

    rows: int
    vectors: int
    sources: int
    slots: int


def plan(src: TensorRef, config: Config) -> SoftmaxPlan | None:
    """Whole rows if at least a few fit, else chunks that come twice; as many rows as there are states.

    None if not even one row of one vector fits.
    """
    room = config.scratchpad_size - PARAMETER_VECTORS
    whole = ceil_div(src.c, config.n)
    sizes = [whole] + [1 << k for k in reversed(range(12)) if 1 << k < whole]
    for vectors in (size for size in sizes if size * config.n <= COORDINATE_MAX):
        chunks = ceil_div(whole, vectors)
        for slots in (2, 1):
            sources = max(slots, chunks if chunks <= 4 else slots)
            rows = min(
                room // (vectors * (sources + 2 * slots)),
                config.alignments // vectors,
                config.row_states,
                src.w,
            )
            if rows >= min(src.w, 8) or (rows >= 1 and vectors == 1):
                rows = min(rows, ceil_div(src.w, 2) if src.w > 16 else rows)
                return SoftmaxPlan(rows, vectors, sources, slots)
    return None
