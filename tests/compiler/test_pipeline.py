"""The list of passes: descriptions, and execution."""

from __future__ import annotations

import dataclasses

import pytest
from support.op_cases import convolution, segment_of, split_operators, whole

from weft.compiler.backend import compile_segment
from weft.compiler.errors import IrError
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import dump_segment
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.pipeline import PIPELINE, Pass, run_passes
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]


def pooled_model() -> DeviceSegment:
    op = convolution(whole("x", (1, 8, 8, 4), "input"), 8, Window((3, 3)))
    return segment_of(
        *split_operators(op.replace(pool=Window((2, 2), (2, 2)), dst=whole("y", (1, 3, 3, 8), "output")))
    )


def test_every_pass_has_a_one_sentence_description() -> None:
    assert [item.name for item in PIPELINE][-2:] == ["choose_plans", "overlap_rows"]
    for item in PIPELINE:
        assert item.doc.endswith(".")
        assert len(item.doc.split(". ")) == 1
        assert 20 < len(item.doc) < 200


def test_graphs_after_passes_can_be_inspected() -> None:
    seen: list[tuple[str, str]] = []
    compile_segment(
        pooled_model(),
        TINY,
        plain_inputs=True,
        watch=lambda done, made: seen.append((done, dump_segment(made))),
    )
    assert [name for name, _ in seen] == [item.name for item in PIPELINE if item.name != "gather_rows"]
    assert dict(seen)["fuse_pool"] == (
        "device conv:\n  conv conv+pool: x[1x8x8x4] -> y[1x3x3x8]"
        " window(k(3, 3) s(1, 1) d(1, 1) p(0, 0, 0, 0)) pool(k(2, 2) s(2, 2) d(1, 1) p(0, 0, 0, 0))\n"
    )


def test_equal_operators_share_a_plan() -> None:
    asked = []
    planner = Planner(Target(TINY), lambda shape: asked.append(shape.key))  # type: ignore[func-returns-value]
    op = convolution(whole("x", (1, 8, 8, 4), "input"), 8)
    other = op.replace(name="other", src=whole("z", (1, 8, 8, 4), "input"))
    assert [planner.plan(item) for item in (op, other)] == [None, None]
    assert len(asked) == 1


def test_a_pass_that_breaks_a_graph_is_found() -> None:
    def breaks(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
        return dataclasses.replace(segment, ops=segment.ops[1:])

    with pytest.raises(IrError, match="reads buffer 'unpooled' before it is written"):
        run_passes((Pass(breaks),), pooled_model(), Planner(Target(TINY)))
