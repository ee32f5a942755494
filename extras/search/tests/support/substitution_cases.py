"""Segments that rules of substitution have something to do in, small and random."""

from __future__ import annotations

import numpy as np

from weft.compiler.ir.graph import (
    Add,
    Buffer,
    Conv,
    DeviceOp,
    DeviceSegment,
    Multiply,
    Pool,
    Rescale,
    View,
    Window,
)
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


class Drawn:
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

    def grown(self) -> None:
        """One more operator, or one for each part of a concatenation."""
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
                # Two convolutions of the same image, alike but for their weights.
                window = KERNELS[int(rng.integers(3))]
                self.cat([self.conv(src, window, int(rng.integers(1, 4))) for _ in range(2)])
            case _:
                self.rescale(src)

    def segment(self) -> DeviceSegment:
        """What it has become: values that nobody reads are outputs."""
        read = {view.buffer.name for op in self.ops for view in op.sources}

        def seen(view: View) -> View:
            if view.buffer.kind == "input" or view.buffer.name in read:
                return view
            return View(Buffer(view.buffer.name, view.buffer.shape, "output"), view.shape, c=view.c)

        return DeviceSegment("drawn", tuple(op.map_views(seen) for op in self.ops))


def drawn(seed: int, size: int = 7, tables: bool = True, multiply: bool = True) -> DeviceSegment:
    """A random segment of about so many operators."""
    made = Drawn(seed, tables, multiply)
    while len(made.ops) < size:
        made.grown()
    return made.segment()


def joined_maxima() -> DeviceSegment:
    """Two convolutions, one of which is requantised into their concatenation, and a maximum of it."""
    made = Drawn(5)
    made.values = [made.view((1, 12, 12, 16), "input")]
    source = made.values[0]
    one, other = (made.conv(source, KERNELS[at], 32) for at in (0, 1))
    dst = made.view((1, 12, 12, 64))
    made.ops.append(Rescale("wider", one, View(dst.buffer, one.shape, c=0), 0.8, -128, -128))
    made.ops.append(Rescale("copied", other, View(dst.buffer, other.shape, c=32)))
    made.pool(dst, POOLS[0])
    return made.segment()


def dense_block(steps: int = 3) -> DeviceSegment:
    """Each convolution reads what all before it made, copied into one more concatenation each time."""
    made = Drawn(6)
    made.values = [made.view((1, 10, 10, 16), "input")]
    seen = made.conv(made.values[0], KERNELS[0], 16)
    for _ in range(steps):
        new = made.conv(seen, KERNELS[1], 16)
        dst = made.view((1, 10, 10, seen.shape[3] + 16))
        made.ops.append(Rescale(f"old{len(made.ops)}", seen, View(dst.buffer, seen.shape, c=0)))
        made.ops.append(Rescale(f"new{len(made.ops)}", new, View(dst.buffer, new.shape, c=seen.shape[3])))
        seen = dst
    made.conv(seen, KERNELS[0], 16)
    return made.segment()


def atrous(count: int = 1) -> DeviceSegment:
    """Convolutions of a dilation with which outputs see few elements of a kernel, between two of one element."""
    made = Drawn(8)
    made.values = [made.view((1, 12, 12, 16), "input")]
    value = made.conv(made.values[0], KERNELS[0], 16)
    for _ in range(count):
        value = made.conv(value, Window((3, 3), (1, 1), (6, 6), (6, 6, 6, 6)), 32)
    made.conv(value, KERNELS[0], 16)
    return made.segment()


def outputs(segment: DeviceSegment, seed: int, bits: int = 24) -> dict[str, np.ndarray]:
    """The contents of its outputs for random inputs, which do not depend on their order."""
    rng = np.random.default_rng(seed)
    buffers = {
        view.buffer.name: view.buffer
        for op in segment.ops
        for view in op.sources
        if view.buffer.kind == "input"
    }
    inputs = {name: rng.integers(-128, 128, buffers[name].size).astype(np.int8) for name in sorted(buffers)}
    made = run_ops(segment, inputs, bits)
    return {
        op.dst.buffer.name: made[op.dst.buffer.name] for op in segment.ops if op.dst.buffer.kind == "output"
    }
