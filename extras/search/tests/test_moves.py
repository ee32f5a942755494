"""Uses of rules on random segments: no byte of an output changes, whichever rule is applied."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from weft.compiler.ir.graph import Add, Conv, DeviceSegment, Pool, Rescale
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.verify import verify_segment
from weft.extras.search.substitution.matching import kind_of
from weft.extras.search.substitution.moves import Move, Moves, select_usable
from weft.extras.search.substitution.rule import Rule, builtin_rules
from weft.extras.search.substitution.term import parse
from weft.extras.search.tests.support.substitution_cases import (
    KERNELS,
    POOLS,
    RandomSegment,
    dense_block,
    draw_segment,
    joined_maxima,
    outputs,
)

BITS = 24


def check(segment: DeviceSegment, move: Move, seed: int) -> None:
    """Check equal outputs, and that the segment keeps the representation's invariants."""
    verify_segment(move.segment)
    before, after = outputs(segment, seed, BITS), outputs(move.segment, seed, BITS)
    assert before.keys() == after.keys(), move.rule
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values, f"{move.rule} changed {name}")


def uses(segment: DeviceSegment, moves: Moves) -> list[Move]:
    return [move for op in segment.ops for move in moves.find(segment, op)]


def random_walks(seeds: range, steps: int) -> Counter[str]:
    """Walk randomly, because a use enables others; count the uses of each rule."""
    moves, result = Moves(builtin_rules(), BITS), Counter[str]()
    for seed in seeds:
        rng, segment = np.random.default_rng(seed), draw_segment(seed)
        first = segment
        for _ in range(steps):
            possible = uses(segment, moves)
            if not possible:
                break
            for move in possible:
                result[move.rule] += 1
                check(segment, move, seed)
            segment = possible[int(rng.integers(len(possible)))].segment
        check(first, Move("all of them", segment), seed)
    return result


def test_uses_keep_all_bytes() -> None:
    actual = random_walks(range(20), 2)
    assert len(actual) >= 15, actual


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_many_uses_keep_all_bytes(seed: int) -> None:
    assert sum(random_walks(range(1000 + 5 * seed, 1005 + 5 * seed), 4).values()) > 0


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
def test_rules_match_plain_maxima(changes: dict[str, Any], known: bool) -> None:
    """Maxima with a fused operation do not match."""
    draw = RandomSegment(7)
    draw.pool(draw.values[0], POOLS[1])
    assert (kind_of(draw.ops[-1].replace(**changes)) == "max") == known


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
    # The copied part is read at its source; the other part keeps its requantisation.
    assert [op.src.shape[3] for op in pools] == [32, 32]
    assert all(not (isinstance(op, Rescale) and op.is_identity) for op in move.segment.ops)
    check(segment, move, 1)


def test_copied_parts_are_written_in_place() -> None:
    segment = dense_block()
    moves = Moves(builtin_rules(), BITS)
    for _ in range(10):
        actual = [item for item in uses(segment, moves) if item.rule == "x = first(cat(x, y))"]
        if not actual:
            break
        check(segment, actual[0], 2)
        segment = actual[0].segment
    assert not any(isinstance(op, Rescale) for op in segment.ops)


def test_decreasing_functions_do_not_pass_a_maximum() -> None:
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
def test_windows_are_merged(h: int, first: int, then: int) -> None:
    """Not if the first skips elements or, for an odd number of rows, if the second pads the last."""
    draw = RandomSegment(1)
    draw.values = [draw.view((1, h, h, 2), "input")]
    draw.pool(draw.pool(draw.values[0], POOLS[first]), POOLS[then])
    segment = draw.segment()
    moves = Moves(builtin_rules(), BITS).find(segment, segment.ops[-1])
    actual = [move for move in moves if move.rule == "max[b](max[a](x)) = max[a*b](x)"]
    assert bool(actual) == {2: True, 1: h % 2 == 0, 3: False}[first]
    for move in actual:
        check(segment, move, 5)


@pytest.mark.parametrize("scale", [0.5, -0.5])
def test_operands_of_all_but_differences_are_exchanged(scale: float) -> None:
    draw = RandomSegment(2)
    one = draw.rescale(draw.values[0])
    draw.put(Add("sum", draw.values[0], one, draw.view(one.shape), 0.7, scale, 3, -4))
    segment = draw.segment()
    actual = [
        move for move in Moves(builtin_rules(), BITS).find(segment, segment.ops[-1]) if "~" in move.rule
    ]
    assert bool(actual) == (scale > 0)
    for move in actual:
        check(segment, move, 3)


def test_a_depthwise_convolution_of_two_images_is_split() -> None:
    """Each part has the weights of its own channels."""
    draw = RandomSegment(3)
    one = draw.rescale(draw.values[0])
    draw.conv(draw.cat([one, draw.rescale(one)]), KERNELS[1], 0, depth=True)
    segment = draw.segment()
    (last,) = (op for op in segment.ops if isinstance(op, Conv))
    actual = [
        move
        for move in Moves(builtin_rules(), BITS).find(segment, last)
        if move.rule.startswith("depth[a,f|g](cat(x, y), outs(p, q)) = cat(")
    ]
    assert actual
    for move in actual:
        convs = [op for op in move.segment.ops if isinstance(op, Conv)]
        parts = sorted(convs, key=lambda op: op.dst.c)
        assert [len(op.weight) for op in parts] == [one.shape[3]] * 2
        assert np.array_equal(np.concatenate([op.weight for op in parts]), last.weight)
        check(segment, move, 7)


def test_adjacent_images_are_joined_without_a_copy() -> None:
    """Two parts of a buffer are read as one image if the second directly follows the first."""
    for gap in (0, 1):
        draw = RandomSegment(3)
        source, dst = draw.view((1, 6, 5, 7 + gap), "input"), draw.view((1, 6, 5, 7))
        draw.values, at = [source], 0
        for size in (3, 4):
            image = View(source.buffer, (1, 6, 5, size), c=at + gap * (at > 0))
            draw.conv(image, KERNELS[1], 0, depth=True)
            draw.ops[-1] = draw.ops[-1].replace(dst=View(dst.buffer, (1, 6, 5, size), c=at), low=-128)
            at += size
        draw.ops.append(Rescale("last", dst, draw.view(dst.shape), 0.5))
        segment = draw.segment()
        actual = [
            move
            for move in uses(segment, Moves(builtin_rules(), BITS))
            if move.rule.endswith("= depth[a,f|g](cat(x, y), outs(p, q))")
        ]
        assert actual
        for move in actual:
            (conv,) = (op for op in move.segment.ops if isinstance(op, Conv))
            assert conv.src.shape[3] == 7
            assert (conv.src.buffer.name == source.buffer.name) == (gap == 0)
            check(segment, move, 8)


def test_an_unchanged_part_is_not_copied() -> None:
    """It lies inside the replaced buffer and has no other copy, so its operator stays."""
    draw = RandomSegment(4)
    source = draw.values[0]
    other = draw.rescale(draw.rescale(source))
    c = source.shape[3]
    dst = draw.view((*source.shape[:3], 2 * c))
    draw.ops.append(Rescale("first", source, View(dst.buffer, source.shape, c=0), 0.5, 3, -3))
    draw.ops.append(Rescale("second", other, View(dst.buffer, source.shape, c=c), 1.7, 7, 7))
    draw.values.append(dst)
    segment = draw.segment()
    rule = Rule(parse("cat(x, func[g](func[f](y)))"), parse("cat(x, func[g.f](y))"))
    for move in uses(segment, Moves([rule], BITS)):
        check(segment, move, 6)
