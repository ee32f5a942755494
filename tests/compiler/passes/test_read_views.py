"""Copies of views disappear: when, when not, and that results never change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, draw, draw_window, random_lookup, random_view, segment_of, whole

from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Add, Attention, DeviceOp, DeviceSegment, Multiply, Pool, Rescale, Softmax
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost
from weft.compiler.passes.views import read_views
from weft.compiler.pipeline import PIPELINE
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops, verify_segment
from weft.hdl.isa.config import PRESETS
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice

TINY = PRESETS["tiny"]
PLANNER = Planner(Target(TINY))
X = View(Buffer("x", (1, 9, 8, 12), "input"), (1, 4, 3, 5), 1, 2, 6, (2, 2))
COPY = whole("copy", X.shape, "temp")
Y = whole("y", X.shape, "output")
READER = Rescale("reader", COPY, Y, 0.5)


class Dear(Planner):
    """Finds it dear to step over rows."""

    def cost(self, op: DeviceOp) -> Cost:
        return Cost(9.0 if any(view.step[0] > 1 for view in op.sources) and op.name != "copy" else 1.0, 0.0)


def same(before: DeviceSegment, after: DeviceSegment) -> None:
    verify_segment(after)
    rng = np.random.default_rng(1)
    read = [view.buffer for op in before.ops for view in op.sources if view.buffer.kind == "input"]
    inputs = {buffer.name: rng.integers(-128, 128, buffer.shape).astype(np.int8) for buffer in read}
    first, second = run_ops(before, inputs), run_ops(after, inputs)
    for name in {op.dst.buffer.name for op in before.ops if op.dst.buffer.kind == "output"}:
        assert np.array_equal(first[name], second[name])


def test_the_view_is_read_itself() -> None:
    before = segment_of(Rescale("copy", X, COPY), READER)
    after = read_views(before, PLANNER)
    assert [(op.name, op.sources) for op in after.ops] == [("reader", (X,))]
    same(before, after)


def test_steps_and_places_add_up() -> None:
    part = dataclasses.replace(COPY, shape=(1, 2, 2, 2), y=1, x=1, c=3, step=(2, 1))
    before = segment_of(
        Rescale("copy", X, COPY), Rescale("part", part, whole("y", part.shape, "output"), 0.5)
    )
    (op,) = read_views(before, PLANNER).ops
    assert op.sources == (View(X.buffer, part.shape, 3, 4, 9, (4, 2)),)
    same(before, segment_of(op))


def test_copies_of_copies_and_several_readers() -> None:
    second = View(COPY.buffer, (1, 4, 3, 2), c=2)
    middle, other = whole("m", second.shape, "temp"), whole("z", second.shape, "output")
    before = segment_of(
        Rescale("copy", X, COPY),
        Rescale("again", second, middle),
        Rescale("last", middle, other, 2.0),
        READER,
    )
    after = read_views(before, PLANNER)
    assert [op.name for op in after.ops] == ["last", "reader"]
    same(before, after)


def attention(copy: View, name: str) -> Attention:
    views = {part: whole(part, (1, 1, 6, 8), "input") for part in "qkv"} | {name: copy}
    return Attention("a", *views.values(), whole("y", (1, 1, 6, 8), "output"), 1, 2, 2, 0.1, (6,))


ROWS = View(Buffer("x", (1, 1, 6, 24), "input"), (1, 1, 6, 8), c=8)
KINDS: dict[str, DeviceOp] = {
    "conv": convolution(COPY, 4, Window((2, 3))),
    "pool": Pool("pool", COPY, whole("y", (1, 3, 2, 5), "output"), "max", Window((2, 2))),
    "add": Add("add", whole("a", X.shape, "input"), COPY, Y, 0.5, 0.5),
    "product with itself": Multiply("multiply", COPY, COPY, Y, 0.01),
}


@pytest.mark.parametrize("kind", KINDS)
def test_operators_that_read_views(kind: str) -> None:
    before = segment_of(Rescale("copy", X, COPY), KINDS[kind])
    after = read_views(before, PLANNER)
    assert len(after.ops) == 1
    same(before, after)


@pytest.mark.parametrize("part", "qkvs")
def test_operators_of_softmax_read_views(part: str) -> None:
    copied = whole("copy", ROWS.shape, "temp")
    reader = (
        attention(copied, part)
        if part != "s"
        else Softmax("s", copied, whole("y", ROWS.shape, "output"), 0.1)
    )
    before = segment_of(Rescale("copy", ROWS, copied), reader)
    assert len(read_views(before, PLANNER).ops) == 1
    rng = np.random.default_rng(1)
    kinds = {view.buffer.name: view.buffer for op in before.ops for view in op.sources}
    inputs = {
        name: rng.integers(-128, 128, buffer.shape).astype(np.int8)
        for name, buffer in kinds.items()
        if buffer.kind == "input"
    }
    same(before, read_views(before, PLANNER))
    without = [item for item in PIPELINE if item.run is not read_views]
    outputs = [golden(compile_segment(before, TINY, passes=passes), inputs) for passes in (PIPELINE, without)]
    assert np.array_equal(*outputs)


def golden(program: DeviceProgram, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Its output "y"."""
    image = Image(program)
    device = GoldenDevice(TINY, image.memory_bytes)
    image.run(device, inputs)
    return image.read(device, "y")


