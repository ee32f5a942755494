"""Rewrites that change rounding, against bounds on the effect of one rounding more or less."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Rescale
from weft.compiler.ir.views import Buffer, View, whole_view
from weft.compiler.ir.windows import Window
from weft.compiler.verify import verify_segment
from weft.extras.search.substitution.rounding import (
    INTO_PRODUCER,
    INTO_READER,
    MEAN_FIRST,
    MEAN_LAST,
    STEPS,
    rewrites,
)
from weft.extras.search.tests.support.substitution_cases import POOLS, draw_segment, outputs

SHAPE = (1, 6, 8, 4)
KERNEL = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
PLAIN_POOLS = (Window((2, 2), (2, 2)), Window((3, 3), (1, 1)), Window((6, 8), (1, 1)))


def view(name: str, shape: tuple[int, int, int, int] = SHAPE, kind: str = "temp") -> View:
    return whole_view(Buffer(name, shape, kind))


@dataclass
class Draw:
    """Two adjacent operators that a rewrite matches, with random parameters."""

    rng: np.random.Generator

    def zero(self) -> int:
        return int(self.rng.integers(-100, 101))

    def scale(self, low: float = 0.05, high: float = 0.9) -> float:
        return float(self.rng.uniform(low, high))

    def clamp(self) -> dict[str, int]:
        low, high = sorted(int(value) for value in self.rng.choice(np.arange(-128, 128), 2, replace=False))
        return [{}, {"low": low, "high": high}][self.rng.integers(2)]

    def conv(
        self, src: View, dst: View, window: Window, x_zero: int, y_zero: int, scale: float, **more: int
    ) -> Conv:
        channels, depth = src.shape[3], bool(self.rng.integers(2)) and window != Window()
        weight = self.rng.integers(-90, 91, (dst.shape[3], *window.kernel, 1 if depth else channels))
        bias = self.rng.integers(-9000, 9000, dst.shape[3]).astype(np.int32)
        factors = self.rng.uniform(0.5, 1, dst.shape[3]) * scale
        return Conv(
            "conv", src, dst, weight.astype(np.int16), bias, factors, window, channels if depth else 1,
            x_zero, y_zero, more.get("low", -128), more.get("high", 127),
        )  # fmt: skip

    def pairwise(self, kind: type, one: View, other: View, dst: View, zero: int) -> DeviceOp:
        zeros = self.zero(), self.zero()
        if kind is Multiply:
            return Multiply("op", one, other, dst, self.scale(0.002, 0.02), *zeros, zero, **self.clamp())
        scales = self.scale(), self.scale() * int(self.rng.choice([-1, 1]))
        return Add("op", one, other, dst, *scales, *zeros, zero, **self.clamp())

    def op_then_rescale(self, kind: str) -> tuple[list[DeviceOp], float]:
        """Return an operator followed by a requantisation, and the bound on its output's change."""
        x, y, middle, zero = view("x", kind="input"), view("y", kind="input"), view("m"), self.zero()
        op: DeviceOp
        match kind:
            case "conv":
                op = self.conv(x, middle, KERNEL, self.zero(), zero, 0.01, **self.clamp())
            case "pooled conv":
                middle = view("m", (1, *POOLS[1].output(6, 8), 4))
                op = self.conv(x, middle, KERNEL, self.zero(), zero, 0.01).replace(pool=POOLS[1])
            case "add" | "multiply":
                op = self.pairwise({"add": Add, "multiply": Multiply}[kind], x, y, middle, zero)
            case "rescale":
                op = Rescale("op", x, middle, self.scale(), self.zero(), zero, **self.clamp())
            case _:
                window = PLAIN_POOLS[int(self.rng.integers(3))]
                middle = view("m", (1, *window.output(6, 8), 4))
                op = Pool("op", x, middle, "average", window, self.scale(), self.zero(), zero, **self.clamp())
        scale = self.scale(0.1, 3)
        then = Rescale(
            "then", middle, view("out", middle.shape, "output"), scale, zero, self.zero(), **self.clamp()
        )
        return [op, then], scale / 2 + 1

    def rescale_then_op(self, kind: str) -> tuple[list[DeviceOp], float]:
        """Return a requantisation without saturation, followed by its reader."""
        x, y, middle, out = (
            view("x", kind="input"),
            view("y", kind="input"),
            view("m"),
            view("out", kind="output"),
        )
        scale, zero, x_zero = (
            self.scale(0.1, 0.45),
            int(self.rng.integers(-10, 11)),
            int(self.rng.integers(-10, 11)),
        )
        first = Rescale("first", x, middle, scale, x_zero, zero)
        op: DeviceOp
        match kind:
            case "conv":
                op = self.conv(middle, out, KERNEL, zero, self.zero(), 0.01)
                assert isinstance(op, Conv)
                # Half a step per element, and in the bias.
                reach = np.abs(op.weight).sum(axis=(1, 2, 3)) * 0.5 + 0.5 * scale
                return [first, op], float((reach * op.scale).max()) + 1
            case "add, first operand" | "add, second operand":
                op = self.pairwise(Add, x, y, out, self.zero())
                assert isinstance(op, Add)
                if kind.startswith("add, first"):
                    return [first, op.replace(a=middle, b=y, a_zero=zero)], 0.5 * op.a_scale + 1
                return [first, op.replace(a=y, b=middle, b_zero=zero)], 0.5 * abs(op.b_scale) + 1
            case "rescale":
                op = Rescale("op", middle, out, 1.7, zero, self.zero(), lookup=None, **self.clamp())
            case _:
                window = PLAIN_POOLS[int(self.rng.integers(3))]
                out = view("out", (1, *window.output(6, 8), 4), "output")
                op = Pool("op", middle, out, kind.split()[0], window, 1.7, zero, self.zero(), **self.clamp())
        return [first, op], 0.5 * 1.7 + 1

    def convolution_then_mean(self) -> tuple[list[DeviceOp], float]:
        """Return a 1 x 1 convolution without saturation, followed by a mean."""
        window = PLAIN_POOLS[int(self.rng.integers(3))]
        zero, scale = int(self.rng.integers(-30, 31)), self.scale(0.2, 2)
        conv = self.conv(view("x", kind="input"), view("m"), Window(), self.zero(), zero, 0.0005)
        out = view("out", (1, *window.output(6, 8), 4), "output")
        pool = Pool("pool", conv.dst, out, "average", window, scale, zero, self.zero(), **self.clamp())
        reach = np.abs(conv.weight).sum(axis=(1, 2, 3)) * conv.scale
        return [conv, pool], float(reach.max() * scale) * 0.5 + 0.5 * scale + 1

    def mean_then_convolution(self, steps: int) -> tuple[list[DeviceOp], float]:
        """Return a mean without saturation, followed by a 1 x 1 convolution."""
        window = [*PLAIN_POOLS, KERNEL][int(self.rng.integers(4))]
        zero, scale = int(self.rng.integers(-10, 11)), self.scale(0.2, 0.9)
        means = view("m", (1, *window.output(6, 8), 4))
        pool = Pool(
            "pool",
            view("x", kind="input"),
            means,
            "average",
            window,
            scale,
            int(self.rng.integers(-9, 10)),
            zero,
        )
        out = view("out", (*means.shape[:3], 3), "output")
        conv = self.conv(means, out, Window(), zero, self.zero(), 0.004, **self.clamp())
        reach = np.abs(conv.weight).sum(axis=(1, 2, 3)) * 0.5 + 0.5 * scale
        return [pool, conv], float((reach * conv.scale).max()) + 0.5 * steps + 1

    def case(self, rule: str, kind: str) -> tuple[list[DeviceOp], float]:
        """Return operators that a rewrite matches, and the bound on their output's change."""
        if rule in (INTO_PRODUCER, INTO_READER):
            return self.op_then_rescale(kind) if rule == INTO_PRODUCER else self.rescale_then_op(kind)
        return self.convolution_then_mean() if rule == MEAN_FIRST else self.mean_then_convolution(int(kind))


