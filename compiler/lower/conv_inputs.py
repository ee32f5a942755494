"""Inputs of convolutions: where those of a block are on chip, and the LOADs that bring them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise

from weft.compiler.machine.emit import Box, Emitter
from weft.compiler.machine.memory import Place, Ring
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.conv_plan import ConvPlan
from weft.compiler.plan.conv_shape import Chunk, ConvShape, Piece
from weft.compiler.plan.edges import Part


class Inputs:
    """The inputs of one convolution, in the slots of zone A of its plan."""

    def __init__(self, shape: ConvShape, plan: ConvPlan, emit: Emitter) -> None:
        self.shape, self.plan, self.emit = shape, plan, emit
        self.ring = Ring(plan.zones.a[0], plan.a_slot, plan.a_count)
        # What spatial tiles have in common is computed once.
        self._box_of = cache(shape.input_box)

    def of(self, image: int, conv: Box, block: range, chunk: Chunk) -> tuple[Box, Place, Iterator[Task]]:
        """The box of inputs that is on chip for a chunk of a block, where, and the LOADs if it is not there yet."""
        shape = self.shape
        box = self._box_of(conv, chunk) if self.plan.chunked else shape.input_box(conv)
        if shape.src.resident is not None:
            return box, shape.src.on_chip(image, box.y, box.x, shape.config.n), iter(())
        if not self.plan.chunked:
            start, held = self.ring.get(("a", image, conv))
            place = Place(start, shape.vectors, box.w * shape.vectors)
            return box, place, iter(()) if held else self._load(image, conv, box, start)
        pieces = [shape.tiles[index].piece for index in (block.start, block.stop - 1)]
        vectors = chunk.kc[1] * (1 if pieces[0] == pieces[1] else len(block))
        start, held = self.ring.get(("a", image, conv, chunk, pieces[0].at))
        tasks = iter(()) if held else self._load_chunk(image, conv, box, pieces, chunk, start, vectors)
        pixel = vectors * shape.planes
        return box, Place(start, pixel, box.w * pixel), tasks

    def first(
        self, image: int, conv: Box, block: range, chunk: Chunk, parts: Sequence[Part], spans: Sequence[tuple[int, int]]
    ) -> tuple[Box, Place, Iterator[Iterator[Task]]]:  # fmt: skip
        """The same of the first block, with LOADs for each of the parts of its first chunk, and more behind them.

        If there are several `spans` (first, count) of pixels, the parts need the first one, and the others follow. Else
        a part needs what rows of the kernel reach, and the rest of the box comes last.
        """
        box, at, whole = self.of(image, conv, block, chunk)
        if self.plan.chunked or self.shape.src.resident is not None:
            return box, at, iter([whole])
        if len(spans) > 1:
            pieces = [
                self._load(image, conv, box._replace(x=box.x + first, w=count), at.start + first * at.pixel)
                for first, count in spans
            ]
            return box, at, iter([pieces[0], *[iter(())] * (len(parts) - 1), *pieces[1:]])
        if chunk.ky[1] == 1:
            return box, at, iter([whole])
        reached = [self._box_of(conv, part.chunk) for part in parts]
        stops = [0, *accumulate((item.y + item.h - box.y for item in reached), max), box.h]
        rows = [
            self._load(image, conv, box._replace(y=box.y + have, h=need - have), at.start + have * at.row)
            if need > have
            else iter(())
            for have, need in pairwise(stops)
        ]
        return box, at, iter(rows)

    def _load(self, image: int, conv: Box, box: Box, a: int) -> Iterator[Task]:
        """LOADs of all channels of a box."""
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
        shape, n = self.shape, self.shape.config.n
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
        shape, n = self.shape, self.shape.config.n
        pitch, (_, sx) = shape.src.pixel_pitch, shape.window.stride
        skip = kc[0] * n
        first = (conv.x * sx - shape.window.pad[1]) * pitch + skip
        length = min(shape.span - skip, kc[1] * n)
        rows, fill = (box.y, box.h), shape.fills[0]
        return self.emit.load_windows(
            shape.src, image, rows, first, sx * pitch, conv.w, length, a, kc[1], fill
        )
