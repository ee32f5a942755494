"""Convolution to tasks: for every group of output tiles, every spatial tile, every output tile, every chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from weft.compiler.lower.conv_results import Results
from weft.compiler.machine.emit import Box, Emitter, Place, taken, wrapped
from weft.compiler.machine.memory import Ring, TensorRef
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.conv_plan import ConvPlan, boxes
from weft.compiler.plan.conv_shape import Chunk, ConvShape, Piece
from weft.hdl.isa import Mm


def lower_conv(shape: ConvShape, plan: ConvPlan, emit: Emitter) -> Iterator[Task]:
    """Tasks of one convolution in sequential order."""
    return _ConvLowering(shape, plan, emit).tasks()


class _ConvLowering:
    def __init__(self, shape: ConvShape, chosen: ConvPlan, emit: Emitter) -> None:
        self.shape, self.plan, self.emit = shape, chosen, emit
        self.config, self.layer = shape.config, emit.layer
        zone = chosen.zones
        assert shape.region[0] <= zone.a[0] <= sum(zone.o) <= shape.region[1], (
            "the plan is for another region"
        )
        self.a = Ring(zone.a[0], chosen.a_slot, chosen.a_count)
        self.b = Ring(zone.b[0], chosen.b_slot, chosen.b_count)
        self.results = Results(shape, chosen, emit, zone.o[0])
        outputs = self.results.end
        self.o = Ring(outputs, chosen.o_slot, chosen.o_count)
        if shape.dst.resident is None:
            outputs += chosen.o_count * chosen.o_slot
        self.r = Ring(outputs, chosen.o_slot, chosen.o_count)
        self.c = Ring(0, chosen.c_slot, chosen.c_count)
        # The same objects again and again, as `Task` tells.
        self._product = cache(self._multiplication)
        # What spatial tiles have in common is computed once.
        self._weights_of = cache(self._weights)
        self._chunks_of, self._box_of, self._rest_of = (
            cache(shape.chunks),
            cache(shape.input_box),
            cache(shape.rest),
        )

    def tasks(self) -> Iterator[Task]:
        shape, group = self.shape, self.plan.group
        for first in range(0, len(shape.tiles), group):
            members = range(first, min(first + group, len(shape.tiles)))
            for image in range(shape.src.n):
                for box in boxes(shape, self.plan.tile):
                    yield from self._block(image, box, members)

    def _block(self, image: int, box: Box, members: range) -> Iterator[Task]:
        """One spatial tile for a group of output tiles, summed up `plan.block` and stored `plan.store` at a time."""
        conv = self.shape.conv_box(box)
        size = self.plan.block
        for first in range(members.start, members.stop, size):
            block = range(first, min(first + size, members.stop))
            part = self._part(first, members)
            if part.start == first:  # ahead of the block's operands, which take longer
                yield from self._load_added(image, box, part)
            rows, _ = self.c.get(("c", image, box, first))
            yield from self._multiply(image, conv, block, rows)
            for index in block:
                part = self._part(index, members)
                if part.start == index > first:
                    yield from self._load_added(image, box, part)
                sums = rows + (index - first) * self.shape.rows(conv)
                yield from self._finish(image, box, conv, index, part, sums)

    def _part(self, index: int, members: range) -> range:
        """The tiles that leave together with tile `index`."""
        first = index - (index - members.start) % self.plan.store
        return range(first, min(first + self.plan.store, members.stop))

    def _channels(self, tiles: range) -> tuple[int, int]:
        """First output channel of tiles, and how many."""
        first, last = self.shape.tiles[tiles.start], self.shape.tiles[tiles.stop - 1]
        return first.first, last.first + last.count - first.first

    def _load_added(self, image: int, box: Box, part: range) -> Iterator[Task]:
        """What is added to the outputs of tiles that leave together."""
        source = self.shape.residual
        if source is not None and source.resident is None:
            start = self._place(source, self.r, image, box, part.start, len(part)).start
            yield from self.emit.load_box(source, image, box, self._channels(part), start, len(part), 0)

    def _finish(self, image: int, box: Box, conv: Box, index: int, part: range, rows: int) -> Iterator[Task]:
        """Outputs of a tile from its sums, and the STORE if it is the last of its part."""
        shape, at = self.shape, index - part.start
        out = self._place(shape.dst, self.o, image, box, part.start, len(part))
        lower = self._place(shape.dst, self.r, image, box, part.start, len(part)) if shape.wide else out
        yield from self.results.made(box, conv, index, rows, (out.tile(at), lower.tile(at)))
        if shape.op.epilogue is not None:
            added = out
            if shape.residual is not None:
                added = self._place(shape.residual, self.r, image, box, part.start, len(part))
            yield from self.results.epilogue(box, out.tile(at), added.tile(at))
        if shape.dst.resident is None and index == part.stop - 1:
            first, count = self._channels(part)
            yield from self.emit.store_box(shape.dst, image, box, (first, count), out.start, len(part))
            if shape.wide:
                dst = shape.dst.moved(shape.op.dst.plane_pitch)
                yield from self.emit.store_box(dst, image, box, (first, count), lower.start, len(part))

    def _place(self, at: TensorRef, ring: Ring, image: int, box: Box, first: int, tiles: int) -> Place:
        """Where a box of outputs is, or of what is added to them, from tile `first` on: in a slot, or held."""
        if at.resident is None:
            start, _ = ring.get((image, box, first))
            return Place(start, tiles, box.w * tiles)
        return self._on_chip(at, image, box).tile(first)

    def _on_chip(self, at: TensorRef, image: int, box: Box) -> Place:
        """Where a box of pixels is that are held."""
        return Place.held(at, image, box, self.config.n)

    def _multiply(self, image: int, conv: Box, block: range, rows: int) -> Iterator[Task]:
        shape, plan_ = self.shape, self.plan
        tile = shape.tiles[block.start]
        chunks = self._chunks_of(tile.piece, plan_.b_limit)
        assert chunks is not None
        begun = False
        whole = None if plan_.chunked else shape.input_box(conv)
        for chunk in chunks:
            loaded = whole or self._box_of(conv, chunk)
            if shape.src.resident is not None:
                at = self._on_chip(shape.src, image, loaded)
            else:
                at, tasks = self._inputs(image, conv, loaded, block, chunk)
                yield from tasks
            # Bytes of 16-bit inputs lie behind one another in a pixel, and their sums in the accumulator.
            apart = at.pixel // shape.planes if self.plan.chunked else shape.plane_vectors
            for part in range(shape.parts):
                for plane in range(shape.planes):
                    place, sums = at.tile(plane * apart), rows + plane
                    yield from self._part_of(
                        conv, loaded, block, chunk, place, sums, (part, plane), begun=begun
                    )
                begun = True

    def _part_of(
        self, conv: Box, loaded: Box, block: range, chunk: Chunk, at: Place, rows: int, which: tuple[int, int], *,
        begun: bool,
    ) -> Iterator[Task]:  # fmt: skip
        """The products of a plane of inputs with one part of the weights of a chunk: all at once, or of a later part
        what is not zero. `which` are part and plane."""
        part, plane = which
        rest = self._rest_of(block, part, chunk) if part else None
        if rest == []:
            return
        b, held = self.b.get(("b", block.start, part, chunk))
        if rest is None:
            if not held:
                yield self.emit.load_constant(self._weights_of(block, part, chunk), b)
            yield self._mm(conv, loaded, block, chunk, at, (b, rows), plane, accumulate=begun)
            return
        pieces = [self._weights_of(range(index, index + 1), part, piece) for index, piece in rest]
        if not held:
            yield self.emit.load_constant(b"".join(pieces), b)
        tiles = self.shape.tiles
        for (index, piece), payload in zip(rest, pieces, strict=True):
            here, sums = at, rows + (index - block.start) * self.shape.rows(conv)
            if self.plan.chunked:
                behind = tiles[index].piece.at - tiles[block.start].piece.at
                here = at.tile(behind + piece.kc[0] - chunk.kc[0])
            one = range(index, index + 1)
            yield self._mm(conv, loaded, one, piece, here, (b, sums), plane, accumulate=True)
            b += len(payload) // self.config.n

    def _weights(self, block: range, part: int, chunk: Chunk) -> bytes:
        return self.shape.weights(block.start, len(block), part, chunk)

    def _inputs(
        self, image: int, conv: Box, box: Box, block: range, chunk: Chunk
    ) -> tuple[Place, Iterator[Task]]:
        """Where inputs of a block are, and LOADs that bring them if they are not there yet."""
        shape = self.shape
        if not self.plan.chunked:
            start, held = self.a.get(("a", image, conv))
            place = Place(start, shape.vectors, box.w * shape.vectors)
            return place, iter(()) if held else self._load_inputs(image, conv, box, start)
        pieces = [shape.tiles[index].piece for index in (block.start, block.stop - 1)]
        vectors = chunk.kc[1] * (1 if pieces[0] == pieces[1] else len(block))
        start, held = self.a.get(("a", image, conv, chunk, pieces[0].at))
        tasks = iter(()) if held else self._load_chunk(image, conv, box, pieces, chunk, start, vectors)
        pixel = vectors * shape.planes
        return Place(start, pixel, box.w * pixel), tasks

    def _load_inputs(self, image: int, conv: Box, box: Box, a: int) -> Iterator[Task]:
        shape = self.shape
        if shape.folded:
            yield self._load_windows(image, conv, box, (0, shape.vectors), a)
            return
        whole = [Piece(0, shape.src.c, 0, shape.vectors)] if shape.aligned else shape.pieces
        for plane, fill in enumerate(shape.fills):
            src, at = shape.src.moved(plane * shape.op.src.plane_pitch), a + plane * shape.plane_vectors
            for piece in whole:
                channels, to = (piece.first, piece.count), at + piece.at
                yield from self.emit.load_box(src, image, box, channels, to, shape.vectors, fill)

    def _load_chunk(
        self, image: int, conv: Box, box: Box, pieces: Sequence[Piece], chunk: Chunk, a: int, vectors: int
    ) -> Iterator[Task]:
        """LOADs of a chunk of the first of `pieces`, or of all of it up to the end of the last."""
        shape, n = self.shape, self.config.n
        if shape.folded:
            yield self._load_windows(image, conv, box, chunk.kc, a)
            return
        start = pieces[0].first + chunk.kc[0] * n
        count = min(vectors * n, pieces[1].first + pieces[1].count - start)
        for plane, fill in enumerate(shape.fills):
            src, at = shape.src.moved(plane * shape.op.src.plane_pitch), a + plane * vectors
            yield from self.emit.load_box(src, image, box, (start, count), at, vectors * shape.planes, fill)

    def _load_windows(self, image: int, conv: Box, box: Box, kc: tuple[int, int], a: int) -> Task:
        """LOAD of `kc` (first, count) vectors of the windows of a box."""
        shape, n = self.shape, self.config.n
        pitch, (_, sx) = shape.src.pixel_pitch, shape.window.stride
        skip = kc[0] * n
        first = (conv.x * sx - shape.window.pad[1]) * pitch + skip
        length = min(shape.span - skip, kc[1] * n)
        rows, fill = (box.y, box.h), shape.fills[0]
        return self.emit.load_windows(
            shape.src, image, rows, first, sx * pitch, conv.w, length, a, kc[1], fill
        )

    def _mm(
        self,
        conv: Box,
        loaded: Box,
        block: range,
        chunk: Chunk,
        at: Place,
        slots: tuple[int, int],
        plane: int,
        *,
        accumulate: bool,
    ) -> Task:
        shape, window, n = self.shape, self.shape.window, self.config.n
        b, c = slots
        tile, count, columns = shape.tiles[block.start], len(block), self._channels(block)[1]
        vectors, pitch = at.pixel, at.row
        first = at.start if self.plan.chunked else at.start + tile.piece.at + chunk.kc[0]
        (sy, sx), (dy, dx) = window.stride, window.dilation
        y = conv.y * sy - window.pad[0] + chunk.ky[0] * dy - loaded.y
        x = 0 if shape.folded else conv.x * sx - window.pad[1] + chunk.kx[0] * dx - loaded.x
        if shape.lines is not None:
            x, columns = x - shape.lines.before, count * n
        steps = chunk.steps
        a_nt = 0 if tile.piece == shape.tiles[block.stop - 1].piece else tile.piece.vectors
        return Task(
            self._product(
                accumulate,
                count,
                chunk,
                conv.h,
                conv.w + shape.more,
                a_nt,
                pitch,
                vectors,
                y,
                x,
                loaded.h,
                loaded.w,
                columns,
                shape.fills[plane],
            ),
            self.layer,
            count * steps * max(conv.h * (conv.w + shape.more), n),
            paces=True,
            addresses=((first + y * pitch + x * vectors) % (1 << 16), b, c),
        )

    def _multiplication(
        self, accumulate: bool, count: int, chunk: Chunk, oy: int, ox: int, a_nt: int, pitch: int, vectors: int,
        y: int, x: int, h: int, w: int, columns: int, pad: int,
    ) -> Mm:  # fmt: skip
        """An MM without its addresses: `count` tiles, `columns` output channels in all, of (oy, ox) rows of A.

        The first of these is at (y, x) of the (h, w) pixels that are there, around which is `pad`; `vectors` is from
        pixel to pixel, `pitch` from row to row.
        """
        (sy, sx), (dy, dx), planes = self.shape.window.stride, self.shape.window.dilation, self.shape.planes
        if self.shape.folded:
            sx, dx = 1, 0
        if self.shape.lines is not None:
            dx = self.shape.lines.step
        (_, ky), (_, kx), (_, kc) = chunk.ky, chunk.kx, chunk.kc
        return Mm(
            accumulate=int(accumulate), nt=count, ky=ky, kx=kx, kc=kc, oy=oy, ox=ox,
            a_nt=a_nt, a_ky=wrapped(dy * pitch, ky), a_kx=taken(dx * vectors, kx), a_kc=1,
            a_oy=wrapped(sy * pitch, oy), a_ox=taken(sx * vectors, ox),
            y=y, x=x, y_ky=taken(dy, ky), y_oy=taken(sy, oy), x_kx=taken(dx, kx), x_ox=taken(sx, ox),
            h=h, w=w, pad=pad,
            b_nt=taken(self.config.n, count), b_ky=wrapped(kx * kc * columns, ky), b_kx=wrapped(kc * columns, kx),
            b_kc=wrapped(columns, kc), b_row=1, c_nt=taken(oy * ox * planes, count), c_oy=taken(ox * planes, oy),
            c_ox=planes, depthwise=int(self.shape.lines is not None),
        )  # fmt: skip
