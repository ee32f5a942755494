"""Lowering of matrix products of activations, and of softmax: loops over tiles, then over chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import Softmax
from weft.compiler.ir.products import Product
from weft.compiler.ir.scales import normaliser, quantise_scale, score_multiplier
from weft.compiler.lower.attention import table_tasks
from weft.compiler.machine import target
from weft.compiler.machine.emit import Box, Emitter, ceil_div, loop_stride, wrapped_stride
from weft.compiler.machine.memory import Ring
from weft.compiler.machine.tasks import Task
from weft.compiler.machine.tensors import TensorRef
from weft.compiler.plan.product_plan import ProductPlan, a_parts, b_parts
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import SoftmaxPlan
from weft.hdl import isa
from weft.hdl.isa import PARAMETER_VECTORS, Mm, Normalise, Vec, config
from weft.hdl.isa import config as parameters

Span = tuple[int, int]
"""First row, column or element, and their number."""


def lower_product(op: Product, site: Site, plan: ProductPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one product in sequential order."""
    return _ProductLowering(op, site, plan, emit).tasks()


class _ProductLowering:
    def __init__(self, op: Product, site: Site, chosen: ProductPlan, emit: Emitter) -> None:
        self.op, self.plan, self.emit = op, chosen, emit
        self.config, self.layer, self.n = site.config, emit.layer, site.config.n
        (self.a, self.b), self.dst = site.sources, site.dst
        self.rings = {name: Ring(*getattr(chosen, name)) for name in ("a", "b", "out", "sums")}

    def tasks(self) -> Iterator[Task]:
        op, chosen = self.op, self.plan
        yield self._load_parameters()
        if b_parts(op):
            payload = np.repeat(np.array(b_parts(op), np.int8), self.n).tobytes()
            yield self.emit.load_constant(payload, chosen.constants)
        for image in range(op.counts[0]):
            for head in range(op.counts[1]):
                for columns in _spans(op.columns, chosen.columns):
                    for rows in _spans(op.rows, chosen.rows):
                        yield from self._tile((image, head), rows, columns)

    def _load_parameters(self) -> Task:
        """LOAD the parameter block of all columns.

        Its bias is the zero points' product, if the array multiplies A with its zero point.
        """
        op, n = self.op, self.n
        bias = 0 if self.config.wide_activations else op.a_zero * op.b_zero * op.depth
        mantissa, shift = quantise_scale(op.scale, self.config.mantissa_bits)
        block = config.parameter_block(np.full(n, bias), np.full(n, mantissa), np.full(n, shift), n)
        return self.emit.load_constant(block, self.plan.params)

    def _tile(self, matrix: tuple[int, int], rows: Span, columns: Span) -> Iterator[Task]:
        sums, _ = self.rings["sums"].get((matrix, rows, columns))
        for chunk in _spans(self.op.depth, self.plan.depth):
            a, tasks = self._operand_a(matrix, rows, chunk)
            yield from tasks
            b, tasks = self._operand_b(matrix, columns, chunk)
            yield from tasks
            yield from self._multiply(rows, columns, chunk, (a, b, sums))
        yield from self._drain(matrix, rows, columns, sums)

    def _operand_a(self, matrix: tuple[int, int], rows: Span, chunk: Span) -> tuple[int, Iterator[Task]]:
        """Return the place of rows of A, and the LOADs if they are not on chip."""
        op, vectors = self.op, ceil_div(chunk[1], self.n)
        image, head = op.place(op.a_counts, *matrix)
        slot, is_loaded = self.rings["a"].get((image, head, rows, chunk))
        if is_loaded:
            return slot, iter(())
        source = self.a.matrix(image, head, op.a_counts)
        fill = op.a_zero if self.config.wide_activations else 0
        if op.a_transposed:
            return slot, self.emit.load_transposed(
                source, chunk, rows, slot, self.n, block=self._lines(rows), fill=fill
            )
        return slot, iter([self.emit.load_rows(source, rows, chunk, slot, vectors, fill)])

    def _lines(self, rows: Span) -> int:
        """Return the step between vectors of the contraction of a row, for a transposed A."""
        return ceil_div(rows[1], self.n) * self.n

    def _operand_b(self, matrix: tuple[int, int], columns: Span, chunk: Span) -> tuple[int, Iterator[Task]]:
        """Return the place of columns of B, and the LOADs if they are not on chip."""
        op, n, vectors = self.op, self.n, ceil_div(chunk[1], self.n)
        image, head = op.place(op.b_counts, *matrix)
        slot, is_loaded = self.rings["b"].get((image, head, columns, chunk))
        if is_loaded:
            return slot, iter(())
        source, (first, count) = self.b.matrix(image, head, op.b_counts), columns
        if op.transposed:
            return slot, iter([self.emit.load_rows(source, columns, chunk, slot, vectors, 0)])
        return slot, self.emit.load_transposed(source, chunk, (first, count), slot, n * vectors)

    def _multiply(self, rows: Span, columns: Span, chunk: Span, at: tuple[int, int, int]) -> Iterator[Task]:
        """Yield the MM of a chunk, and the MMs that subtract its zero points."""
        op, n, (a, b, sums) = self.op, self.n, at
        vectors, groups, count = ceil_div(chunk[1], n), ceil_div(columns[1], n), rows[1]
        wide = self.config.wide_activations
        common = {
            "nt": groups,
            "kc": vectors,
            "ox": count,
            "c": sums,
            "c_nt": loop_stride(count, groups),
            "c_ox": 1,
            "zero": op.a_zero if wide else 0,
        }
        left = {"a": a, "a_kc": 1, "a_ox": loop_stride(vectors, count)}
        if op.a_transposed:
            left |= {"a_kc": loop_stride(self._lines(rows), vectors), "a_ox": loop_stride(1, count)}
        right = {
            "b": b,
            "b_nt": wrapped_stride(n * vectors, groups),
            "b_kc": 1 if op.transposed else n,
            "b_row": vectors if op.transposed else 1,
        }
        # The product itself, then corrections for zero points into the same sums.
        parts = [Mm(**common, **left, **right, accumulate=int(chunk[0] > 0))]
        # Add minus A's zero point times B: rows in the padding.
        parts += [Mm(**common, **right, accumulate=1, y=-1, pad=part) for part in a_parts(op, self.config)]
        constants = (self.plan.constants + index for index in range(len(b_parts(op))))
        parts += [Mm(**common, **left, accumulate=1, b=constant) for constant in constants]
        for part in parts:
            yield Task(part, self.layer, groups * vectors * max(count, n), paces=True)

    def _drain(self, matrix: tuple[int, int], rows: Span, columns: Span, sums: int) -> Iterator[Task]:
        """Requantise the sums of a tile, and STORE them."""
        op, groups, count = self.op, ceil_div(columns[1], self.n), rows[1]
        out, _ = self.rings["out"].get((matrix, rows, columns))
        yield Task(
            Vec(
                ob=groups, ox=count, src=sums, src_ob=loop_stride(count, groups), src_ox=1, dst=out, dst_ob=1,
                dst_ox=loop_stride(groups, count), params=self.plan.params, zero=op.y_zero, low=op.low, high=op.high,
            ),
            self.layer,
            groups * count * self.config.groups,
        )  # fmt: skip
        dst: TensorRef = self.dst.matrix(*matrix, op.counts)
        yield from self.emit.store_box(dst, 0, Box(0, rows[0], 1, count), columns, out, groups)


