"""Uses of rules on random segments: no byte of an output changes, whatever rule is used wherever it can be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from weft.compiler.ir.graph import Add, Conv, DeviceSegment, Pool, Rescale, View, Window
from weft.compiler.verify import verify_segment
from weft.extras.search.substitution.matching import kind_of
from weft.extras.search.substitution.moves import Move, Moves, select_usable
from weft.extras.search.substitution.rule import Rule, builtin_rules
from weft.extras.search.substitution.term import parse
from weft.extras.search.tests.support.substitution_cases import (
    KERNELS,
    POOLS,
    Drawn,
    dense_block,
    drawn,
    joined_maxima,
    outputs,
)

BITS = 24


def check(segment: DeviceSegment, made: Move, seed: int) -> None:
    """The same outputs, of a segment that keeps all rules of the representation."""
    verify_segment(made.segment)
    before, behind = outputs(segment, seed, BITS), outputs(made.segment, seed, BITS)
    assert before.keys() == behind.keys(), made.rule
    for name, values in before.items():
        np.testing.assert_array_equal(behind[name], values, f"{made.rule} changed {name}")


def uses(segment: DeviceSegment, moves: Moves) -> list[Move]:
    return [move for op in segment.ops for move in moves.find(segment, op)]


def walked(seeds: range, steps: int) -> Counter[str]:
    """Random walks: after each use, others are possible. Counts the uses of each rule."""
    moves, found = Moves(builtin_rules(), BITS), Counter[str]()
    for seed in seeds:
        rng, segment = np.random.default_rng(seed), drawn(seed)
        first = segment
        for _ in range(steps):
            possible = uses(segment, moves)
            if not possible:
                break
            for move in possible:
                found[move.rule] += 1
                check(segment, move, seed)
            segment = possible[int(rng.integers(len(possible)))].segment
        check(first, Move("all of them", segment), seed)
    return found


def test_no_use_changes_a_byte() -> None:
    found = walked(range(20), 2)
    assert len(found) >= 15, found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_no_use_of_many_changes_a_byte(seed: int) -> None:
    assert sum(walked(range(1000 + 5 * seed, 1005 + 5 * seed), 4).values()) > 0


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({}, True),
        ({"low": -127}, False),
        ({"high": 126}, False),
        ({"window": Window((3, 3), (1, 1), (2, 2))}, False),
        ({"low": -127, "window": Window((3, 3), (1, 1), (2, 2))}, False),
        ({"kind": "average"}, False),
        ({"scale": 0.5}, False),
        ({"x_zero": 1}, False),
        ({"lookup": np.arange(-128, 128).astype(np.int8)}, False),
    ],
)
def test_which_poolings_rules_know(changes: dict[str, Any], known: bool) -> None:
    """Maxima that do nothing else."""
    made = Drawn(7)
    made.pool(made.values[0], POOLS[1])
    assert (kind_of(made.ops[-1].replace(**changes)) == "max") == known


def test_rules_of_more_than_three_operators_are_reached_by_several_uses() -> None:
    sizes = [
        max(rule.left.size, rule.right.size)
        for rules in select_usable(builtin_rules()).values()
        for rule in rules
    ]
    assert max(sizes) == 3
    assert max(max(rule.left.size, rule.right.size) for rule in builtin_rules()) > 3


def test_maxima_go_into_the_parts_of_a_concatenation() -> None:
    segment = joined_maxima()
    moves = Moves(builtin_rules(), BITS)
    pool = next(op for op in segment.ops if isinstance(op, Pool))
    (move,) = [
        item
        for item in moves.find(segment, pool)
        if item.rule == "max[a](cat(x, y)) = cat(max[a](x), max[a](y))"
    ]
    pools = [op for op in move.segment.ops if isinstance(op, Pool)]
    # The part that was copied is read where it was made; of the other one the requantisation stays in front.
    assert [op.src.shape[3] for op in pools] == [32, 32]
    assert all(not (isinstance(op, Rescale) and op.is_identity) for op in move.segment.ops)
    check(segment, move, 1)


def test_what_is_copied_lies_in_its_place_from_the_start() -> None:
    segment = dense_block()
    moves = Moves(builtin_rules(), BITS)
    for _ in range(10):
        found = [item for item in uses(segment, moves) if item.rule == "x = first(cat(x, y))"]
        if not found:
            break
        check(segment, found[0], 2)
        segment = found[0].segment
    assert not any(isinstance(op, Rescale) for op in segment.ops)


def test_a_function_that_falls_does_not_pass_a_maximum() -> None:
    moves, rule = Moves(builtin_rules(), BITS), "func[f](max[a](x)) = max[a](func[f](x))"
    falling = np.arange(127, -129, -1).astype(np.int8)
    for table, wanted in ((None, True), (np.sort(falling), True), (falling, False)):
        segment = joined_maxima()
        pool = segment.ops[-1]
        assert isinstance(pool, Pool)
        between = pool.replace(
            dst=pool.dst.__class__(pool.src.buffer.__class__("between", pool.dst.shape), pool.dst.shape)
        )
        last = Rescale("last", between.dst, pool.dst, 0.5, lookup=table)
        segment = DeviceSegment("s", (*segment.ops[:-1], between, last))
        assert any(move.rule == rule for move in moves.find(segment, last)) == wanted


@pytest.mark.parametrize("h", [8, 9, 60, 61])
@pytest.mark.parametrize(("first", "then"), [(2, 0), (1, 4), (3, 1)])
def test_windows_become_one_where_they_can(h: int, first: int, then: int) -> None:
    """Not if the first one leaves out elements, and of an odd number of rows not where the second one has padding in
    place of the last."""
    made = Drawn(1)
    made.values = [made.view((1, h, h, 2), "input")]
    made.pool(made.pool(made.values[0], POOLS[first]), POOLS[then])
    segment = made.segment()
    moves = Moves(builtin_rules(), BITS).find(segment, segment.ops[-1])
    found = [move for move in moves if move.rule == "max[b](max[a](x)) = max[a*b](x)"]
    assert bool(found) == {2: True, 1: h % 2 == 0, 3: False}[first]
    for move in found:
        check(segment, move, 5)


@pytest.mark.parametrize("scale", [0.5, -0.5])
def test_operands_are_exchanged_unless_one_is_taken_from_the_other(scale: float) -> None:
    made = Drawn(2)
    one = made.rescale(made.values[0])
    made.put(Add("sum", made.values[0], one, made.view(one.shape), 0.7, scale, 3, -4))
    segment = made.segment()
    found = [move for move in Moves(builtin_rules(), BITS).find(segment, segment.ops[-1]) if "~" in move.rule]
    assert bool(found) == (scale > 0)
    for move in found:
        check(segment, move, 3)


def test_a_depthwise_convolution_of_two_images_is_one_of_each() -> None:
    """Each part has the weights of its own channels."""
    made = Drawn(3)
    one = made.rescale(made.values[0])
    made.conv(made.cat([one, made.rescale(one)]), KERNELS[1], 0, depth=True)
    segment = made.segment()
    (last,) = (op for op in segment.ops if isinstance(op, Conv))
    found = [
        move
        for move in Moves(builtin_rules(), BITS).find(segment, last)
        if move.rule.startswith("depth[a,f|g](cat(x, y), outs(p, q)) = cat(")
    ]
    assert found
    for move in found:
        convs = [op for op in move.segment.ops if isinstance(op, Conv)]
        parts = sorted(convs, key=lambda op: op.dst.c)
        assert [len(op.weight) for op in parts] == [one.shape[3]] * 2
        assert np.array_equal(np.concatenate([op.weight for op in parts]), last.weight)
        check(segment, move, 7)


def test_images_that_lie_beside_each_other_are_one_without_a_copy() -> None:
    """Two parts of a buffer are read as the image that they are together, if the second is right behind the first."""
    for gap in (0, 1):
        made = Drawn(3)
        source, dst = made.view((1, 6, 5, 7 + gap), "input"), made.view((1, 6, 5, 7))
        made.values, at = [source], 0
        for size in (3, 4):
            image = View(source.buffer, (1, 6, 5, size), c=at + gap * (at > 0))
            made.conv(image, KERNELS[1], 0, depth=True)
            made.ops[-1] = made.ops[-1].replace(dst=View(dst.buffer, (1, 6, 5, size), c=at), low=-128)
            at += size
        made.ops.append(Rescale("last", dst, made.view(dst.shape), 0.5))
        segment = made.segment()
        found = [
            move
            for move in uses(segment, Moves(builtin_rules(), BITS))
            if move.rule.endswith("= depth[a,f|g](cat(x, y), outs(p, q))")
        ]
        assert found
        for move in found:
            (conv,) = (op for op in move.segment.ops if isinstance(op, Conv))
            assert conv.src.shape[3] == 7
            assert (conv.src.buffer.name == source.buffer.name) == (gap == 0)
            check(segment, move, 8)


def test_a_part_that_a_rule_leaves_as_it_is_stays() -> None:
    """It lies in what is replaced, and is made by an operator, not copied: there is nowhere else to read it."""
    made = Drawn(4)
    source = made.values[0]
    other = made.rescale(made.rescale(source))
    c = source.shape[3]
    dst = made.view((*source.shape[:3], 2 * c))
    made.ops.append(Rescale("first", source, View(dst.buffer, source.shape, c=0), 0.5, 3, -3))
    made.ops.append(Rescale("second", other, View(dst.buffer, source.shape, c=c), 1.7, 7, 7))
    made.values.append(dst)
    segment = made.segment()
    rule = Rule(parse("cat(x, func[g](func[f](y)))"), parse("cat(x, func[g.f](y))"))
    for move in uses(segment, Moves([rule], BITS)):
        check(segment, move, 6)
