"""Results of convolutions from the sums in the accumulator: requantisation, an epilogue, or a kernel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from weft.compiler.ir.graph import Add, Conv, Multiply
from weft.compiler.ir.scales import quantise_scales
from weft.compiler.kernel.wide import WideConv
from weft.compiler.lower.rows import BYTES, ROW_OPERANDS, interleaved, kernel_cycles
from weft.compiler.lower.vector import pointwise, second_operand
from weft.compiler.machine.emit import Box, Emitter, ceil_div, taken
from weft.compiler.machine.memory import Place, Ring, TensorRef
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.conv_plan import BLOCKS, EPILOGUES, ConvPlan
from weft.compiler.plan.conv_shape import ConvShape, Tile
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import BLOCK, ChannelPlan
from weft.hdl.isa import PARAMETER_VECTORS, Kernel, Reduce, Vec, config
from weft.hdl.isa import Source as VecSource
from weft.hdl.isa import config as parameters


class Results:
    """Tasks of the vector unit for one convolution, with parameter blocks from address `first` on, up to `end`."""

    def __init__(self, shape: ConvShape, plan: ConvPlan, emit: Emitter, first: int) -> None:
        self.shape, self.emit = shape, emit
        self.config, self.layer = shape.config, emit.layer
        zone = plan.zones.o
        room = (sum(zone) - first - plan.o_count * plan.o_slot * shape.slots) // PARAMETER_VECTORS
        # An epilogue's block is in use to the end of its operator, so others have no room in common with such blocks.
        pair = EPILOGUES if room >= 2 * plan.params + EPILOGUES else int(shape.op.epilogue is not None)
        self.after = emit.ring("epilogue", first, PARAMETER_VECTORS, pair)
        # More than needed, where there is room, so that the next operators' do not wait for this one's.
        wanted = BLOCKS - EPILOGUES if shape.slots == 0 else BLOCKS // 2
        blocks = min(max(2 * plan.params, wanted), room - pair)
        self.p = emit.ring(
            "parameters", self.after.start + pair * PARAMETER_VECTORS, PARAMETER_VECTORS, blocks
        )
        self.end = self.p.start + blocks * PARAMETER_VECTORS
        self.batch = 1
        """Of how many tiles parameters are loaded next."""
        # The same objects again and again, as `Task` tells.
        self._drained = cache(self._requantisation)
        # What spatial tiles have in common is computed once.
        self._block_of = cache(self._parameters)

    def finish(self) -> None:
        """Note where the next operator's parameter blocks go on."""
        self.emit.ends["parameters"] = self.p.end
        if self.shape.op.epilogue is not None:
            self.emit.ends["epilogue"] = self.after.end

    def made(self, box: Box, conv: Box, index: int, sums: int, places: tuple[Place, Place]) -> Iterator[Task]:
        """Outputs of tile `index` from its sums; the second of the `places` is for lower bytes, where there are any."""
        op = self.shape.op
        if isinstance(op, WideConv):
            return self._combine(box, index, sums, *places)
        return self._drain(op, box, conv, index, sums, places[0])

    def _load_parameters(self, index: int, start: int) -> Iterator[Task]:
        """Parameters of a tile, to where they belong. Those of the first tile come alone, as the vector unit waits for
        them, and then twice as many at a time, each with those behind them."""
        tiles, most = self.shape.tiles, min(self.batch, self.p.count // 2)
        self.batch *= 2
        payload, size = self._block_of(tiles[index]), self.p.size
        if len(payload) < size * self.config.n:
            most = 1  # those of kernels leave gaps
        for ahead in range(1, min(most, len(tiles) - index)):
            if not self.p.follows(("p", index + ahead), start + ahead * size):
                break
            self.p.get(("p", index + ahead))
            payload += self._block_of(tiles[index + ahead])
        yield self.emit.load_constant(payload, start)

    def _combine(self, box: Box, index: int, sums: int, out: Place, lower: Place) -> Iterator[Task]:
        """Outputs of a tile by a kernel: `out` is for upper bytes where there are two."""
        shape, ops = self.shape, self.shape.kernel_ops
        start = yield from self.emit.kernel(ops)
        params, held = self.p.get(("p", index))
        if not held:
            yield from self._load_parameters(index, params)
        rows, columns = (box.h, box.w) if out.row != box.w * out.pixel else (1, box.h * box.w)
        fields: dict[str, int] = {"src_vectors": shape.planes}
        for at, name in enumerate(ROW_OPERANDS):
            fields |= {f"with_{name}": 1, name: params + BYTES * at, f"{name}_vectors": BYTES}
        if shape.wide:
            fields |= {"with_dst2": 1, "dst2": lower.start, "dst2_ob": taken(lower.row, rows),
                       "dst2_oy": taken(lower.pixel, columns)}  # fmt: skip
        yield Task(
            Kernel(
                source=VecSource.ACCUMULATOR, start=start, ob=rows, oy=columns, ox=1,
                src=sums, src_ob=taken(columns * shape.planes, rows), src_oy=taken(shape.planes, columns),
                dst=out.start, dst_ob=taken(out.row, rows), dst_oy=taken(out.pixel, columns), **fields,
            ),
            self.layer,
            rows * kernel_cycles(ops, columns, 1, self.config),
        )  # fmt: skip

    def _drain(self, op: Conv, box: Box, conv: Box, index: int, rows: int, out: Place) -> Iterator[Task]:
        shape, pool = self.shape, self.shape.pool
        lookup = () if op.lookup is None else (yield from self.emit.lookup(op.lookup, self.p)).items()
        params, held = self.p.get(("p", index))
        if not held:
            yield from self._load_parameters(index, params)
        y = box.y * pool.stride[0] - pool.pad[0] - conv.y
        x = box.x * pool.stride[1] - pool.pad[1] - conv.x
        outputs, line = box.h * box.w, conv.w + shape.more
        yield Task(
            self._drained(op, box.h, box.w, conv.h, line, y, x, out.row, out.pixel, *lookup),
            self.layer,
            outputs * pool.kernel[0] * pool.kernel[1] * self.config.groups,
            addresses=((rows + y * line + x + shape.more) % (1 << 16), out.start, params),
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
        """A VEC without its addresses: (oy, ox) outputs of (h, w) rows of sums, the first at (y, x).

        Results are `pixel` and `row` vectors apart. `lookup` are its fields for a look-up table.
        """
        shape, pool = self.shape, self.shape.pool
        return Vec(
            reduce=Reduce.MAX if shape.pooled else Reduce.NONE,
            oy=oy, ox=ox, ry=pool.kernel[0], rx=pool.kernel[1],
            src_oy=taken(pool.stride[0] * w, oy), src_ox=pool.stride[1],
            src_ry=taken(pool.dilation[0] * w, pool.kernel[0]), src_rx=pool.dilation[1],
            y=y, x=x, y_oy=pool.stride[0], y_ry=pool.dilation[0], x_ox=pool.stride[1], x_rx=pool.dilation[1],
            h=h, w=w, dst_oy=taken(row, oy), dst_ox=pixel, zero=op.y_zero, low=op.low, high=op.high,
            **dict(lookup),
        )  # fmt: skip

    def epilogue(self, box: Box, out: Place, added: Place) -> Iterator[Task]:
        """The epilogue of the outputs of a tile, in place: an output is read before it is written."""
        op, config = self.shape.op.epilogue, self.config
        assert op is not None
        params, held = self.after.get("epilogue")
        if not held:
            yield self.emit.load_constant(pointwise(op, config), params)
        second: dict[str, int] = {}
        if isinstance(op, Add | Multiply):
            second = second_operand(op, config, added.start, box.h, added.row, added.pixel)
        lookup = yield from self.emit.lookup(op.lookup, self.p)
        rows = taken(out.row, box.h)
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
        """The block of VEC, or the constants of the kernel."""
        rows = slice(tile.first, tile.first + tile.count)
        if isinstance(self.shape.op, WideConv):
            return b"".join(interleaved(vector[rows], self.config.n) for vector in self.shape.op.vectors)
        mantissa, shift = quantise_scales(self.shape.op.scale[rows], self.config.mantissa_bits)
        return parameters.parameter_block(self.shape.bias(tile), mantissa, shift, self.config.n)


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
            found.append(
                config.parameter_block(self.op.bias[rows], mantissa, shift, self.n) + weights.tobytes()
            )
        return b"".join(found)
