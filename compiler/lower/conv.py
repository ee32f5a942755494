"""Lowering of convolutions: loops over groups of output tiles, spatial tiles, output tiles, and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from weft.compiler.lower.conv_results import Results
from weft.compiler.machine.emit import Box, Emitter, ceil_div, loop_stride, wrapped_stride
from weft.compiler.machine.memory import Ring
from weft.compiler.machine.target import coordinates
from weft.compiler.machine.tasks import Task
from weft.compiler.machine.tensors import Place, TensorRef
from weft.compiler.plan.conv_parts import Part, first_parts, last_parts, last_rows, row_parts, split_evenly
from weft.compiler.plan.conv_plan import ConvPlan, boxes
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.conv_weights import Chunk
from weft.compiler.plan.pieces import Piece
from weft.hdl.isa import Mm


class Inputs:
    """Inputs of one convolution, in the slots of zone A of its plan."""

    def __init__(self, shape: ConvShape, plan: ConvPlan, emit: Emitter) -> None:
        self.shape, self.plan, self.emit = shape, plan, emit
        self.ring = Ring(plan.zones.a[0], plan.a_slot, plan.a_count)
        # Cached because spatial tiles share boxes.
        self._box_of = cache(shape.input_box)

    def of(self, image: int, conv: Box, block: range, chunk: Chunk) -> tuple[Box, Place, Iterator[Task]]:
        """Return the box of inputs on chip for a chunk of a block, its place, and the LOADs if it is not there yet."""
        shape = self.shape
        box = self._box_of(conv, chunk) if self.plan.chunked else shape.input_box(conv)
        if shape.src.resident is not None:
            return box, shape.src.on_chip(image, box.y, box.x, shape.config.n), iter(())
        if not self.plan.chunked:
            start, is_loaded = self.ring.get(("a", image, conv))
            place = Place(start, shape.vectors, box.w * shape.vectors)
            return box, place, iter(()) if is_loaded else self._load(image, conv, box, start)
        pieces = [shape.tiles[index].piece for index in (block.start, block.stop - 1)]
        # Tiles with pieces of their own need the chunk of each piece.
        vectors = chunk.kc[1] * (1 if pieces[0] == pieces[1] else len(block))
        start, is_loaded = self.ring.get(("a", image, conv, chunk, pieces[0].at))
        tasks = iter(()) if is_loaded else self._load_chunk(image, conv, box, pieces, chunk, start, vectors)
        pixel = vectors * shape.planes
        return box, Place(start, pixel, box.w * pixel), tasks

    def first(
        self,
        image: int,
        conv: Box,
        block: range,
        chunk: Chunk,
        parts: Sequence[Part],
        spans: Sequence[tuple[int, int]],
    ) -> tuple[Box, Place, Iterator[Iterator[Task]]]:
        """Return `of` for the first block, with separate LOADs for each of the parts of its first chunk.

        With several `spans` (first, count) of pixels, the parts need the first span, and the others follow. Else each
        part needs the rows that its kernel rows reach, and the rest of the box comes last.
        """
        box, at, loads_of_all = self.of(image, conv, block, chunk)
        if self.plan.chunked or self.shape.src.resident is not None:
            return box, at, iter([loads_of_all])
        if len(spans) > 1:
            pieces = [
                self._load(image, conv, box._replace(x=box.x + first, w=count), at.start + first * at.pixel)
                for first, count in spans
            ]
            return box, at, iter([pieces[0], *[iter(())] * (len(parts) - 1), *pieces[1:]])
        if chunk.ky[1] == 1:
            return box, at, iter([loads_of_all])
        boxes = [self._box_of(conv, part.chunk) for part in parts]
        stops = [0, *accumulate((item.y + item.h - box.y for item in boxes), max), box.h]
        rows = [
            self._load(image, conv, box._replace(y=box.y + have, h=need - have), at.start + have * at.row)
            if need > have
            else iter(())
            for have, need in pairwise(stops)
        ]
        return box, at, iter(rows)

    def _load(self, image: int, conv: Box, box: Box, a: int) -> Iterator[Task]:
        """LOAD all channels of a box."""
        shape = self.shape
        if shape.folded:
            yield self._load_windows(image, conv, box, (0, shape.vectors), a)
            return
        pieces = [Piece(0, shape.src.c, 0, shape.vectors)] if shape.aligned else shape.pieces
        for plane, fill in enumerate(shape.fills):
            src, at = shape.src.advance(plane * shape.op.src.plane_pitch), a + plane * shape.plane_vectors
            for piece in pieces:
                channels, to = (piece.first, piece.count), at + piece.at
                yield from self.emit.load_box(src, image, box, channels, to, shape.vectors, fill)

    def _load_chunk(
        self, image: int, conv: Box, box: Box, pieces: Sequence[Piece], chunk: Chunk, a: int, vectors: int
    ) -> Iterator[Task]:
        """LOAD a chunk of the first of `pieces`, or all of it up to the end of the last piece."""
        shape, n = self.shape, self.shape.config.n
        if shape.folded:
            yield self._load_windows(image, conv, box, chunk.kc, a)
            return
        start = pieces[0].first + chunk.kc[0] * n
        count = min(vectors * n, pieces[1].first + pieces[1].count - start)
        for plane, fill in enumerate(shape.fills):
            src, at = shape.src.advance(plane * shape.op.src.plane_pitch), a + plane * vectors
            yield from self.emit.load_box(src, image, box, (start, count), at, vectors * shape.planes, fill)

    def _load_windows(self, image: int, conv: Box, box: Box, kc: tuple[int, int], a: int) -> Task:
        """LOAD `kc` (first, count) vectors of the windows of a box."""
        shape, n = self.shape, self.shape.config.n
        pitch, (_, sx) = shape.src.pixel_pitch, shape.window.stride
        skip = kc[0] * n
        first = (conv.x * sx - shape.window.pad[1]) * pitch + skip
        length = min(shape.span - skip, kc[1] * n)
        rows, fill = (box.y, box.h), shape.fills[0]
        return self.emit.load_windows(
            shape.src, image, rows, first, sx * pitch, conv.w, length, a, kc[1], fill
        )


def lower_conv(shape: ConvShape, plan: ConvPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one convolution in sequential order."""
    return _ConvLowering(shape, plan, emit).tasks()


