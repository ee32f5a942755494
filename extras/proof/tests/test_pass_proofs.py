"""Compiler passes preserve networks for all inputs, and certificates cover their results."""

from __future__ import annotations

import numpy as np
import pytest
from support.branch_cases import branches
from support.op_cases import segment_of
from support.pass_cases import overlapping_pool, prunable_network

from weft.boards.registry import BOARDS
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.machine.target import Target
from weft.compiler.passes import groups, order
from weft.compiler.passes.drop_channels import drop_channels
from weft.compiler.passes.split_pool import split_pool
from weft.compiler.planner import Planner
from weft.extras.proof.tests.support.certified import prove_program, unproven_outputs
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"]
CONFIGS = {"tiny": TINY, **{name: board.config for name, board in BOARDS.items()}}


def test_dropped_channels() -> None:
    """Segments and their programs are proven; a segment with another weight is not."""
    cases = 0
    for seed in range(300):
        segment = prunable_network(np.random.default_rng(seed))
        made = drop_channels(segment, Planner(Target(TINY)))
        if made.ops == segment.ops:
            continue
        assert unproven_outputs(segment, made, TINY) == []
        if cases < 3:
            prove_program(segment, TINY)
        at, op = next((at, op) for at, op in enumerate(made.ops) if isinstance(op, Conv) and op.weight.any())
        weight = op.weight.copy()
        weight[tuple(np.argwhere(weight)[0])] += 1
        other = (*made.ops[:at], op.replace(weight=weight), *made.ops[at + 1 :])
        cases += bool(unproven_outputs(segment, DeviceSegment("other", other), TINY))
        if cases == 6:
            return
    assert cases > 3


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_divided_pools(name: str) -> None:
    config, rng, divided = CONFIGS[name], np.random.default_rng(len(name)), 0
    for _ in range(3):
        segment = segment_of(overlapping_pool(rng, config))
        made = split_pool(segment, Planner(Target(config)))
        divided += len(made.ops) == 2
        assert unproven_outputs(segment, made, config) == []
    assert divided


@pytest.fixture
def _forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return all groups that fit, with all allowed moves."""
    monkeypatch.setattr(groups, "_GAIN", 1e9)
    monkeypatch.setattr(order, "_SHARE", -1e9)


def check_proof(seed: int) -> None:
    name = ("tiny", "small", "default")[seed % 3]
    segment, _ = branches(np.random.default_rng(seed), 5, 20)
    assert prove_program(segment, PRESETS[name], seed=seed).compared > 0


@pytest.mark.usefixtures("_forced")
@pytest.mark.parametrize("seed", range(6))
def test_groups(seed: int) -> None:
    check_proof(seed)


@pytest.mark.long
@pytest.mark.usefixtures("_forced")
@pytest.mark.parametrize("seed", range(6, 60))
def test_many_groups(seed: int) -> None:
    check_proof(seed)
