"""Parts in which two segments differ, and what they cost."""

from __future__ import annotations

import pytest

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceSegment
from weft.extras.search.substitution.part_costs import PartCosts, differing_parts, shape_digest
from weft.extras.search.substitution.rounding import rewrites
from weft.extras.search.tests.support.substitution_cases import atrous, dense_block, drawn


def buffers(part: DeviceSegment, kind: str) -> set[str]:
    """The names of its buffers of a kind."""
    views = (view for op in part.ops for view in (*op.sources, op.dst))
    return {view.buffer.name for view in views if view.buffer.kind == kind}


def test_parts_have_the_same_inputs_and_outputs() -> None:
    compared = 0
    for seed in range(40):
        segment = drawn(seed, 14)
        for item in rewrites(segment):
            before, behind = differing_parts(segment, item.segment) or pytest.fail("too many operators")
            for kind in ("input", "output"):
                assert buffers(before, kind) == buffers(behind, kind)
                assert buffers(before, kind)
            new = [op for op in item.segment.ops if op not in segment.ops]
            assert {op.name for op in new} <= {op.name for op in behind.ops}
            assert len(behind.ops) <= len(item.segment.ops)
            compared += 1
    assert compared > 20


def test_alike_parts_cost_the_same() -> None:
    """Names and the values of weights are no part of what a cost is kept by; shapes and functions are."""
    one, other = dense_block(2), dense_block(2)
    assert shape_digest(one) == shape_digest(other)
    renamed = DeviceSegment("other", tuple(op.replace(name=f"{op.name}'") for op in other.ops))
    assert shape_digest(renamed) == shape_digest(one)
    changed = DeviceSegment(
        "other", tuple(op.replace(high=126) if index == 1 else op for index, op in enumerate(other.ops))
    )
    assert shape_digest(changed) != shape_digest(one)
    assert shape_digest(dense_block(3)) != shape_digest(one)


def test_each_part_is_asked_for_once() -> None:
    asked: list[DeviceSegment] = []

    def cost(part: DeviceSegment) -> int:
        asked.append(part)
        if len(part.ops) > 6:
            raise CompileError("too long")
        return 100 * len(part.ops)

    costs = PartCosts(cost)
    one, other = dense_block(1), dense_block(2)
    assert costs.cost(one) == costs.cost(dense_block(1)) == 100 * len(one.ops)
    assert costs.cost(other) is None
    assert costs.cost(dense_block(2)) is None
    assert costs.measured == len(asked) == 2


def test_what_cannot_be_compiled_is_not_compared() -> None:
    segment = next(item for seed in range(40) if next(rewrites(item := drawn(seed, 14)), None))
    changed = next(rewrites(segment)).segment
    parts = differing_parts(segment, changed)
    assert parts is not None
    assert PartCosts(lambda part: len(part.ops)).compare(segment, changed) == tuple(
        len(part.ops) for part in parts
    )

    def refused(part: DeviceSegment) -> int:
        raise CompileError("not here")

    assert PartCosts(refused).compare(segment, changed) is None


def test_no_other_parts_are_asked_for_at_the_end() -> None:
    first, other = atrous(), atrous(2)
    costs = PartCosts(lambda part: len(part.ops))
    assert costs.cost(first) == 3
    costs.frozen = True
    assert (costs.cost(first), costs.cost(other), costs.measured) == (3, None, 1)
    costs.frozen = False
    assert costs.cost(other) == 4