CASES = [
    *((INTO_PRODUCER, kind) for kind in ("conv", "pooled conv", "add", "multiply", "rescale", "average")),
    *(
        (INTO_READER, kind)
        for kind in ("conv", "add, first operand", "add, second operand", "average pool", "max pool")
    ),
    (MEAN_FIRST, "mean"),
    (MEAN_LAST.format(2), "2"),
    (MEAN_LAST.format(4), "4"),
]


@pytest.mark.parametrize(("rule", "kind"), CASES)
def test_fewer_roundings_stay_within_the_bound(rule: str, kind: str) -> None:
    changed = 0
    for seed in range(30):
        draw = Draw(np.random.default_rng(seed))
        ops, bound = draw.case(rule, kind)
        segment = DeviceSegment("drawn", tuple(ops))
        verify_segment(segment)
        actual = [item for item in rewrites(segment) if item.rule == rule]
        assert len(actual) == 1, seed
        verify_segment(actual[0].segment)
        apart = max_difference(segment, actual[0].segment, seed)
        assert apart <= bound, seed
        changed += apart > 0
    assert changed  # it does round otherwise, so it belongs here


def max_difference(one: DeviceSegment, other: DeviceSegment, seed: int) -> int:
    """Return the largest difference of outputs on random inputs."""
    wanted, changed = outputs(one, seed), outputs(other, seed)
    assert wanted.keys() == changed.keys()
    return max(int(np.abs(values.astype(int) - changed[name]).max()) for name, values in wanted.items())


def changed(ops: list[DeviceOp], at: int, **fields: object) -> DeviceSegment:
    return DeviceSegment("drawn", tuple(op.replace(**fields) if i == at else op for i, op in enumerate(ops)))


