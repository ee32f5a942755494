"""The search over uses of rules, with simple cost functions."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.errors import CompileError, IrError
from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Pool, Rescale
from weft.extras.search.substitution import search as module
from weft.extras.search.substitution.rounding import rewrites
from weft.extras.search.substitution.rule import Rule, builtin_rules
from weft.extras.search.substitution.search import PartCosts, Search, differing_parts, part_with, shape_digest
from weft.extras.search.substitution.term import parse
from weft.extras.search.tests.support.substitution_cases import (
    atrous,
    dense_block,
    draw_segment,
    joined_maxima,
)

BITS, RATE = 24, 256


def elements(segment: DeviceSegment) -> int:
    """Cost function: maxima and requantisations cost their input elements, others nothing."""
    return sum(int(np.prod(op.sources[0].shape)) for op in segment.ops if isinstance(op, Pool | Rescale)) + 1


def run_search(segment: DeviceSegment, most: int = 1000, **options: object) -> module.SearchResult:
    return Search(builtin_rules(), elements, BITS, RATE, most).run(segment)


def test_a_requantisation_moves_behind_the_maximum() -> None:
    segment = joined_maxima()
    actual = run_search(segment)
    # It becomes the table of the convolution before it, and reads nothing.
    assert elements(actual.segment) < elements(segment)
    assert sum(isinstance(op, Rescale) for op in actual.segment.ops) == 0
    assert actual.complete
    assert actual.used
    assert actual.used[0].saving > 0


def test_copies_into_concatenations_disappear() -> None:
    actual = run_search(dense_block(3))
    assert not any(isinstance(op, Rescale) for op in actual.segment.ops)


def test_slower_rewrites_are_not_applied() -> None:
    segment = joined_maxima()
    assert Search(builtin_rules(), lambda part: 1000, BITS, RATE, 1000).run(segment).segment is segment
    # Operators have a price, so removing copies is the only gain.
    actual = Search(builtin_rules(), lambda part: 1000 * len(part.ops), BITS, RATE, 1000).run(segment)
    assert len(actual.segment.ops) < len(segment.ops)


def test_the_search_ends_at_its_budget() -> None:
    asked: list[DeviceSegment] = []

    def count_calls(part: DeviceSegment) -> int:
        asked.append(part)
        return elements(part)

    segment = dense_block(2)
    full = Search(builtin_rules(), count_calls, BITS, RATE, 1000).run(segment)
    # Single operators, which are costed first, do not count.
    alone = {shape_digest(part_with(segment, [op])) for op in segment.ops}
    assert {shape_digest(part) for part in asked[: len(alone)]} == alone
    assert full.measured_parts == len(asked) - len(alone)
    few = Search(builtin_rules(), count_calls, BITS, RATE, 2).run(dense_block(2))
    assert not few.complete
    assert few.measured_parts < full.measured_parts


def test_an_exhausted_search_returns_its_best() -> None:
    asked: list[DeviceSegment] = []

    def products(part: DeviceSegment) -> int:
        asked.append(part)
        return sum(op.macs for op in part.ops)

    segment = atrous()
    actual = Search((), products, BITS, RATE, 2).run(segment)
    assert not actual.complete
    assert [item.operator for item in actual.used] == ["op1"]
    assert len(asked) == actual.measured_parts + len(segment.ops)


def test_the_search_starts_at_the_worst_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    segment, order = joined_maxima(), list[str]()

    def nothing(self: Search, segment: DeviceSegment, op: DeviceOp) -> None:
        order.append(op.name)

    monkeypatch.setattr(Search, "_improve", nothing)
    Search(builtin_rules(), elements, BITS, RATE, 1000).run(segment)
    idle = [
        elements(part_with(segment, [op])) - op.macs / RATE
        for name in order
        for op in segment.ops
        if op.name == name
    ]
    assert sorted(order) == sorted(op.name for op in segment.ops)
    assert idle == sorted(idle, reverse=True)
    assert idle[0] > idle[-1]


def test_candidates_that_do_not_compile_are_skipped() -> None:
    def refuse(part: DeviceSegment) -> int:
        raise CompileError("too large")

    segment = joined_maxima()
    assert Search(builtin_rules(), refuse, BITS, RATE, 1000).run(segment).segment == segment


def test_a_wrong_rule_is_detected() -> None:
    """The search compares bytes, whatever a rule file claims."""
    wrong = Rule(parse("max[a](cat(x, y))"), parse("cat(max[a](y), max[a](x))"))
    with pytest.raises(IrError, match="changed bytes"):
        Search(
            [wrong], lambda part: 1000 - 100 * sum(isinstance(op, Pool) for op in part.ops), BITS, RATE, 1000
        ).run(joined_maxima())


@pytest.mark.parametrize("seed", range(6))
def test_random_segments(seed: int) -> None:
    """The search itself compares all bytes of its result."""
    segment = draw_segment(200 + seed, 9)
    actual = run_search(segment)
    assert elements(actual.segment) <= elements(segment)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(15))
def test_many_random_segments(seed: int) -> None:
    segment = draw_segment(3000 + seed, 14)
    actual = run_search(segment)
    assert elements(actual.segment) <= elements(segment)


def buffers(part: DeviceSegment, kind: str) -> set[str]:
    views = (view for op in part.ops for view in (*op.sources, op.dst))
    return {view.buffer.name for view in views if view.buffer.kind == kind}


def test_parts_have_the_same_inputs_and_outputs() -> None:
    compared = 0
    for seed in range(40):
        segment = draw_segment(seed, 14)
        for item in rewrites(segment):
            before, after = differing_parts(segment, item.segment) or pytest.fail("too many operators")
            for kind in ("input", "output"):
                assert buffers(before, kind) == buffers(after, kind)
                assert buffers(before, kind)
            new = [op for op in item.segment.ops if op not in segment.ops]
            assert {op.name for op in new} <= {op.name for op in after.ops}
            assert len(after.ops) <= len(item.segment.ops)
            compared += 1
    assert compared > 20


def test_costs_are_cached_by_shape() -> None:
    """Costs are cached by shapes and functions, not by names and weight values."""
    one, other = dense_block(2), dense_block(2)
    assert shape_digest(one) == shape_digest(other)
    renamed = DeviceSegment("other", tuple(op.replace(name=f"{op.name}'") for op in other.ops))
    assert shape_digest(renamed) == shape_digest(one)
    changed = DeviceSegment(
        "other", tuple(op.replace(high=126) if index == 1 else op for index, op in enumerate(other.ops))
    )
    assert shape_digest(changed) != shape_digest(one)
    assert shape_digest(dense_block(3)) != shape_digest(one)


def test_each_part_is_costed_once() -> None:
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


def test_candidates_that_do_not_compile_are_not_compared() -> None:
    segment = next(item for seed in range(40) if next(rewrites(item := draw_segment(seed, 14)), None))
    changed = next(rewrites(segment)).segment
    parts = differing_parts(segment, changed)
    assert parts is not None
    assert PartCosts(lambda part: len(part.ops)).compare(segment, changed) == tuple(
        len(part.ops) for part in parts
    )

    def refuse(part: DeviceSegment) -> int:
        raise CompileError("not here")

    assert PartCosts(refuse).compare(segment, changed) is None


def test_no_new_parts_are_costed_at_the_end() -> None:
    first, other = atrous(), atrous(2)
    costs = PartCosts(lambda part: len(part.ops))
    assert costs.cost(first) == 3
    costs.frozen = True
    assert (costs.cost(first), costs.cost(other), costs.measured) == (3, None, 1)
    costs.frozen = False
    assert costs.cost(other) == 4