def test_another_shape_of_pixels_that_are_equally_far_apart() -> None:
    part = View(Buffer("x", (1, 4, 6, 12), "input"), (1, 4, 3, 5), x=1, c=6, step=(1, 2))
    copied = whole("copy", part.shape, "temp")
    row = whole("copy", (1, 1, 12, 5), "temp")
    before = segment_of(
        Rescale("copy", part, copied), Rescale("reader", row, whole("y", row.shape, "output"), 0.5)
    )
    (op,) = read_views(before, PLANNER).ops
    assert op.sources == (View(Buffer("x", (1, 1, 24, 12), "input"), (1, 1, 12, 5), x=1, c=6, step=(1, 2)),)
    same(before, segment_of(op))


LOOKED_UP = random_lookup(np.random.default_rng(0))
STAYS: dict[str, tuple[DeviceOp, ...]] = {
    "other bytes": (Rescale("copy", X, COPY, 2.0), READER),
    "another zero point": (Rescale("copy", X, COPY, y_zero=1), READER),
    "a clamp": (Rescale("copy", X, COPY, low=-127), READER),
    "a table": (Rescale("copy", X, COPY, lookup=LOOKED_UP), READER),
    "an output": (Rescale("copy", X, whole("copy", X.shape, "output")),
                  READER.replace(src=whole("copy", X.shape, "output"))),
    "pixels not equally far apart": (
        Rescale("copy", X, COPY), Rescale("reader", whole("copy", (1, 1, 12, 5), "temp"),
                                         whole("y", (1, 1, 12, 5), "output"), 0.5)),
    "other channels": (
        Rescale("copy", X, COPY), Rescale("reader", whole("copy", (1, 1, 6, 10), "temp"),
                                         whole("y", (1, 1, 6, 10), "output"), 0.5)),
    "a part of what is read": (
        Rescale("copy", X, View(Buffer("copy", (1, 4, 3, 9)), X.shape, c=2)),
        Rescale("reader", View(Buffer("copy", (1, 4, 3, 9)), X.shape, c=1), Y, 0.5)),
    "the end of what is read": (
        Rescale("other", X, View(Buffer("copy", (1, 4, 3, 10)), X.shape, c=5), 0.5),
        Rescale("copy", X, View(Buffer("copy", (1, 4, 3, 10)), X.shape)),
        Rescale("reader", View(Buffer("copy", (1, 4, 3, 10)), X.shape, c=2), Y, 0.5)),
    "rows that end between two pixels": (
        Rescale("copy", View(Buffer("x", (1, 6, 10, 12), "input"), (1, 5, 4, 5), step=(1, 3)),
                whole("copy", (1, 5, 4, 5), "temp")),
        Rescale("reader", whole("copy", (1, 1, 20, 5), "temp"), whole("y", (1, 1, 20, 5), "output"), 0.5)),
    "half as many channels": (
        Rescale("copy", View(Buffer("x", (1, 4, 3, 12), "input"), (1, 2, 3, 6)), whole("copy", (1, 2, 3, 6), "temp")),
        Rescale("reader", whole("copy", (1, 1, 12, 3), "temp"), whole("y", (1, 1, 12, 3), "output"), 0.5)),
    "every other row of what is read": (
        Rescale("copy", X, View(Buffer("copy", (1, 8, 3, 5)), X.shape, step=(2, 1))),
        Rescale("reader", View(Buffer("copy", (1, 8, 3, 5)), X.shape, step=(2, 1)), Y, 0.5)),
    "a row for all": (Rescale("copy", dataclasses.replace(X, step=(0, 2)), COPY), READER),
    "written once more": (
        Rescale("copy", X, COPY), Rescale("over", whole("i", X.shape, "input"), COPY, 0.5), READER),
    "what is copied is written once more": (
        Rescale("first", whole("i", X.shape, "input"), whole("x", X.shape, "temp"), 0.5),
        Rescale("copy", whole("x", X.shape, "temp"), COPY),
        Rescale("over", whole("i", X.shape, "input"), whole("x", X.shape, "temp"), 2.0), READER),
    "written where it is read": (
        Rescale("first", whole("i", (1, 4, 3, 10), "input"), whole("x", (1, 4, 3, 10), "temp"), 0.5),
        Rescale("copy", View(Buffer("x", (1, 4, 3, 10)), X.shape), COPY),
        READER.replace(dst=View(Buffer("x", (1, 4, 3, 10)), X.shape, c=5)),
        Rescale("last", whole("x", (1, 4, 3, 10), "temp"), whole("y", (1, 4, 3, 10), "output"), 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("reason", STAYS)
def test_stays(reason: str) -> None:
    before = segment_of(*STAYS[reason])
    assert "copy" in [op.name for op in read_views(before, PLANNER).ops]


def test_only_if_it_takes_no_longer() -> None:
    before = segment_of(Rescale("copy", X, COPY), READER)
    assert len(read_views(before, Dear(Target(TINY))).ops) == 2


def test_other_writers_of_a_copied_buffer_stay() -> None:
    both = Buffer("copy", (1, 4, 3, 10))
    halves = View(both, X.shape), View(both, X.shape, c=5)
    before = segment_of(
        Rescale("copy", X, halves[0]), Rescale("half", X, halves[1], 0.5), READER.replace(src=halves[0]),
        Rescale("other", halves[1], whole("z", X.shape, "output"), 0.5),
    )  # fmt: skip
    after = read_views(before, PLANNER)
    assert [op.name for op in after.ops] == ["half", "reader", "other"]
    same(before, after)


@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
def test_random_readers(preset: str) -> None:
    rng, config = np.random.default_rng([4, len(preset)]), PRESETS[preset]
    gone = 0
    for _ in range(25):
        shape = (draw(rng, 1, 2), draw(rng, 2, 9), draw(rng, 2, 9), draw(rng, 1, 20))
        ops: list[DeviceOp] = [
            Rescale("copy", random_view(rng, "x", shape, "input"), whole("copy", shape, "temp"))
        ]
        for index in range(draw(rng, 1, 2)):
            view = random_view(rng, "copy", shape, "temp")
            read = view if view.buffer.shape == shape else whole("copy", shape, "temp")
            window = draw_window(rng, *shape[1:3], kernel=3)
            ops.append(convolution(read, draw(rng, 1, 20), window, name=f"y{index}"))
        segment = DeviceSegment("s", tuple(ops))
        gone += len(read_views(segment, Planner(Target(config))).ops) < len(ops)
        inputs = {"x": rng.integers(-128, 128, ops[0].sources[0].buffer.shape).astype(np.int8)}
        compare(compile_segment(segment, config), segment, inputs, config)
    assert gone > 10
