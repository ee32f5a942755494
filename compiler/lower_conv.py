"""Convolution to tasks: for every group of output tiles, every spatial tile, every output tile, every chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from weft.compiler.conv_plan import Chooser, ConvPlan, boxes
from weft.compiler.conv_shape import Chunk, ConvShape, Room, Tile
from weft.compiler.emit import Box, Emitter, ceil_div, parameters, taken
from weft.compiler.ir import Add, Conv
from weft.compiler.lower_vector import pointwise, second_operand
from weft.compiler.memory import Constants, Ring, Source
from weft.compiler.scales import quantise_scale
from weft.compiler.tasks import Range, Task, accumulator, scratchpad
from weft.hdl.config import Config
from weft.hdl.isa import PARAMETER_VECTORS, Mm, Reduce, Vec
from weft.hdl.isa import Source as VecSource


def lower_conv(
    op: Conv,
    sources: Sequence[Source],
    dst: Source,
    config: Config,
    constants: Constants,
    layer: int,
    choose: Chooser,
    room: Room | None = None,
) -> list[Task] | None:
    """Tasks of one convolution in sequential order, or None if not even its smallest tile fits on chip. `sources` are
    its input and, if there is one, what is added, `room` what it may have of the scratchpad."""
    shape = ConvShape(op, sources, dst, config, room)
    chosen = choose(shape)
    return None if chosen is None else list(_ConvLowering(shape, chosen, constants, layer).tasks())


class _Place(NamedTuple):
    """Where the vectors of a box are on chip: the first, and how far it is from pixel to pixel and from row to row."""

    start: int
    pixel: int
    row: int

    def tile(self, index: int) -> _Place:
        """The same for vectors that lie `index` further."""
        return self._replace(start=self.start + index)

    def extent(self, box: Box, vectors: int = 1) -> Range:
        """From the first vector of a box to the last, of `vectors` of each pixel."""
        return scratchpad(self.start, (box.h - 1) * self.row + (box.w - 1) * self.pixel + vectors)


class _ConvLowering:
    def __init__(self, shape: ConvShape, chosen: ConvPlan, constants: Constants, layer: int) -> None:
        self.shape, self.plan, self.layer = shape, chosen, layer
        self.config = shape.config
        self.emit = Emitter(shape.config, constants, layer)
        zone = chosen.zones
        assert shape.room[0] <= zone.a[0] <= sum(zone.o) <= shape.room[1], "the plan is for another room"
        self.a = Ring(zone.a[0], chosen.a_slot, chosen.a_count)
        self.b = Ring(zone.b[0], chosen.b_limit, chosen.b_count)
        self.p = Ring(zone.o[0], PARAMETER_VECTORS, chosen.params)
        outputs = zone.o[0] + chosen.params * PARAMETER_VECTORS
        if shape.op.then is not None:
            self.then, outputs = Ring(outputs, PARAMETER_VECTORS, 1), outputs + PARAMETER_VECTORS
        self.o = Ring(outputs, chosen.o_slot, chosen.o_count)
        if shape.dst.held is None:
            outputs += chosen.o_count * chosen.o_slot
        self.r = Ring(outputs, chosen.o_slot, chosen.o_count)
        self.c = Ring(0, chosen.c_slot, chosen.c_count)
        self._packed: dict[object, bytes] = {}

    def tasks(self) -> Iterator[Task]:
        shape, group = self.shape, self.plan.group
        for first in range(0, len(shape.tiles), group):
            members = range(first, min(first + group, len(shape.tiles)))
            for image in range(shape.src.n):
                for box in boxes(shape, self.plan.tile):
                    yield from self._block(image, box, members)

    def _block(self, image: int, box: Box, members: range) -> Iterator[Task]:
        """One spatial tile for a group of output tiles, stored `plan.store` tiles at a time."""
        shape = self.shape
        conv = shape.conv_box(box)
        for first in range(members.start, members.stop, self.plan.store):
            part = range(first, min(first + self.plan.store, members.stop))
            tiles = [shape.tiles[index] for index in part]
            channels = (tiles[0].first, sum(tile.count for tile in tiles))
            out = added = self._place(shape.dst, self.o, image, box, first, len(part))
            if shape.residual is not None:
                added = self._place(shape.residual, self.r, image, box, first, len(part))
                if shape.residual.held is None:
                    yield self.emit.load_box(shape.residual, image, box, channels, added.start, len(part), 0)
            for index in part:
                rows, _ = self.c.get(("c", image, box, index))
                yield from self._multiply(image, conv, index, rows)
                yield from self._drain(box, conv, index, rows, out.tile(index - first))
                if shape.op.then is not None:
                    yield from self._then(box, out.tile(index - first), added.tile(index - first))
            if shape.dst.held is None:
                yield self.emit.store_box(shape.dst, image, box, channels, out.start, len(part))

    def _place(self, at: Source, ring: Ring, image: int, box: Box, first: int, tiles: int) -> _Place:
        """Where a box of outputs is, or of what is added to them, from tile `first` on: in a slot, or held."""
        if at.held is None:
            start, _ = ring.get((image, box, first))
            return _Place(start, tiles, box.w * tiles)
        return self._on_chip(at, image, box).tile(first)

    def _on_chip(self, at: Source, image: int, box: Box) -> _Place:
        """Where a box of pixels is that are held."""
        assert at.held is not None
        vectors = ceil_div(at.c, self.config.n)
        pixel = (image * at.h + box.y) * at.w + box.x
        return _Place(at.held + pixel * vectors, vectors, at.w * vectors)

    def _multiply(self, image: int, conv: Box, index: int, rows: int) -> Iterator[Task]:
        shape, plan_ = self.shape, self.plan
        tile = shape.tiles[index]
        chunks = shape.chunks(tile.piece, plan_.b_limit)
        assert chunks is not None
        begun = False
        for chunk in chunks:
            key = ("a", image, conv, chunk if plan_.chunked else None, tile.piece if plan_.chunked else None)
            loaded = shape.input_box(conv, chunk if plan_.chunked else None)
            vectors = chunk.kc[1] if plan_.chunked else shape.vectors
            if shape.src.held is None:
                start, held = self.a.get(key)
                at = _Place(start, vectors, loaded.w * vectors)
                if not held:
                    yield from self._load_inputs(image, conv, loaded, tile, chunk, start)
            else:
                at = self._on_chip(shape.src, image, loaded)
            for part in range(shape.passes):
                b, held = self.b.get(("b", index, part, chunk))
                if not held:
                    yield self.emit.load_constant(self._weights(index, part, chunk), b)
                yield self._mm(conv, loaded, tile, chunk, at, (b, rows), accumulate=begun)
                begun = True

    def _weights(self, index: int, part: int, chunk: Chunk) -> bytes:
        key = (index, part, chunk)
        if key not in self._packed:
            self._packed[key] = self.shape.weights(self.shape.tiles[index], part, chunk)
        return self._packed[key]

    def _load_inputs(
        self, image: int, conv: Box, box: Box, tile: Tile, chunk: Chunk, a: int
    ) -> Iterator[Task]:
        shape, n = self.shape, self.config.n
        fill = shape.op.x_zero
        if shape.folded:
            pitch, (_, sx) = shape.src.pixel_pitch, shape.window.stride
            first = (conv.x * sx - shape.window.pad[1]) * pitch
            vectors, skip = (chunk.kc[1], chunk.kc[0] * n) if self.plan.chunked else (shape.vectors, 0)
            length = min(shape.span - skip, vectors * n)
            yield self.emit.load_windows(
                shape.src, image, (box.y, box.h), first + skip, sx * pitch, conv.w, length, a, vectors, fill
            )
        elif self.plan.chunked:
            start = tile.piece.first + chunk.kc[0] * n
            count = min(chunk.kc[1] * n, tile.piece.first + tile.piece.count - start)
            yield self.emit.load_box(shape.src, image, box, (start, count), a, chunk.kc[1], fill)
        elif shape.aligned:
            yield self.emit.load_box(shape.src, image, box, (0, shape.src.c), a, shape.vectors, fill)
        else:
            for piece in shape.pieces:
                channels = (piece.first, piece.count)
                yield self.emit.load_box(shape.src, image, box, channels, a + piece.at, shape.vectors, fill)

    def _mm(
        self,
        conv: Box,
        loaded: Box,
        tile: Tile,
        chunk: Chunk,
        at: _Place,
        slots: tuple[int, int],
        *,
        accumulate: bool,
    ) -> Task:
        shape, window, n = self.shape, self.shape.window, self.config.n
        b, c = slots
        vectors, pitch = at.pixel, at.row
        first = at.start if self.plan.chunked else at.start + tile.piece.at + chunk.kc[0]
        (sy, sx), (dy, dx) = window.stride, window.dilation
        y = conv.y * sy - window.pad[0] + chunk.ky[0] * dy - loaded.y
        x = 0 if shape.folded else conv.x * sx - window.pad[1] + chunk.kx[0] * dx - loaded.x
        if shape.folded:
            sx, dx = 1, 0
        steps = chunk.steps
        return Task(
            Mm(
                accumulate=int(accumulate), ky=chunk.ky[1], kx=chunk.kx[1], kc=chunk.kc[1], oy=conv.h, ox=conv.w,
                a=(first + y * pitch + x * vectors) % (1 << 16),
                a_ky=taken(dy * pitch, chunk.ky[1]), a_kx=dx * vectors, a_kc=1, a_oy=taken(sy * pitch, conv.h),
                a_ox=sx * vectors,
                y=y, x=x, y_ky=dy if chunk.ky[1] > 1 else 0, y_oy=sy, x_kx=dx if chunk.kx[1] > 1 else 0, x_ox=sx,
                h=loaded.h, w=loaded.w, pad=shape.op.x_zero,
                b=b, b_ky=taken(chunk.kx[1] * chunk.kc[1] * tile.count, chunk.ky[1]),
                b_kx=taken(chunk.kc[1] * tile.count, chunk.kx[1]),
                b_kc=tile.count, b_row=1,
                c=c, c_oy=conv.w, c_ox=1,
            ),
            (at.extent(loaded, vectors), scratchpad(b, steps * n)),
            (accumulator(c, conv.h * conv.w),),
            self.layer,
            steps * max(conv.h * conv.w, n),
            paces=True,
        )  # fmt: skip

    def _drain(self, box: Box, conv: Box, index: int, rows: int, out: _Place) -> Iterator[Task]:
        shape, op, pool = self.shape, self.shape.op, self.shape.pool
        params, held = self.p.get(("p", index))
        if not held:
            yield self.emit.load_constant(self._parameters(shape.tiles[index]), params)
        y = box.y * pool.stride[0] - pool.pad[0] - conv.y
        x = box.x * pool.stride[1] - pool.pad[1] - conv.x
        outputs = box.h * box.w
        yield Task(
            Vec(
                reduce=Reduce.MAX if shape.pooled else Reduce.NONE,
                oy=box.h, ox=box.w, ry=pool.kernel[0], rx=pool.kernel[1],
                src=(rows + y * conv.w + x) % (1 << 16),
                src_oy=taken(pool.stride[0] * conv.w, box.h), src_ox=pool.stride[1],
                src_ry=taken(pool.dilation[0] * conv.w, pool.kernel[0]), src_rx=pool.dilation[1],
                y=y, x=x, y_oy=pool.stride[0], y_ry=pool.dilation[0], x_ox=pool.stride[1], x_rx=pool.dilation[1],
                h=conv.h, w=conv.w,
                dst=out.start, dst_oy=taken(out.row, box.h), dst_ox=out.pixel,
                params=params, zero=op.y_zero, low=op.low, high=op.high,
            ),
            (accumulator(rows, conv.h * conv.w), scratchpad(params, PARAMETER_VECTORS)),
            (out.extent(box),),
            self.layer,
            outputs * pool.kernel[0] * pool.kernel[1] * self.config.groups,
        )  # fmt: skip

    def _then(self, box: Box, out: _Place, added: _Place) -> Iterator[Task]:
        """What comes then, for the outputs of a tile, where they are: an output is read before it is written."""
        op, config = self.shape.op.then, self.config
        assert op is not None
        params, held = self.then.get("then")
        if not held:
            yield self.emit.load_constant(pointwise(op, config), params)
        reads = [out.extent(box), scratchpad(params, PARAMETER_VECTORS)]
        second: dict[str, int] = {}
        if isinstance(op, Add):
            second = second_operand(op, config, added.start, box.h, added.row, added.pixel)
            reads.append(added.extent(box))
        rows = taken(out.row, box.h)
        yield Task(
            Vec(
                source=VecSource.SCRATCHPAD, oy=box.h, ox=box.w,
                src=out.start, src_oy=rows, src_ox=out.pixel, h=1, w=1,
                dst=out.start, dst_oy=rows, dst_ox=out.pixel,
                params=params, zero=op.y_zero, low=op.low, high=op.high, **second,
            ),
            tuple(reads),
            (out.extent(box),),
            self.layer,
            box.h * box.w * (config.groups + bool(second)),
        )  # fmt: skip

    def _parameters(self, tile: Tile) -> bytes:
        rows = slice(tile.first, tile.first + tile.count)
        scales = [
            quantise_scale(float(scale), self.config.mantissa_bits) for scale in self.shape.op.scale[rows]
        ]
        mantissa, shift = np.array(scales, np.int64).T
        return parameters(self.config, self.shape.bias(tile), mantissa, shift)