def test_saturation_is_kept() -> None:
    """A zero point at the end of a range makes saturation a ReLU, which is not linear."""
    ops, _ = Draw(np.random.default_rng(1)).convolution_then_mean()
    assert isinstance(ops[1], Pool)
    assert list(rewrites(changed(ops, 0, y_zero=ops[1].x_zero, low=ops[1].x_zero - 15))) == []
    relu = [ops[0].replace(y_zero=-128), ops[1].replace(x_zero=-128)]
    assert list(rewrites(DeviceSegment("drawn", tuple(relu)))) == []
    ops, _ = Draw(np.random.default_rng(1)).rescale_then_op("conv")
    assert len(list(rewrites(DeviceSegment("drawn", tuple(ops))))) == 1
    assert list(rewrites(changed(ops, 0, low=-20))) == []
    assert list(rewrites(changed(ops, 0, high=20))) == []
    assert list(rewrites(changed(ops, 0, scale=2.0))) == []


def test_zero_points_that_differ_are_no_rewrite() -> None:
    for ops, _ in (
        Draw(np.random.default_rng(2)).convolution_then_mean(),
        *(Draw(np.random.default_rng(2)).op_then_rescale(kind) for _, kind in CASES[:6]),
    ):
        assert list(rewrites(changed(ops, 0, y_zero=ops[0].y_zero + 1))) == []
    for _, kind in CASES[6:-3]:
        ops, _ = Draw(np.random.default_rng(2)).rescale_then_op(kind)
        assert list(rewrites(changed(ops, 0, y_zero=ops[0].y_zero + 1))) == []


def test_values_with_other_readers_are_kept() -> None:
    """Also values that leave the device."""
    ops, _ = Draw(np.random.default_rng(3)).op_then_rescale("add")
    other = Rescale("other", ops[0].dst, view("more", kind="output"))
    assert [item.operator for item in rewrites(DeviceSegment("drawn", (*ops, other)))] == []
    output = view("m", kind="output")
    assert (
        list(
            rewrites(
                DeviceSegment(
                    "drawn",
                    (
                        ops[0].replace(dst=output),
                        ops[1].map_views(lambda item: output if item.buffer.name == "m" else item),
                    ),
                )
            )
        )
        == []
    )
    # One reader absorbs the requantisation, and the other keeps it.
    ops, _ = Draw(np.random.default_rng(3)).rescale_then_op("conv")
    pool = Pool("pool", ops[0].dst, view("more", kind="output"), "max", Window())
    actual = list(rewrites(DeviceSegment("drawn", (*ops, pool))))
    assert [len(item.segment.ops) for item in actual if item.operator == "conv"] == [3]


def test_means_with_padding_or_of_windows_are_no_rewrite() -> None:
    ops, _ = Draw(np.random.default_rng(4)).convolution_then_mean()
    padded = Window((2, 2), (2, 2), (1, 1), (0, 0, 2, 2))
    out = view("out", (1, *padded.output(6, 8), 4), "output")
    assert list(rewrites(changed(ops, 1, window=padded, dst=out))) == []
    assert list(rewrites(changed(ops, 1, kind="max", scale=1.0))) == []
    weight = np.ones((4, 3, 3, 4), np.int16)
    assert list(rewrites(changed(ops, 0, window=KERNEL, weight=weight, groups=1))) == []
    assert list(rewrites(changed(ops, 0, pool=Window()))) == []


def test_convolutions_that_do_not_move_before_their_means() -> None:
    """Padding counts, more channels are written than read, or the mean saturates."""
    ops, _ = Draw(np.random.default_rng(6)).mean_then_convolution(2)
    pool, conv = ops
    assert isinstance(pool, Pool)
    assert isinstance(conv, Conv)
    assert {item.rule for item in rewrites(DeviceSegment("drawn", tuple(ops)))} == {
        MEAN_LAST.format(steps) for steps in STEPS
    }
    means = view("m", SHAPE)
    out = view("out", (*SHAPE[:3], 3), "output")
    for include in (False, True):
        padded = [
            pool.replace(window=KERNEL, include_pad=include, dst=means),
            conv.replace(src=means, dst=out),
        ]
        assert bool(list(rewrites(DeviceSegment("drawn", tuple(padded))))) != include
    assert list(rewrites(changed(ops, 0, low=-20))) == []
    assert list(rewrites(changed(ops, 0, kind="max", scale=1.0, x_zero=pool.y_zero))) == []
    assert list(rewrites(changed(ops, 0, y_zero=pool.y_zero + 1))) == []
    assert list(rewrites(changed(ops, 1, pool=Window()))) == []
    more = {name: np.repeat(getattr(conv, name), 2, axis=0) for name in ("weight", "bias", "scale")}
    wide = view("out", (*conv.dst.shape[:3], 6), "output")
    assert list(rewrites(changed(ops, 1, dst=wide, **more))) == []


def test_random_segments_stay_valid() -> None:
    """Apply all rewrites in sequence to the rules' random segments: concatenations, tables, parts of channels."""
    done: Counter[str] = Counter()
    for seed in range(150):
        segment = draw_segment(seed, 9)
        while (item := next(rewrites(segment), None)) is not None:
            verify_segment(item.segment)
            assert len(item.segment.ops) <= len(segment.ops)
            done[item.rule] += 1
            segment = item.segment
        outputs(segment, seed)
    assert done[INTO_PRODUCER] > 20
    assert done[INTO_READER] > 5
