"""Stand-alone softmax to tasks: over each row once for its maximum and sum, and once more for the result."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Softmax
from weft.compiler.ir.scales import normaliser, score_multiplier
from weft.compiler.lower.attention import table_tasks
from weft.compiler.machine.emit import Box, Emitter, ceil_div, parameters
from weft.compiler.machine.memory import Constants, Ring, Source
from weft.compiler.machine.tasks import Task, scratchpad
from weft.hdl import isa
from weft.hdl.isa import COORDINATE_MAX, PARAMETER_VECTORS, Normalise
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class _TileSize:
    """Rows of a tile, vectors of a chunk of a row, and the rings' slots for chunks of the source and of the rest."""

    rows: int
    vectors: int
    sources: int
    slots: int


def lower_softmax(
    op: Softmax, src: Source, dst: Source, config: Config, constants: Constants, layer: int
) -> list[Task] | None:
    """Tasks of one softmax in sequential order, or None if not even one row of one vector fits on chip."""
    if src.flattens and dst.flattens:
        src, dst = src.flattened(), dst.flattened()
    tile = _choose(src, config)
    return (
        None if tile is None else list(_SoftmaxLowering(op, src, dst, tile, config, constants, layer).tasks())
    )


def _choose(src: Source, config: Config) -> _TileSize | None:
    """Whole rows if at least a few fit, else chunks that come twice; as many rows as there are states."""
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
                return _TileSize(
                    min(rows, ceil_div(src.w, 2) if src.w > 16 else rows), vectors, sources, slots
                )
    return None


class _SoftmaxLowering:
    def __init__(
        self,
        op: Softmax,
        src: Source,
        dst: Source,
        tile: _TileSize,
        config: Config,
        constants: Constants,
        layer: int,
    ) -> None:
        self.op, self.src, self.dst, self.tile, self.config, self.layer = op, src, dst, tile, config, layer
        self.emit = Emitter(config, constants, layer)
        size = tile.rows * tile.vectors
        self.x = Ring(PARAMETER_VECTORS, size, tile.sources)
        self.p = Ring(PARAMETER_VECTORS + tile.sources * size, size, tile.slots)
        self.out = Ring(PARAMETER_VECTORS + (tile.sources + tile.slots) * size, size, tile.slots)

    def tasks(self) -> Iterator[Task]:
        op, config, n = self.op, self.config, self.config.n
        table = config.scratchpad_size - config.table_depth // n
        yield from table_tasks(self.emit, table)
        mantissa, shift = score_multiplier(op.score_scale * math.log2(math.e), config.mantissa_bits)
        block = parameters(config, np.full(n, -op.x_zero), np.full(n, mantissa), np.full(n, shift))
        yield self.emit.load_constant(block, 0)
        for image in range(self.src.n):
            for y in range(self.src.h):
                for x in range(0, self.src.w, self.tile.rows):
                    yield from self._tile(image, Box(y, x, 1, min(self.tile.rows, self.src.w - x)))

    def _tile(self, image: int, box: Box) -> Iterator[Task]:
        step = self.tile.vectors * self.config.n
        chunks = [(first, min(step, self.src.c - first)) for first in range(0, self.src.c, step)]
        for final in (0, 1):
            for chunk in chunks:
                yield from self._chunk(image, box, chunk, final)

    def _chunk(self, image: int, box: Box, chunk: tuple[int, int], final: int) -> Iterator[Task]:
        first, count = chunk
        rows, vectors = box.w, ceil_div(count, self.config.n)
        x, held = self.x.get((image, box, chunk))
        if not held:
            yield from self.emit.load_box(self.src, image, box, chunk, x, vectors, 0)
        p, _ = self.p.get((image, box, chunk, final))
        size = rows * vectors
        yield Task(
            isa.Softmax(
                source=isa.Source.SCRATCHPAD, ob=vectors, ox=rows, src=x, src_ob=1, src_ox=vectors,
                dst=p, dst_ob=1, dst_ox=vectors, params=0, first=int(first == 0 and not final), final=final,
                length=count, state_ox=1, alignment_ob=1, alignment_ox=vectors,
            ),
            (scratchpad(x, size), scratchpad(0, PARAMETER_VECTORS)),
            (scratchpad(p, size),),
            self.layer,
            size * self.config.groups,
            paces=True,
        )  # fmt: skip
        if final:
            yield from self._result(image, box, chunk, p)

    def _result(self, image: int, box: Box, chunk: tuple[int, int], p: int) -> Iterator[Task]:
        op, rows, vectors = self.op, box.w, ceil_div(chunk[1], self.config.n)
        out, _ = self.out.get((image, box, chunk))
        scale, exponent = normaliser(op.scale)
        yield Task(
            Normalise(
                source=isa.Source.SCRATCHPAD, oy=rows, ox=vectors, src=p, src_oy=vectors, src_ox=1,
                dst=out, dst_oy=vectors, dst_ox=1, scaled=1, scale=scale, exponent=exponent, state_oy=1,
                alignment_oy=vectors, alignment_ox=1, zero=op.y_zero, low=op.low, high=op.high,
            ),
            (scratchpad(p, rows * vectors),),
            (scratchpad(out, rows * vectors),),
            self.layer,
            rows * max(16, vectors * self.config.groups),
            paces=True,
        )  # fmt: skip
        yield from self.emit.store_box(self.dst, image, box, chunk, out, vectors)
