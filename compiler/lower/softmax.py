"""Stand-alone softmax to tasks: over each row once for its maximum and sum, and once more for the result."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import Softmax
from weft.compiler.ir.scales import normaliser, score_multiplier
from weft.compiler.lower.attention import table_tasks
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import Box, Emitter, ceil_div
from weft.compiler.machine.memory import Ring
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.site import Site
from weft.compiler.plan.softmax_plan import SoftmaxPlan
from weft.hdl import isa
from weft.hdl.isa import PARAMETER_VECTORS, Normalise, parameters


def lower_softmax(op: Softmax, site: Site, plan: SoftmaxPlan, emit: Emitter) -> Iterator[Task]:
    """Tasks of one softmax in sequential order."""
    return _SoftmaxLowering(op, site, plan, emit).tasks()


class _SoftmaxLowering:
    def __init__(self, op: Softmax, site: Site, tile: SoftmaxPlan, emit: Emitter) -> None:
        self.op, self.tile, self.emit = op, tile, emit
        self.src, self.dst, self.config, self.layer = site.sources[0], site.dst, site.config, emit.layer
        size = tile.rows * tile.vectors
        self.x = Ring(PARAMETER_VECTORS, size, tile.sources)
        self.p = Ring(PARAMETER_VECTORS + tile.sources * size, size, tile.slots)
        self.out = Ring(PARAMETER_VECTORS + (tile.sources + tile.slots) * size, size, tile.slots)

    def tasks(self) -> Iterator[Task]:
        op, config, n = self.op, self.config, self.config.n
        table = config.scratchpad_size - config.table_depth // n
        yield from table_tasks(self.emit, table)
        mantissa, shift = score_multiplier(op.score_scale * math.log2(math.e), config.mantissa_bits)
        block = parameters.block(np.full(n, -op.x_zero), np.full(n, mantissa), np.full(n, shift), n)
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
            self.layer,
            rows * max(overheads.DIVIDE, vectors * self.config.groups),
            paces=True,
        )  # fmt: skip
        yield from self.emit.store_box(self.dst, image, box, chunk, out, vectors)
