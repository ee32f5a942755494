"""Small random segments that substitution rules apply to."""

from __future__ import annotations

import numpy as np

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Rescale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.verify import run_ops

POOLS = (
    Window((3, 3), (2, 2)),
    Window((2, 2), (2, 2)),
    Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    Window((1, 1), (2, 2)),
    Window((2, 2), (1, 1), (1, 1), (0, 0, 1, 1)),
)
KERNELS = (
    Window(),
    Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
)


class RandomSegment:
    """A segment that grows by random operators.

    Parameters
    ----------
    seed : int
    tables : bool
        Whether some operators have a table.
    multiply : bool
        Whether there are products and differences.
    """

    def __init__(self, seed: int, tables: bool = True, multiply: bool = True) -> None:
        self.tables, self.multiply = tables, multiply
        self.rng = np.random.default_rng(seed)
        self.ops: list[DeviceOp] = []
        h, w, c = self.rng.integers(5, 9), self.rng.integers(5, 9), self.rng.integers(1, 6)
        self.values = [self.view((1, int(h), int(w), int(c)), "input")]

    def view(self, shape: tuple[int, int, int, int], kind: str = "temp") -> View:
        return View(Buffer(f"b{len(self.ops)}.{self.rng.integers(1 << 30)}", shape, kind), shape)

    def name(self) -> str:
        return f"op{len(self.ops)}"

    def zero(self) -> int:
        return int(self.rng.choice([-128, -3, 0, 7]))

    def scale(self) -> float:
        return float(self.rng.choice([0.25, 0.61, 1.0, 1.7]))

    def put(self, op: DeviceOp) -> View:
        self.ops.append(op)
        self.values.append(op.dst)
        return op.dst

    def conv(self, src: View, window: Window, channels: int, depth: bool = False) -> View:
        rng = self.rng
        h, w = window.output(*src.shape[1:3])
        outputs = src.shape[3] if depth else channels
        weight = rng.integers(-60, 61, (outputs, *window.kernel, 1 if depth else src.shape[3])).astype(
            np.int16
        )
        return self.put(
            Conv(
                self.name(), src, self.view((1, h, w, outputs)), weight,
                rng.integers(-500, 500, outputs).astype(np.int32), rng.uniform(0.002, 0.02, outputs), window,
                src.shape[3] if depth else 1, 0, 0, int(rng.choice([-128, -20])), 127,
            )
        )  # fmt: skip

    def pool(self, src: View, window: Window) -> View:
        h, w = window.output(*src.shape[1:3])
        return self.put(Pool(self.name(), src, self.view((1, h, w, src.shape[3])), "max", window))

    def rescale(self, src: View) -> View:
        table = self.rng.integers(-128, 128, 256).astype(np.int8)
        lookup = [None, None, np.sort(table), table][self.rng.integers(4 if self.tables else 2)]
        dst = self.view(src.shape)
        return self.put(Rescale(self.name(), src, dst, self.scale(), self.zero(), self.zero(), lookup=lookup))

    def pair(self, one: View, other: View) -> View:
        dst = self.view(one.shape)
        if self.rng.integers(2) or not self.multiply:
            return self.put(
                Add(
                    self.name(),
                    one,
                    other,
                    dst,
                    self.scale(),
                    self.scale() * int(self.rng.choice([-1, 1]) if self.multiply else 1),
                    self.zero(),
                    self.zero(),
                )
            )
        return self.put(Multiply(self.name(), one, other, dst, 0.01, self.zero(), self.zero()))

    def cat(self, parts: list[View]) -> View:
        channels = sum(part.shape[3] for part in parts)
        dst = self.view((*parts[0].shape[:3], channels))
        at = 0
        for part in parts:
            view = View(dst.buffer, part.shape, c=at)
            scale = self.scale()
            zero = self.zero()
            self.ops.append(
                Rescale(self.name(), part, view, scale, zero, zero if scale == 1.0 else self.zero())
            )
            at += part.shape[3]
        self.values.append(dst)
        return dst

    def grow(self) -> None:
        """Add an operator, or one for each part of a concatenation."""
        rng = self.rng
        src = self.values[int(rng.integers(max(len(self.values) - 3, 0), len(self.values)))]
        alike = [value for value in self.values if value.shape[:3] == src.shape[:3]]
        match int(rng.integers(7)):
            case 0:
                self.conv(src, KERNELS[int(rng.integers(3))], int(rng.integers(1, 6)))
            case 1:
                self.conv(src, KERNELS[int(rng.integers(2))], 0, depth=True)
            case 2 if min(src.shape[1:3]) > 2:
                self.pool(src, POOLS[int(rng.integers(len(POOLS)))])
            case 3:
                self.pair(src, self.rescale(src))
            case 4 if len(alike) > 1:
                self.cat([alike[int(at)] for at in rng.permutation(len(alike))[: int(rng.integers(2, 4))]])
            case 5:
                # Two convolutions of one image that differ only in weights.
                window = KERNELS[int(rng.integers(3))]
                self.cat([self.conv(src, window, int(rng.integers(1, 4))) for _ in range(2)])
            case _:
                self.rescale(src)

    def segment(self) -> DeviceSegment:
        """Return the current segment; unread values are its outputs."""
        read = {view.buffer.name for op in self.ops for view in op.sources}

        def seen(view: View) -> View:
            if view.buffer.kind == "input" or view.buffer.name in read:
                return view
            return View(Buffer(view.buffer.name, view.buffer.shape, "output"), view.shape, c=view.c)

        return DeviceSegment("drawn", tuple(op.map_views(seen) for op in self.ops))


