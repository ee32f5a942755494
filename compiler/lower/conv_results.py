"""Lowering of a convolution's results: requantisation of its sums, an epilogue, or a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from weft.compiler.ir.graph import Add, Conv, Multiply
from weft.compiler.ir.scales import quantise_scales
from weft.compiler.kernel.wide import WideConv
from weft.compiler.lower.rows import ROW_OPERANDS, VECTORS_PER_CONSTANT, interleave_bytes, kernel_cycles
from weft.compiler.lower.vector import pointwise_block, second_operand
from weft.compiler.machine.emit import Box, Emitter, ceil_div, loop_stride
from weft.compiler.machine.memory import Ring
from weft.compiler.machine.tasks import Task
from weft.compiler.machine.tensors import Place, TensorRef
from weft.compiler.plan.conv_plan import EPILOGUE_BLOCKS, PARAMETER_BLOCKS, ConvPlan
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.pieces import Tile
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import BLOCK, ChannelPlan
from weft.hdl.isa import PARAMETER_VECTORS, Kernel, Reduce, Vec, config
from weft.hdl.isa import Source as VecSource
from weft.hdl.isa import config as parameters


class Results:
    """Vector tasks of one convolution, with parameter blocks from address `first` up to `end`."""

    def __init__(self, shape: ConvShape, plan: ConvPlan, emit: Emitter, first: int) -> None:
        self.shape, self.emit = shape, emit
        self.config, self.layer = shape.config, emit.layer
        zone = plan.zones.o
        room = (sum(zone) - first - plan.o_count * plan.o_slot * shape.slots) // PARAMETER_VECTORS
        # An epilogue's block is in use until its operator ends, so it has a ring of its own.
        pair = (
            EPILOGUE_BLOCKS
            if room >= 2 * plan.params + EPILOGUE_BLOCKS
            else int(shape.op.epilogue is not None)
        )
        self.after = emit.ring("epilogue", first, PARAMETER_VECTORS, pair)
        # Where there is room take more blocks than needed: the next operator's need not wait for this operator's.
        wanted = PARAMETER_BLOCKS - EPILOGUE_BLOCKS if shape.slots == 0 else PARAMETER_BLOCKS // 2
        blocks = min(max(2 * plan.params, wanted), room - pair)
        self.p = emit.ring(
            "parameters", self.after.start + pair * PARAMETER_VECTORS, PARAMETER_VECTORS, blocks
        )
        self.end = self.p.start + blocks * PARAMETER_VECTORS
        self.batch = 1  # tiles whose parameters the next LOAD brings
        # Cached because `Tasks.of` encodes each instruction object once (see `Task`).
        self._requantisation_of = cache(self._requantisation)
        # Cached because all spatial tiles share it.
        self._block_of = cache(self._parameters)

    def finish(self) -> None:
        """Record where the next operator's parameter blocks continue."""
        self.emit.ends["parameters"] = self.p.end
        if self.shape.op.epilogue is not None:
            self.emit.ends["epilogue"] = self.after.end

    def outputs(
        self, box: Box, conv: Box, index: int, sums: int, places: tuple[Place, Place]
    ) -> Iterator[Task]:
        """Yield tasks for tile `index`'s outputs from its sums; the second of `places` is for lower bytes, if any."""
        op = self.shape.op
        if isinstance(op, WideConv):
            return self._combine(box, index, sums, *places)
        return self._drain(op, box, conv, index, sums, places[0])

    def _load_parameters(self, index: int, start: int) -> Iterator[Task]:
        """LOAD the parameters of a tile and of following tiles.

        The first tile's come alone, because the vector unit waits for them; then each LOAD brings twice as many.
        """
        tiles, most = self.shape.tiles, min(self.batch, self.p.count // 2)
        self.batch *= 2
        payload, size = self._block_of(tiles[index]), self.p.size
        if len(payload) < size * self.config.n:
            most = 1  # kernels' constants leave gaps between slots
        for distance in range(1, min(most, len(tiles) - index)):
            if not self.p.would_take(("p", index + distance), start + distance * size):
                break
            self.p.get(("p", index + distance))
            payload += self._block_of(tiles[index + distance])
        yield self.emit.load_constant(payload, start)

    def _combine(self, box: Box, index: int, sums: int, out: Place, lower: Place) -> Iterator[Task]:
        """Compute a tile's outputs by a kernel; `out` is for upper bytes if results have 16 bits."""
        shape, ops = self.shape, self.shape.kernel_ops
        start = yield from self.emit.kernel(ops)
        params, is_loaded = self.p.get(("p", index))
        if not is_loaded:
            yield from self._load_parameters(index, params)
        # Adjacent rows of outputs are one loop of the kernel.
        rows, columns = (box.h, box.w) if out.row != box.w * out.pixel else (1, box.h * box.w)
        fields: dict[str, int] = {"src_vectors": shape.planes}
        for at, name in enumerate(ROW_OPERANDS):
            fields |= {
                f"with_{name}": 1,
                name: params + VECTORS_PER_CONSTANT * at,
                f"{name}_vectors": VECTORS_PER_CONSTANT,
            }
        if shape.wide:
            fields |= {
                "with_dst2": 1,
                "dst2": lower.start,
                "dst2_ob": loop_stride(lower.row, rows),
                "dst2_oy": loop_stride(lower.pixel, columns),
            }
        yield Task(
            Kernel(
                source=VecSource.ACCUMULATOR, start=start, ob=rows, oy=columns, ox=1,
                src=sums, src_ob=loop_stride(columns * shape.planes, rows), src_oy=loop_stride(shape.planes, columns),
                dst=out.start, dst_ob=loop_stride(out.row, rows), dst_oy=loop_stride(out.pixel, columns), **fields,
            ),
            self.layer,
            rows * kernel_cycles(ops, columns, 1, self.config),
        )  # fmt: skip

    def _drain(self, op: Conv, box: Box, conv: Box, index: int, rows: int, out: Place) -> Iterator[Task]:
        shape, pool = self.shape, self.shape.pool
        lookup = () if op.lookup is None else (yield from self.emit.lookup(op.lookup, self.p)).items()
        params, is_loaded = self.p.get(("p", index))
        if not is_loaded:
            yield from self._load_parameters(index, params)
        y = box.y * pool.stride[0] - pool.pad[0] - conv.y
        x = box.x * pool.stride[1] - pool.pad[1] - conv.x
        outputs, line = box.h * box.w, conv.w + shape.lead_rows
        yield Task(
            self._requantisation_of(op, box.h, box.w, conv.h, line, y, x, out.row, out.pixel, *lookup),
            self.layer,
            outputs * pool.kernel[0] * pool.kernel[1] * self.config.groups,
            # With padding, y or x is negative: the address wraps, and coordinates leave the element out.
            addresses=((rows + y * line + x + shape.lead_rows) % (1 << 16), out.start, params),
        )

    def _requantisation(
        self,
        op: Conv,
        oy: int,
        ox: int,
        h: int,
        w: int,
        y: int,
        x: int,
        row: int,
        pixel: int,
        *lookup: tuple[str, int],
    ) -> Vec:
        """Return a VEC without addresses: (oy, ox) outputs of (h, w) rows of sums, the first at (y, x).

        Results are `pixel` and `row` vectors apart. `lookup` are its fields for a look-up table.
        """
        shape, pool = self.shape, self.shape.pool
        return Vec(
            reduce=Reduce.MAX if shape.pooled else Reduce.NONE,
            oy=oy, ox=ox, ry=pool.kernel[0], rx=pool.kernel[1],
            src_oy=loop_stride(pool.stride[0] * w, oy), src_ox=pool.stride[1],
            src_ry=loop_stride(pool.dilation[0] * w, pool.kernel[0]), src_rx=pool.dilation[1],
            y=y, x=x, y_oy=pool.stride[0], y_ry=pool.dilation[0], x_ox=pool.stride[1], x_rx=pool.dilation[1],
            h=h, w=w, dst_oy=loop_stride(row, oy), dst_ox=pixel, zero=op.y_zero, low=op.low, high=op.high,
            **dict(lookup),
        )  # fmt: skip

    def epilogue(self, box: Box, out: Place, added: Place) -> Iterator[Task]:
        """Apply the epilogue to a tile's outputs, in place: the vector unit reads an output before it writes it."""
        op, config = self.shape.op.epilogue, self.config
        assert op is not None
        params, is_loaded = self.after.get("epilogue")
        if not is_loaded:
            yield self.emit.load_constant(pointwise_block(op, config), params)
        second: dict[str, int] = {}
        if isinstance(op, Add | Multiply):
            second = second_operand(op, config, added.start, box.h, added.row, added.pixel)
        lookup = yield from self.emit.lookup(op.lookup, self.p)
        rows = loop_stride(out.row, box.h)
        yield Task(
            Vec(
                source=VecSource.SCRATCHPAD, oy=box.h, ox=box.w,
                src=out.start, src_oy=rows, src_ox=out.pixel, h=1, w=1,
                dst=out.start, dst_oy=rows, dst_ox=out.pixel,
                params=params, zero=op.y_zero, low=op.low, high=op.high, **second, **lookup,
            ),
            self.layer,
            box.h * box.w * (config.groups + bool(second)),
        )  # fmt: skip

    def _parameters(self, tile: Tile) -> bytes:
        """Return the parameter block of a tile's VEC, or the constants of its kernel."""
        rows = slice(tile.first, tile.first + tile.count)
        if isinstance(self.shape.op, WideConv):
            return b"".join(interleave_bytes(vector[rows], self.config.n) for vector in self.shape.op.vectors)
        mantissa, shift = quantise_scales(self.shape.op.scale[rows], self.config.mantissa_bits)
        return parameters.parameter_block(self.shape.packed.bias(tile), mantissa, shift, self.config.n)


def lower_channels(op: Conv, site: Site, plan: ChannelPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one operator in sequential order."""
    return _Lowering(op, site.flatten(), plan, emit).tasks()


class _Lowering:
    def __init__(self, op: Conv, site: Site, plan: ChannelPlan, emit: Emitter) -> None:
        self.op, self.plan, self.emit = op, plan, emit
        self.src, self.dst, self.n = site.sources[0], site.dst, site.config.n
        # Cached because `Tasks.of` encodes each instruction object once (see `Task`).
        self._product = cache(self._multiplication)
        self.cycles, self.bits = site.config.groups, site.config.mantissa_bits
        # Channels of a tile, in vectors.
        some = plan.channels // self.n
        # Results and constants at the top, sources at the bottom: they are then likely to be in different banks.
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
        """Return the place of a box's channels: in a slot, or where the tensor is resident."""
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
        """Return a VEC without addresses except its weights'; pixels are `a` and `o` vectors apart."""
        op = self.op
        return Vec(
            source=VecSource.SCRATCHPAD, ox=pixels, src_ox=a, h=1, w=pixels, x_ox=1, dst_ox=o, zero=op.y_zero,
            low=op.low, high=op.high, add=1, multiply=1, b=weights, pad=op.x_zero,
        )  # fmt: skip

    def _constants(self, first: int, count: int) -> bytes:
        """Return the parameter block and the weights vector of each N channels."""
        blocks = []
        for start in range(first, first + count, self.n):
            rows = slice(start, min(start + self.n, first + count))
            mantissa, shift = quantise_scales(self.op.scale[rows], self.bits)
            weights = np.zeros(self.n, np.int8)
            weights[: rows.stop - rows.start] = self.op.weight[rows, 0, 0, 0]
            blocks.append(
                config.parameter_block(self.op.bias[rows], mantissa, shift, self.n) + weights.tobytes()
            )
        return b"".join(blocks)