def _spans(size: int, step: int) -> Iterator[Span]:
    for first in range(0, size, step):
        yield first, min(step, size - first)


def lower_softmax(op: Softmax, site: Site, plan: SoftmaxPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one softmax in sequential order."""
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
        block = parameters.parameter_block(np.full(n, -op.x_zero), np.full(n, mantissa), np.full(n, shift), n)
        yield self.emit.load_constant(block, 0)
        for image in range(self.src.n):
            for y in range(self.src.h):
                for x in range(0, self.src.w, self.tile.rows):
                    yield from self._tile(image, Box(y, x, 1, min(self.tile.rows, self.src.w - x)))

    def _tile(self, image: int, box: Box) -> Iterator[Task]:
        step = self.tile.vectors * self.config.n
        chunks = [(first, min(step, self.src.c - first)) for first in range(0, self.src.c, step)]
        # First pass: largest score and sum of each row. Second pass: probabilities.
        for final in (0, 1):
            for chunk in chunks:
                yield from self._chunk(image, box, chunk, final)

    def _chunk(self, image: int, box: Box, chunk: tuple[int, int], final: int) -> Iterator[Task]:
        first, count = chunk
        rows, vectors = box.w, ceil_div(count, self.config.n)
        x, is_loaded = self.x.get((image, box, chunk))
        if not is_loaded:
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
            rows * max(target.NORMALISE_ROW_CYCLES, vectors * self.config.groups),
            paces=True,
        )  # fmt: skip
        yield from self.emit.store_box(self.dst, image, box, chunk, out, vectors)
