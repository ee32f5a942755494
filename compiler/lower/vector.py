"""Lowering of pooling, addition and requantisation: LOAD a tile, VEC, STORE, in rings of up to three.

Resident tensors are read and written in place, without LOAD or STORE.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Add, DeviceOp, Multiply, Rescale
from weft.compiler.ir.scales import quantise_pair, quantise_scale
from weft.compiler.ir.windows import ONE, Window
from weft.compiler.machine.emit import Box, Emitter, ceil_div, loop_stride
from weft.compiler.machine.memory import Ring
from weft.compiler.machine.target import coordinates
from weft.compiler.machine.tasks import Task
from weft.compiler.machine.tensors import Place, TensorRef
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import VectorPlan
from weft.hdl.isa import PARAMETER_VECTORS, Reduce, Vec
from weft.hdl.isa import Source as VecSource
from weft.hdl.isa import config as parameters
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class Job:
    """Vector work of an operator: a reduction over windows of the first source, then requantisation.

    Attributes
    ----------
    parameters : callable
        Return the parameter block for windows of a number of elements.
    pad : int
        Value outside the source.
    mean : bool
        Whether the divisor varies, so that elements are counted: in the input or, with `include_pad`, in the padding
        as well.
    pairwise : Add, Multiply or None
        Operator whose second operand is the second source.
    """

    parameters: Callable[[int], bytes]
    pad: int
    window: Window = ONE
    reduce: Reduce = Reduce.NONE
    mean: bool = False
    include_pad: bool = False
    pairwise: Add | Multiply | None = None


def lower_vector(op: DeviceOp, job: Job, site: Site, plan: VectorPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one operator in sequential order."""
    return _VectorLowering(op, job, site, plan, emit).tasks()


def pointwise_block(op: Add | Multiply | Rescale, config: Config) -> bytes:
    """Return the parameter block of a sum, a product or a requantisation."""
    if isinstance(op, Rescale):
        return uniform_block(config, -op.x_zero, *quantise_scale(op.scale, config.mantissa_bits))
    if isinstance(op, Multiply):
        return uniform_block(config, 0, *quantise_scale(op.scale, config.mantissa_bits))
    mantissa, _, shift = quantise_pair(op.a_scale, abs(op.b_scale), config.mantissa_bits)
    return uniform_block(config, -op.a_zero, mantissa, shift)


def uniform_block(config: Config, bias: int, mantissa: int, shift: int) -> bytes:
    """Return a parameter block with equal values for all columns."""
    n = config.n
    return parameters.parameter_block(np.full(n, bias), np.full(n, mantissa), np.full(n, shift), n)


def second_operand(
    op: Add | Multiply, config: Config, b: int, rows: int, pitch: int, vectors: int
) -> dict[str, int]:
    """Return the `Vec` fields of a sum's or product's second operand, from `b` on, in `rows` rows of `pitch`
    vectors."""
    place = {
        "add": 1,
        "b": b,
        "b_ob": 1,
        "b_oy": loop_stride(pitch, rows),
        "b_ox": vectors,
        "b_zero": op.b_zero,
    }
    if isinstance(op, Multiply):
        return place | {"multiply": 1, "pad": op.a_zero}
    _, mantissa, _ = quantise_pair(op.a_scale, abs(op.b_scale), config.mantissa_bits)
    return place | {"b_mantissa": mantissa, "subtract": int(op.b_scale < 0)}