class _Part(NamedTuple):
    """Tiles of outputs that are stored together, in a slot that begins with tile `slot`."""

    slot: int
    tiles: range


class _ConvLowering:
    def __init__(self, shape: ConvShape, chosen: ConvPlan, emit: Emitter) -> None:
        self.shape, self.plan, self.emit = shape, chosen, emit
        self.config, self.layer = shape.config, emit.layer
        zone = chosen.zones
        assert shape.region[0] <= zone.a[0] <= sum(zone.o) <= shape.region[1], (
            "the plan is for another region"
        )
        self.inputs = Inputs(shape, chosen, emit)
        self.b = emit.ring("weights", zone.b[0], chosen.b_slot, chosen.b_count)
        self.results = Results(shape, chosen, emit, zone.o[0])
        outputs = self.results.end
        self.o = Ring(outputs, chosen.o_slot, chosen.o_count)
        if shape.dst.resident is None:
            outputs += chosen.o_count * chosen.o_slot
        self.r = Ring(outputs, chosen.o_slot, chosen.o_count)
        self.c = Ring(0, chosen.c_slot, chosen.c_count)
        self.adds = shape.residual is not None and shape.residual.resident is None  # from DRAM
        self.begins = True  # until the first product
        # Cached because `Tasks.of` encodes each instruction object once (see `Task`).
        self._product = cache(self._multiplication)
        # Cached because all spatial tiles share it.
        self._weights_of = cache(self._weights)
        self._chunks_of, self._nonzero_chunks_of = cache(shape.chunks), cache(shape.packed.nonzero_chunks)

    def tasks(self) -> Iterator[Task]:
        shape, group = self.shape, self.plan.group
        spatial = [(image, box) for image in range(shape.src.n) for box in boxes(shape, self.plan.tile)]
        for first in range(0, len(shape.tiles), group):
            members = range(first, min(first + group, len(shape.tiles)))
            # Only the last group's last box has nothing after it.
            last = len(spatial) if members.stop < len(shape.tiles) else len(spatial) - 1
            if last < len(spatial):
                # The very last box may be split, so that little requantisation remains after the array.
                spatial[-1:] = self._last(*spatial[-1], len(spatial))
            for number, (image, box) in enumerate(spatial):
                yield from self._block(image, box, self._parts(members, ends=number >= last))
        self.results.finish()
        self.emit.ends["weights"] = self.b.end

    def _last(self, image: int, box: Box, count: int) -> list[tuple[int, Box]]:
        """Split the last of `count` boxes in two, if the array then leaves less requantisation to the end."""
        shape, plan_ = self.shape, self.plan
        inputs_stay = plan_.a_count > count or (plan_.group == len(shape.tiles) and plan_.a_count > 1)
        if not shape.pointwise or shape.parts > 1 or plan_.chunked or not inputs_stay:
            return [(image, box)]
        chunks = self._chunks_of(shape.tiles[0].piece, plan_.b_limit)
        if chunks is None or ceil_div(plan_.group, plan_.block) * len(chunks) > plan_.b_count:
            return [(image, box)]  # weights would be loaded a second time
        last = int(last_rows(box.w, count, shape))
        halves = box._replace(w=box.w - last), box._replace(x=box.x + box.w - last, w=last)
        return [(image, half) for half in halves if half.w]

    def _parts(self, members: range, ends: bool) -> dict[int, _Part]:
        """Return, for each tile of a group, the tiles that are stored with it; if nothing follows, the last part is
        split finer."""
        part_of: dict[int, _Part] = {}
        for slot in range(members.start, members.stop, self.plan.store):
            size, first = min(self.plan.store, members.stop - slot), slot
            cut = ends and slot + size == members.stop and self.shape.leaves_in_parts
            for count in last_parts(size) if cut else [size]:
                part = _Part(slot, range(first, first + count))
                part_of |= dict.fromkeys(part.tiles, part)
                first += count
        return part_of

    def _block(self, image: int, box: Box, parts: dict[int, _Part]) -> Iterator[Task]:
        """Compute one spatial tile for a group of output tiles: sums in blocks of `plan.block`, stores in parts."""
        conv = self.shape.conv_box(box)
        size, members = self.plan.block, range(min(parts), max(parts) + 1)
        for first in range(members.start, members.stop, size):
            block = range(first, min(first + size, members.stop))
            # Load the residual before the block's operands, which take longer, unless it has to wait for a slot.
            loaded_early = self.adds and parts[first].tiles.start == first and not self.r.next_slot_in_use
            if loaded_early:
                yield from self._load_added(image, box, parts[first])
            rows, _ = self.c.get(("c", image, box, first))
            yield from self._multiply(image, conv, block, rows)
            for index in block:
                if self.adds and parts[index].tiles.start == index and (index > first or not loaded_early):
                    yield from self._load_added(image, box, parts[index])
                sums = rows + (index - first) * self.shape.accumulator_rows(conv)
                yield from self._finish(image, box, conv, index, parts[index], sums)

    def _channels(self, tiles: range) -> tuple[int, int]:
        """Return the first output channel of tiles, and their number of channels."""
        first, last = self.shape.tiles[tiles.start], self.shape.tiles[tiles.stop - 1]
        return first.first, last.first + last.count - first.first

    def _load_added(self, image: int, box: Box, part: _Part) -> Iterator[Task]:
        """LOAD the residual of tiles that are stored together."""
        source = self.shape.residual
        assert source is not None
        at = self._place(source, self.r, image, box, part)
        yield from self.emit.load_box(source, image, box, self._channels(part.tiles), at.start, at.pixel, 0)

    def _finish(self, image: int, box: Box, conv: Box, index: int, part: _Part, rows: int) -> Iterator[Task]:
        """Compute a tile's outputs from its sums, and STORE them after the last tile of its part."""
        shape, at = self.shape, index - part.tiles.start
        out = self._place(shape.dst, self.o, image, box, part)
        lower = self._place(shape.dst, self.r, image, box, part) if shape.wide else out
        here = out.tile(at)
        yield from self.results.outputs(
            box, conv, index, rows, (here, lower.tile(at) if shape.wide else here)
        )
        if shape.op.epilogue is not None:
            added = out
            if shape.residual is not None:
                added = self._place(shape.residual, self.r, image, box, part)
            yield from self.results.epilogue(box, here, added.tile(at))
        if shape.dst.resident is None and index == part.tiles.stop - 1:
            channels = self._channels(part.tiles)
            yield from self.emit.store_box(shape.dst, image, box, channels, out.start, out.pixel)
            if shape.wide:
                dst = shape.dst.advance(shape.op.dst.plane_pitch)
                yield from self.emit.store_box(dst, image, box, channels, lower.start, lower.pixel)

    def _place(self, at: TensorRef, ring: Ring, image: int, box: Box, part: _Part) -> Place:
        """Return the place of a part's outputs or residual: in a slot, or where the tensor is resident."""
        first, tiles = part.tiles.start, len(part.tiles)
        if at.resident is None:
            start, _ = ring.get((image, box, part.slot))
            return Place(start + box.h * box.w * (first - part.slot), tiles, box.w * tiles)
        return at.on_chip(image, box.y, box.x, self.config.n).tile(first)

    def _multiply(self, image: int, conv: Box, block: range, rows: int) -> Iterator[Task]:
        shape, plan_ = self.shape, self.plan
        tile = shape.tiles[block.start]
        chunks = self._chunks_of(tile.piece, plan_.b_limit)
        assert chunks is not None
        begins, self.begins = self.begins and shape.parts == shape.planes == 1, False
        if begins:
            yield from self._begin(image, conv, block, chunks[0], rows)
        begun = begins
        for chunk in chunks[begins:]:
            loaded, at, tasks = self.inputs.of(image, conv, block, chunk)
            yield from tasks
            # 16-bit inputs have two planes per pixel, side by side, and two sums side by side in the accumulator.
            apart = at.pixel // shape.planes if self.plan.chunked else shape.plane_vectors
            for part in range(shape.parts):
                for plane in range(shape.planes):
                    place, sums = at.tile(plane * apart), rows + plane
                    yield from self._part_of(
                        conv, loaded, block, chunk, place, sums, (part, plane), begun=begun
                    )
                begun = True

    def _begin(self, image: int, conv: Box, block: range, chunk: Chunk, rows: int) -> Iterator[Task]:
        """Emit the first chunk of the operator in parts: inputs that a part needs, its weights, its products."""
        shape, n = self.shape, self.config.n
        b, _ = self.b.get(("b", block.start, 0, chunk))
        payload = self._weights_of(block, 0, chunk)
        columns = len(payload) // n // chunk.steps
        cycles = len(block) * chunk.steps * max(shape.accumulator_rows(conv), n)
        uncut = parts = [Part(chunk, 0, columns * chunk.steps)]
        if columns == n * len(block):  # else the array also reads past the weights of a part
            parts = first_parts(chunk, columns, cycles, shape.target)
        if shape.narrow and not all(self.emit.narrow_part(part.first) for part in parts):
            parts = uncut
        spans = [(0, conv.w)]
        if shape.pointwise and shape.src.resident is None and not self.plan.chunked and len(block) == 1:
            spans = list(split_evenly(conv.w, int(row_parts(cycles, conv.w, shape.target))))
        loaded, at, loads = self.inputs.first(image, conv, block, chunk, parts, spans)
        for number, (part, start, count) in enumerate(parts):
            yield from next(loads, ())
            yield self.emit.load_constant(payload, b + shape.ahead, (start, count), narrow=shape.narrow)
            here = at.tile(part.kc[0] - chunk.kc[0]) if self.plan.chunked else at
            some = conv._replace(w=spans[0][1])
            yield self._mm(some, loaded, block, part, here, (b + start, rows), 0, accumulate=number > 0)
        for start, count in spans[1:]:
            yield from next(loads)
            some = conv._replace(x=conv.x + start, w=count)
            yield self._mm(some, loaded, block, chunk, at, (b, rows + start), 0, accumulate=False)
        for tasks in loads:
            yield from tasks

    def _part_of(
        self,
        conv: Box,
        loaded: Box,
        block: range,
        chunk: Chunk,
        at: Place,
        rows: int,
        which: tuple[int, int],
        *,
        begun: bool,
    ) -> Iterator[Task]:
        """Multiply a plane of inputs with one part of a chunk's weights; `which` is (part, plane).

        Part 0 is multiplied whole; of later parts, only tiles that are not all zero.
        """
        part, plane = which
        nonzero = self._nonzero_chunks_of(block, part, chunk) if part else None
        if nonzero == []:
            return
        b, is_loaded = self.b.get(("b", block.start, part, chunk))
        if nonzero is None:
            if not is_loaded:
                payload = self._weights_of(block, part, chunk)
                yield self.emit.load_constant(payload, b + self.shape.ahead, narrow=self.shape.narrow)
            yield self._mm(conv, loaded, block, chunk, at, (b, rows), plane, accumulate=begun)
            return
        pieces = [self._weights_of(range(index, index + 1), part, piece) for index, piece in nonzero]
        if not is_loaded:
            yield self.emit.load_constant(b"".join(pieces), b)
        tiles = self.shape.tiles
        for (index, piece), payload in zip(nonzero, pieces, strict=True):
            here, sums = at, rows + (index - block.start) * self.shape.accumulator_rows(conv)
            if self.plan.chunked:
                offset = tiles[index].piece.at - tiles[block.start].piece.at
                here = at.tile(offset + piece.kc[0] - chunk.kc[0])
            one = range(index, index + 1)
            yield self._mm(conv, loaded, one, piece, here, (b, sums), plane, accumulate=True)
            b += len(payload) // self.config.n

    def _weights(self, block: range, part: int, chunk: Chunk) -> bytes:
        return self.shape.packed.chunk_bytes(block.start, len(block), part, chunk)

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
            # Lines have extra columns at the start, and `words` vectors of weights per tile.
            x, columns = x - shape.lines.before, count * shape.words
        steps = chunk.steps
        # Tiles of one piece read the same inputs; otherwise each has a piece of its own (`ConvShape.block_sizes`).
        a_nt = 0 if tile.piece == shape.tiles[block.stop - 1].piece else tile.piece.vectors
        return Task(
            self._product(
                accumulate,
                count,
                chunk,
                conv.h,
                conv.w + shape.lead_rows,
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
            count * steps * max(conv.h * (conv.w + shape.lead_rows), n),
            paces=True,
            # In the padding y or x is negative: the address wraps, and coordinates select the fill.
            addresses=((first + y * pitch + x * vectors) % (1 << 16), b, c),
        )

    def _multiplication(
        self,
        accumulate: bool,
        count: int,
        chunk: Chunk,
        oy: int,
        ox: int,
        a_nt: int,
        pitch: int,
        vectors: int,
        y: int,
        x: int,
        h: int,
        w: int,
        columns: int,
        pad: int,
    ) -> Mm:
        """Return an MM without addresses: `count` tiles, `columns` output channels in all, of (oy, ox) rows of A.

        The first row of A is at (y, x) of the (h, w) pixels on chip, which are surrounded by `pad`. `vectors` is the
        step from pixel to pixel, `pitch` from row to row.
        """
        window, planes = self.shape.loop_window, self.shape.planes
        (sy, sx), (dy, dx) = window.stride, window.dilation
        (_, ky), (_, kx), (_, kc) = chunk.ky, chunk.kx, chunk.kc
        down, across = coordinates(window, 0, y, h), coordinates(window, 1, x, w)
        return Mm(
            accumulate=int(accumulate), nt=count, ky=ky, kx=kx, kc=kc, oy=oy, ox=ox,
            a_nt=a_nt, a_ky=wrapped_stride(dy * pitch, ky), a_kx=wrapped_stride(dx * vectors, kx), a_kc=1,
            a_oy=wrapped_stride(sy * pitch, oy), a_ox=wrapped_stride(sx * vectors, ox),
            y=down.first, x=across.first, y_ky=loop_stride(down.element, ky), y_oy=loop_stride(down.output, oy),
            x_kx=loop_stride(across.element, kx), x_ox=loop_stride(across.output, ox),
            h=down.bound, w=across.bound, pad=pad,
            b_nt=loop_stride(self.shape.words, count), b_ky=wrapped_stride(kx * kc * columns, ky),
            b_kx=wrapped_stride(kc * columns, kx), b_kc=wrapped_stride(columns, kc), b_row=1,
            c_nt=loop_stride(oy * ox * planes, count), c_oy=loop_stride(ox * planes, oy), c_ox=planes,
            depthwise=int(self.shape.lines is not None),
        )  # fmt: skip