def draw_segment(seed: int, size: int = 7, tables: bool = True, multiply: bool = True) -> DeviceSegment:
    """Return a random segment of about `count` operators."""
    builder = RandomSegment(seed, tables, multiply)
    while len(builder.ops) < size:
        builder.grow()
    return builder.segment()


def joined_maxima() -> DeviceSegment:
    """Return two convolutions, one requantised into their concatenation, and its maximum."""
    builder = RandomSegment(5)
    builder.values = [builder.view((1, 12, 12, 16), "input")]
    source = builder.values[0]
    one, other = (builder.conv(source, KERNELS[at], 32) for at in (0, 1))
    dst = builder.view((1, 12, 12, 64))
    builder.ops.append(Rescale("wider", one, View(dst.buffer, one.shape, c=0), 0.8, -128, -128))
    builder.ops.append(Rescale("copied", other, View(dst.buffer, other.shape, c=32)))
    builder.pool(dst, POOLS[0])
    return builder.segment()


def dense_block(steps: int = 3) -> DeviceSegment:
    """Return convolutions that each read all earlier results, copied into one more concatenation each time."""
    builder = RandomSegment(6)
    builder.values = [builder.view((1, 10, 10, 16), "input")]
    joined = builder.conv(builder.values[0], KERNELS[0], 16)
    for _ in range(steps):
        new = builder.conv(joined, KERNELS[1], 16)
        dst = builder.view((1, 10, 10, joined.shape[3] + 16))
        builder.ops.append(Rescale(f"old{len(builder.ops)}", joined, View(dst.buffer, joined.shape, c=0)))
        builder.ops.append(
            Rescale(f"new{len(builder.ops)}", new, View(dst.buffer, new.shape, c=joined.shape[3]))
        )
        joined = dst
    builder.conv(joined, KERNELS[0], 16)
    return builder.segment()


def atrous(count: int = 1) -> DeviceSegment:
    """Return a convolution whose dilation hides most kernel elements, between two 1 x 1 convolutions."""
    builder = RandomSegment(8)
    builder.values = [builder.view((1, 12, 12, 16), "input")]
    value = builder.conv(builder.values[0], KERNELS[0], 16)
    for _ in range(count):
        value = builder.conv(value, Window((3, 3), (1, 1), (6, 6), (6, 6, 6, 6)), 32)
    builder.conv(value, KERNELS[0], 16)
    return builder.segment()


def outputs(segment: DeviceSegment, seed: int, bits: int = 24) -> dict[str, np.ndarray]:
    """Return outputs for random inputs that do not depend on the order of buffers."""
    rng = np.random.default_rng(seed)
    buffers = {
        view.buffer.name: view.buffer
        for op in segment.ops
        for view in op.sources
        if view.buffer.kind == "input"
    }
    inputs = {name: rng.integers(-128, 128, buffers[name].size).astype(np.int8) for name in sorted(buffers)}
    values = run_ops(segment, inputs, bits)
    return {
        op.dst.buffer.name: values[op.dst.buffer.name] for op in segment.ops if op.dst.buffer.kind == "output"
    }