class _VectorLowering:
    def __init__(self, op: DeviceOp, job: Job, site: Site, tile: VectorPlan, emit: Emitter) -> None:
        self.op, self.job, self.tile, self.emit = op, job, tile, emit
        self.config, self.layer = site.config, emit.layer
        self.src, self.dst = site.sources[0], site.dst
        self.other = site.sources[1] if len(site.sources) > 1 else None
        # Outputs and parameters at the top, sources at the bottom: they are then likely to be in different banks.
        bottom, end = site.room
        top = end - tile.params * PARAMETER_VECTORS
        self.p = Ring(top, PARAMETER_VECTORS, tile.params)
        self.o = Ring(top - tile.slots * tile.out, tile.out, tile.slots)
        self.a = Ring(bottom, tile.src, tile.slots)
        first = self.src.resident is None
        self.b = Ring(bottom + first * tile.slots * tile.src, tile.src, tile.slots)

    def tasks(self) -> Iterator[Task]:
        dst, tile = self.dst, self.tile
        for image in range(dst.n):
            for first in range(0, dst.c, tile.channels):
                channels = (first, min(tile.channels, dst.c - first))
                for y in range(0, dst.h, tile.h):
                    for x in range(0, dst.w, tile.w):
                        box = Box(y, x, min(tile.h, dst.h - y), min(tile.w, dst.w - x))
                        yield from self._tile(image, channels, box)

    def _tile(self, image: int, channels: tuple[int, int], box: Box) -> Iterator[Task]:
        job = self.job
        vectors = ceil_div(channels[1], self.config.n)
        loaded = self._input_box(box)
        a = yield from self._source(self.src, self.a, image, loaded, channels, job.pad)
        b = Place(0, 0, 0)
        if self.other is not None:
            around = self._around(self.other, loaded)
            b = yield from self._source(
                self.other, self.b, image % self.other.n, around, channels, 0, (image, box)
            )
        o = self._place(self.dst, self.o, image, box, channels)
        for part, count in self._parts(box):
            lookup = yield from self.emit.lookup(self.op.lookup, self.p)
            params, is_loaded = self.p.get(count)
            if not is_loaded:
                yield self.emit.load_constant(job.parameters(count), params)
            yield self._vec(box, part, loaded, vectors, (a, b, o), params, lookup)
        if self.dst.resident is None:
            yield from self.emit.store_box(self.dst, image, box, channels, o.start, vectors)

    def _place(
        self, at: TensorRef, ring: Ring, image: int, box: Box, channels: tuple[int, int], key: Hashable = None
    ) -> Place:
        """Return the place of a box's channels: in a slot for it and `key`, or where the tensor is resident."""
        if at.resident is not None:
            return at.on_chip(image, box.y, box.x, self.config.n).tile(channels[0] // self.config.n)
        vectors = ceil_div(channels[1], self.config.n)
        start, _ = ring.get((image, channels, box, key))
        return Place(start, vectors, box.w * vectors)

    def _source(
        self,
        at: TensorRef,
        ring: Ring,
        image: int,
        box: Box,
        channels: tuple[int, int],
        fill: int,
        key: Hashable = None,
    ) -> Generator[Task, None, Place]:
        """Return the place of a box's channels, and yield the LOADs that bring them."""
        place = self._place(at, ring, image, box, channels, key)
        if at.resident is None:
            yield from self.emit.load_box(at, image, box, channels, place.start, place.pixel, fill)
        return place

    def _input_box(self, box: Box) -> Box:
        window, src = self.job.window, self.src
        y, h = window.reach(0, box.y, box.h, src.h)
        x, w = window.reach(1, box.x, box.w, src.w)
        return Box(y, x, h, w)

    def _around(self, other: TensorRef, box: Box) -> Box:
        """Return the second operand's box for a box of the first; it may broadcast a row or column."""
        y, h = (box.y, box.h) if other.h == self.src.h else (0, 1)
        x, w = (box.x, box.w) if other.w == self.src.w else (0, 1)
        return Box(y, x, h, w)

    def _parts(self, box: Box) -> list[tuple[Box, int]]:
        """Split a box into boxes of equal divisor; only averages at the edges need it."""
        if not self.job.mean:
            return [(box, 1)]
        rows, columns = self._runs(0, box.y, box.h), self._runs(1, box.x, box.w)
        return [(Box(y, x, h, w), a * b) for y, h, a in rows for x, w, b in columns]

    def _runs(self, axis: int, first: int, count: int) -> list[tuple[int, int, int]]:
        """Return (first, length, elements) of runs of outputs whose windows count the same number of elements."""
        window, size = self.job.window, (self.src.h, self.src.w)[axis]
        # Coordinates that count: the padding too with `include_pad`.
        low, high = (-window.pad[axis], size + window.pad[axis + 2]) if self.job.include_pad else (0, size)
        runs: list[tuple[int, int, int]] = []
        for index in range(first, first + count):
            start = index * window.stride[axis] - window.pad[axis]
            taps = sum(low <= start + k * window.dilation[axis] < high for k in range(window.kernel[axis]))
            if runs and runs[-1][2] == taps:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1, taps)
            else:
                runs.append((index, 1, taps))
        return runs

    def _vec(
        self,
        box: Box,
        part: Box,
        loaded: Box,
        vectors: int,
        places: tuple[Place, Place, Place],
        params: int,
        lookup: dict[str, int],
    ) -> Task:
        job, window, op = self.job, self.job.window, self.op
        a, b, o = places
        y = part.y * window.stride[0] - window.pad[0] - loaded.y
        x = part.x * window.stride[1] - window.pad[1] - loaded.x
        # In the padding y or x is negative: the address wraps, and coordinates select the pad value.
        down = coordinates(window, 0, y, loaded.h)
        across = coordinates(window, 1, x, loaded.w)
        out = o.start + (part.y - box.y) * o.row + (part.x - box.x) * o.pixel
        second: dict[str, int] = {}
        if job.pairwise is not None:
            assert self.other is not None
            around = self._around(self.other, loaded)
            # A step of 0 repeats a row or column that the operand broadcasts.
            rows, columns = b.row * (around.h > 1), b.pixel * (around.w > 1)
            second = second_operand(job.pairwise, self.config, b.start, part.h, rows, columns)
        return Task(
            Vec(
                source=VecSource.SCRATCHPAD, reduce=job.reduce, ob=vectors, oy=part.h, ox=part.w,
                ry=window.kernel[0], rx=window.kernel[1],
                src=(a.start + y * a.row + x * a.pixel) % (1 << 16), src_ob=1,
                src_oy=loop_stride(window.stride[0] * a.row, part.h), src_ox=window.stride[1] * a.pixel,
                src_ry=loop_stride(window.dilation[0] * a.row, window.kernel[0]), src_rx=window.dilation[1] * a.pixel,
                y=down.first, x=across.first, y_oy=down.output, y_ry=down.element,
                x_ox=across.output, x_rx=across.element, h=down.bound, w=across.bound,
                dst=out, dst_ob=1, dst_oy=loop_stride(o.row, part.h), dst_ox=o.pixel,
                params=params, zero=op.y_zero, low=op.low, high=op.high, **{"pad": job.pad, **second, **lookup},
            ),
            self.layer,
            part.h * part.w * vectors * window.kernel[0] * window.kernel[1] * self.config.groups,
            paces=True,
        )  # fmt: skip
