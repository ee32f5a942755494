"""Plans of attention: within the memories, at costs counted by hand."""

from __future__ import annotations

import pytest
from support.attention_cases import attention

from weft.compiler.ir.graph import Rounding
from weft.compiler.machine import target as overheads
from weft.compiler.machine.target import Target
from weft.compiler.plan.attention_plan import LAST_PARTS, PIECES, AttentionCost, AttentionPlan, plan
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import PRESETS, Config

DEFAULT = PRESETS["default"]
OPS = {
    "one head": attention(100, 200, 64),
    "heads that share keys": attention(50, 300, 32, heads=8, kv_heads=2, v_size=48),
    "causal": attention(256, 256, 64, heads=2, causal=True),
    "one token": attention(1, 1000, 64, heads=4),
}


def find_plan(op: str, config: Config, bandwidth: float | None = None) -> AttentionPlan:
    chosen = plan(OPS[op], Target(config, bandwidth))
    assert chosen is not None
    return chosen


def ends(zone: tuple[int, int, int]) -> int:
    first, size, slots = zone
    return first + size * slots


@pytest.mark.drawn(3)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["tiny", "default"])
def test_plans_keep_within_the_memories(name: str, op: str) -> None:
    whole = PRESETS[name]
    depth = max(whole.n, 16)
    changes = (
        {},
        {"row_states": 8},
        {"alignments": 32},
        {"accumulator_depth": depth},
        {"scratchpad_depth": 128},
    )
    for change in changes:
        config = whole.replace(**change)
        chosen = find_plan(op, config)
        assert ends(chosen.states) <= config.row_states
        assert ends(chosen.alignments) <= config.alignments
        assert ends(chosen.scores) <= chosen.sums[0]
        assert ends(chosen.sums) <= config.accumulator_size
        assert ends(chosen.kv) <= config.scratchpad_size
        assert chosen.states[1] == chosen.rows
        assert chosen.alignments[1] == chosen.rows * chosen.block // config.n
        assert ends(chosen.q) == chosen.p[0]
        assert ends(chosen.p) <= chosen.params
        assert chosen.constants == chosen.params + PARAMETER_VECTORS
        assert chosen.out[0] == chosen.constants + 2  # vectors of a zero point
        assert ends(chosen.out) == chosen.rounded[0]
        assert ends(chosen.rounded) <= chosen.kv[0]


def test_states_and_alignments_limit_the_rows() -> None:
    """With one more, a plan would need at most half of the rows."""
    most = find_plan("one head", DEFAULT)
    assert most.rows == 100
    used = ends(most.states)
    assert find_plan("one head", DEFAULT.replace(row_states=1 << (used - 1).bit_length())).rows == 100
    assert find_plan("one head", DEFAULT.replace(row_states=64)).rows <= 64


@pytest.mark.parametrize("bandwidth", [None, 1.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_one_tile_of_one_block_is_counted_by_hand(bandwidth: float | None, rounded: bool) -> None:
    """8 rows, 16 keys, 16 channels: a product for scores, one for sums, each as long as weights take to come in; the
    softmax, twice if scores are rounded, between them; and divisions."""
    op = attention(8, 16, 16, rounding=Rounding(0.1, 0, -128, 127) if rounded else None)
    target = Target(DEFAULT, bandwidth)
    cost = AttentionCost(op, target, 1, 8, 16, 16)
    n, groups = DEFAULT.n, DEFAULT.groups
    product = n + overheads.WEIGHT_SWAP_CYCLES
    softmax = (8 * groups + overheads.ATTENTION_VEC_CYCLES) * (2 if rounded else 1)
    divisions = 8 * max(overheads.NORMALISE_ROW_CYCLES, groups) + PIECES * overheads.ATTENTION_VEC_CYCLES
    array = product + 2 * n + overheads.HANDOVER_CYCLES + softmax + product
    first = target.transfer_cycles((8 + 16) * 16)
    wait = DEFAULT.table_depth + softmax - 2 * product
    loads = 2 * target.beat * 16 + (n + 2 * overheads.LOAD_GAP_CYCLES)
    total = array + first + wait
    assert cost.cycles(True, True, False)[0] == max(total, loads + product / 4) + divisions
    assert cost.cycles(True, False, False)[0] == total + loads + divisions
    assert cost.cycles(True, False, True)[0] == total + loads + 2 * divisions


def test_keys_come_again_for_each_tile_unless_they_stay() -> None:
    """With four tiles of 8 rows, and keys that are all of a tile's columns."""
    op, target = attention(32, 16, 16), Target(DEFAULT)
    cost = AttentionCost(op, target, 1, 8, 16, 16)
    loads = 2 * 16 + (DEFAULT.n + 2 * overheads.LOAD_GAP_CYCLES)
    again = cost.cycles(False, False, False)[0] - cost.cycles(True, False, False)[0]
    assert again == 3 * loads


def test_bus_bound_plans_split_the_last_values() -> None:
    fast, slow = find_plan("one token", DEFAULT), find_plan("one token", DEFAULT, 1.0)
    quick = find_plan("causal", DEFAULT)
    assert (slow.last_parts, quick.last_parts) == (LAST_PARTS, 1)
    assert slow.cycles > 4 * fast.cycles
