"""Pooling, addition and requantisation to tasks: LOAD a tile, VEC, STORE, in rings of three."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Add, Pool, Rescale, Window
from weft.compiler.ir.scales import quantise_pair, quantise_scale
from weft.compiler.machine.emit import Box, Emitter, ceil_div, parameters, taken
from weft.compiler.machine.limits import COUNT_MAX, STRIDE_MAX
from weft.compiler.machine.memory import Constants, Ring, Source
from weft.compiler.machine.tasks import Task, scratchpad
from weft.hdl.isa import PARAMETER_VECTORS, Reduce, Vec
from weft.hdl.isa import Source as VecSource
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class _Job:
    """An operator in the common form: window over `src`, optional second operand, one scale per element count."""

    op: Pool | Add | Rescale
    src: Source
    other: Source | None
    dst: Source
    window: Window

    @property
    def reduce(self) -> Reduce:
        if isinstance(self.op, Pool):
            return Reduce.MAX if self.op.kind == "max" else Reduce.SUM
        return Reduce.NONE

    @property
    def x_zero(self) -> int:
        return self.op.a_zero if isinstance(self.op, Add) else self.op.x_zero


def lower_vector(
    op: Pool | Add | Rescale,
    sources: tuple[Source, ...],
    dst: Source,
    config: Config,
    constants: Constants,
    layer: int,
) -> list[Task] | None:
    """Tasks of one operator in sequential order, or None if not even its smallest tile fits on chip."""
    src, other = sources[0], sources[1] if len(sources) > 1 else None
    window = op.window if isinstance(op, Pool) else Window()
    if window == Window() and all(item.flattens for item in (src, other or src, dst)):
        src, dst, other = src.flattened(), dst.flattened(), other.flattened() if other else None
    job = _Job(op, src, other, dst, window)
    tile = _choose(job, config)
    return None if tile is None else list(_VectorLowering(job, tile, config, constants, layer).tasks())


@dataclass(frozen=True)
class _TileSize:
    h: int
    w: int
    channels: int
    src: int  # vectors of a source tile
    out: int
    slots: int


def pointwise(op: Add | Rescale, config: Config) -> bytes:
    """The parameter block of an addition or a requantisation."""
    if isinstance(op, Rescale):
        return _uniform(config, -op.x_zero, *quantise_scale(op.scale, config.mantissa_bits))
    mantissa, _, shift = quantise_pair(op.a_scale, op.b_scale, config.mantissa_bits)
    return _uniform(config, -op.a_zero, mantissa, shift)


def _uniform(config: Config, bias: int, mantissa: int, shift: int) -> bytes:
    """A parameter block that is the same for all columns."""
    return parameters(config, *(np.full(config.n, value) for value in (bias, mantissa, shift)))


def pointwise_cycles(op: Add | Rescale, config: Config) -> tuple[float, float]:
    """What an operator takes by itself, by estimate, and what of that the bus: each tensor once."""
    n, h, w, c = op.dst.shape
    added = int(isinstance(op, Add))
    bus = n * h * w * (2 + added) * c / config.bus_bytes
    return max(n * h * w * ceil_div(c, config.n) * (config.groups + added), bus) + 300, bus


def pool_cycles(op: Pool, config: Config) -> float:
    """What a pooling takes by itself, by estimate: every element of a window read, each tensor moved once."""
    n, h, w, c = op.dst.shape
    vec = n * h * w * ceil_div(c, config.n) * config.groups * math.prod(op.window.kernel)
    return max(vec, (math.prod(op.src.shape) + math.prod(op.dst.shape)) / config.bus_bytes) + 300


def second_operand(op: Add, config: Config, b: int, rows: int, pitch: int, vectors: int) -> dict[str, int]:
    """Fields of the `Vec` of an addition: its second operand, from `b` on, in `rows` rows of `pitch` vectors."""
    _, mantissa, _ = quantise_pair(op.a_scale, op.b_scale, config.mantissa_bits)
    return {"add": 1, "b": b, "b_ob": 1, "b_oy": taken(pitch, rows), "b_ox": vectors,
            "b_mantissa": mantissa, "b_zero": op.b_zero}  # fmt: skip


def _choose(job: _Job, config: Config) -> _TileSize | None:
    """The largest tile of which three sets fit, else two, else one; whole rows and all channels first."""
    n = config.n
    room = config.scratchpad_size - _parameter_slots(config) * PARAMETER_VECTORS
    per_pixel = ceil_div(job.dst.c, n)
    channels = [job.dst.c] + [n << k for k in reversed(range(16)) if n << k < job.dst.c]
    for slots in (3, 2, 1):
        for count in channels:
            vectors = ceil_div(count, n)
            for w in _halves(min(job.dst.w, COUNT_MAX)):
                for h in _halves(min(job.dst.h, COUNT_MAX)):
                    src_h, src_w = _extent(job, 0, h, job.src.h), _extent(job, 1, w, job.src.w)
                    src, out = src_h * src_w * vectors, h * w * vectors
                    fits = slots * (src * (2 if job.other else 1) + out) <= room
                    strides = (
                        src_w * vectors * max(job.window.stride[0], job.window.dilation[0]) <= STRIDE_MAX
                    )
                    # A few tiles at least, so that the units overlap.
                    large = h * w * per_pixel > 2048 and (h > 1 or w > 64) and slots == 3
                    if fits and strides and not large and vectors * job.window.stride[1] <= STRIDE_MAX:
                        return _TileSize(h, w, count, src, out, slots)
    return None


def _parameter_slots(config: Config) -> int:
    """Parameter blocks kept at a time: as many as averages at edges need, in at most a sixteenth of the scratchpad."""
    return max(2, min(36, config.scratchpad_size // 16 // PARAMETER_VECTORS))


def _halves(size: int) -> Iterator[int]:
    while True:
        yield size
        if size == 1:
            return
        size = ceil_div(size, 2)


def _extent(job: _Job, axis: int, count: int, size: int) -> int:
    window = job.window
    return min(
        size, (count - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis] + 1
    )


class _VectorLowering:
    def __init__(self, job: _Job, tile: _TileSize, config: Config, constants: Constants, layer: int) -> None:
        self.job, self.tile, self.config, self.layer = job, tile, config, layer
        self.emit = Emitter(config, constants, layer)
        # Outputs and parameters lie at the top, sources at the bottom, so that they tend to be in different banks.
        slots = _parameter_slots(config)
        top = config.scratchpad_size - slots * PARAMETER_VECTORS
        self.p = Ring(top, PARAMETER_VECTORS, slots)
        self.o = Ring(top - tile.slots * tile.out, tile.out, tile.slots)
        self.a = Ring(0, tile.src, tile.slots)
        self.b = Ring(tile.slots * tile.src, tile.src, tile.slots)

    def tasks(self) -> Iterator[Task]:
        dst, tile = self.job.dst, self.tile
        for image in range(dst.n):
            for first in range(0, dst.c, tile.channels):
                channels = (first, min(tile.channels, dst.c - first))
                for y in range(0, dst.h, tile.h):
                    for x in range(0, dst.w, tile.w):
                        box = Box(y, x, min(tile.h, dst.h - y), min(tile.w, dst.w - x))
                        yield from self._tile(image, channels, box)

    def _tile(self, image: int, channels: tuple[int, int], box: Box) -> Iterator[Task]:
        job = self.job
        key = (image, channels, box)
        vectors = ceil_div(channels[1], self.config.n)
        a, o = self.a.get(key)[0], self.o.get(key)[0]
        loaded = self._input_box(box)
        yield from self.emit.load_box(job.src, image, loaded, channels, a, vectors, job.x_zero)
        b = 0
        if job.other is not None:
            b, _ = self.b.get(key)
            yield from self.emit.load_box(job.other, image, loaded, channels, b, vectors, 0)
        for part, count in self._parts(box):
            params, held = self.p.get(count)
            if not held:
                yield self.emit.load_constant(self._parameters(count), params)
            yield self._vec(box, part, loaded, vectors, (a, b, o, params))
        yield from self.emit.store_box(job.dst, image, box, channels, o, vectors)

    def _input_box(self, box: Box) -> Box:
        window, src = self.job.window, self.job.src
        y, h = window.reach(0, box.y, box.h, src.h)
        x, w = window.reach(1, box.x, box.w, src.w)
        return Box(y, x, h, w)

    def _parts(self, box: Box) -> list[tuple[Box, int]]:
        """Boxes of equal divisor, with that divisor: only averages at the edges differ."""
        job = self.job
        if not (isinstance(job.op, Pool) and job.op.kind == "average"):
            return [(box, 1)]
        rows, columns = self._runs(0, box.y, box.h), self._runs(1, box.x, box.w)
        return [(Box(y, x, h, w), a * b) for y, h, a in rows for x, w, b in columns]

    def _runs(self, axis: int, first: int, count: int) -> list[tuple[int, int, int]]:
        """(first, length, elements) of runs of outputs whose windows count the same number of elements."""
        assert isinstance(self.job.op, Pool)
        window, size = self.job.window, (self.job.src.h, self.job.src.w)[axis]
        low, high = (-window.pad[axis], size + window.pad[axis + 2]) if self.job.op.include_pad else (0, size)
        runs: list[tuple[int, int, int]] = []
        for index in range(first, first + count):
            start = index * window.stride[axis] - window.pad[axis]
            taps = sum(low <= start + k * window.dilation[axis] < high for k in range(window.kernel[axis]))
            if runs and runs[-1][2] == taps:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1, taps)
            else:
                runs.append((index, 1, taps))
        return runs

    def _parameters(self, count: int) -> bytes:
        op, config = self.job.op, self.config
        if not isinstance(op, Pool):
            return pointwise(op, config)
        elements = op.window.kernel[0] * op.window.kernel[1] if self.job.reduce == Reduce.SUM else 1
        bias = -op.x_zero * elements  # out of range reads x_zero, so every element is offset by it
        return _uniform(config, bias, *quantise_scale(op.scale / max(count, 1), config.mantissa_bits))

    def _vec(self, box: Box, part: Box, loaded: Box, vectors: int, slots: tuple[int, int, int, int]) -> Task:
        job, window, op = self.job, self.job.window, self.job.op
        a, b, o, params = slots
        pitch = loaded.w * vectors
        y = part.y * window.stride[0] - window.pad[0] - loaded.y
        x = part.x * window.stride[1] - window.pad[1] - loaded.x
        out = (part.y - box.y) * box.w * vectors + (part.x - box.x) * vectors
        reads = [scratchpad(a, loaded.h * pitch), scratchpad(params, PARAMETER_VECTORS)]
        second: dict[str, int] = {}
        if isinstance(op, Add):
            second = second_operand(op, self.config, b, part.h, pitch, vectors)
            reads.append(scratchpad(b, loaded.h * pitch))
        return Task(
            Vec(
                source=VecSource.SCRATCHPAD, reduce=job.reduce, ob=vectors, oy=part.h, ox=part.w,
                ry=window.kernel[0], rx=window.kernel[1],
                src=(a + y * pitch + x * vectors) % (1 << 16), src_ob=1,
                src_oy=taken(window.stride[0] * pitch, part.h), src_ox=window.stride[1] * vectors,
                src_ry=taken(window.dilation[0] * pitch, window.kernel[0]), src_rx=window.dilation[1] * vectors,
                y=y, x=x, y_oy=window.stride[0], y_ry=window.dilation[0],
                x_ox=window.stride[1], x_rx=window.dilation[1],
                h=loaded.h, w=loaded.w, pad=job.x_zero,
                dst=o + out, dst_ob=1, dst_oy=taken(box.w * vectors, part.h), dst_ox=vectors,
                params=params, zero=op.y_zero, low=op.low, high=op.high, **second,
            ),
            tuple(reads),
            (scratchpad(o, box.h * box.w * vectors),),
            self.layer,
            part.h * part.w * vectors * window.kernel[0] * window.kernel[1] * self.config.groups,
            paces=True,
        )  # fmt: skip
