"""Convolutions of one weight for each channel, in the vector unit: LOAD a tile, VEC for each N channels, STORE."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from weft.compiler.ir.graph import Conv
from weft.compiler.ir.scales import quantise_scales
from weft.compiler.machine.emit import Box, Emitter, ceil_div
from weft.compiler.machine.memory import Place, Ring, TensorRef
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.channel_plan import BLOCK, ChannelPlan
from weft.compiler.plan.site import Site
from weft.hdl.isa import PARAMETER_VECTORS, Vec, parameters
from weft.hdl.isa import Source as VecSource


def lower_channels(op: Conv, site: Site, plan: ChannelPlan, emit: Emitter) -> Iterator[Task]:
    """Tasks of one operator in sequential order."""
    return _Lowering(op, site.flattened(), plan, emit).tasks()


class _Lowering:
    def __init__(self, op: Conv, site: Site, plan: ChannelPlan, emit: Emitter) -> None:
        self.op, self.plan, self.emit = op, plan, emit
        self.src, self.dst, self.n = site.sources[0], site.dst, site.config.n
        # The same objects again and again, as `Task` tells.
        self._product = cache(self._multiplication)
        self.cycles, self.bits = site.config.groups, site.config.mantissa_bits
        some = plan.channels // self.n
        # Results and constants lie at the top, sources at the bottom, so that they tend to be in different banks.
        bottom, top = site.room
        sets = 1 + (plan.channels < self.dst.c)
        self.p = Ring(top - sets * some * BLOCK, some * BLOCK, sets)
        size = plan.pixels * some
        self.o = Ring(self.p.start - plan.slots * size, size, plan.slots)
        self.a = Ring(bottom, size, plan.slots)

    def tasks(self) -> Iterator[Task]:
        for first in range(0, self.dst.c, self.plan.channels):
            channels = (first, min(self.plan.channels, self.dst.c - first))
            constants, _ = self.p.get(first)
            yield self.emit.load_constant(self._constants(*channels), constants)
            for x in range(0, self.dst.w, self.plan.pixels):
                box = Box(0, x, 1, min(self.plan.pixels, self.dst.w - x))
                yield from self._tile(box, channels, constants)

    def _tile(self, box: Box, channels: tuple[int, int], constants: int) -> Iterator[Task]:
        a, o = self._place(self.src, self.a, box, channels), self._place(self.dst, self.o, box, channels)
        if self.src.resident is None:
            yield from self.emit.load_box(self.src, 0, box, channels, a.start, a.pixel, self.op.x_zero)
        for index in range(ceil_div(channels[1], self.n)):
            yield self._vec(box.w, a.tile(index), o.tile(index), constants + index * BLOCK)
        if self.dst.resident is None:
            yield from self.emit.store_box(self.dst, 0, box, channels, o.start, o.pixel)

    def _place(self, at: TensorRef, ring: Ring, box: Box, channels: tuple[int, int]) -> Place:
        """Where channels of a box are, or go: in a slot, or where the tensor is on chip."""
        if at.resident is not None:
            return at.on_chip(0, 0, box.x, self.n).tile(channels[0] // self.n)
        start, _ = ring.get((box, channels))
        vectors = ceil_div(channels[1], self.n)
        return Place(start, vectors, box.w * vectors)

    def _vec(self, pixels: int, a: Place, o: Place, constants: int) -> Task:
        return Task(
            self._product(pixels, a.pixel, o.pixel, constants + PARAMETER_VECTORS),
            self.emit.layer,
            pixels * self.cycles,
            paces=True,
            addresses=(a.start, o.start, constants),
        )

    def _multiplication(self, pixels: int, a: int, o: int, weights: int) -> Vec:
        """A VEC without its addresses but that of the weights: pixels are `a` and `o` vectors apart."""
        op = self.op
        return Vec(
            source=VecSource.SCRATCHPAD, ox=pixels, src_ox=a, h=1, w=pixels, x_ox=1, dst_ox=o, zero=op.y_zero,
            low=op.low, high=op.high, add=1, multiply=1, b=weights, pad=op.x_zero,
        )  # fmt: skip

    def _constants(self, first: int, count: int) -> bytes:
        """For each N channels the parameter block, and their weights as the vector behind it."""
        found = []
        for start in range(first, first + count, self.n):
            rows = slice(start, min(start + self.n, first + count))
            mantissa, shift = quantise_scales(self.op.scale[rows], self.bits)
            weights = np.zeros(self.n, np.int8)
            weights[: rows.stop - rows.start] = self.op.weight[rows, 0, 0, 0]
            found.append(parameters.block(self.op.bias[rows], mantissa, shift, self.n) + weights.tobytes())
        return b"".join(found)
