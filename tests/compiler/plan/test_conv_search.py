"""The best plan of a convolution is the best of all, however many are scored at a time."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.configurations import random_configuration
from support.op_cases import random_convolutions

import weft.compiler.plan.conv_search as module
from weft.compiler.machine.target import Target
from weft.compiler.plan.conv_parts import Zone
from weft.compiler.plan.conv_plan import shared_fraction, zones
from weft.compiler.plan.conv_search import ScoredPlan, Search, _Scored
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS, Config


def draw_target(rng: np.random.Generator) -> Target:
    """Presets and others, behind memories as fast as the bus and slower ones."""
    config: Config = rng.choice([*PRESETS.values()])  # type: ignore[arg-type]
    if rng.random() < 0.7:
        config = random_configuration(rng, sequential=False, n=(2, 4, 8, 16))
    return Target(config, config.bus_bytes / float(rng.choice([1, 1.5, 4])))


def searches(rng: np.random.Generator) -> list[Search]:
    target = draw_target(rng)
    segment, _ = random_convolutions(rng, side=int(rng.integers(3, 30)), channels=int(rng.integers(4, 90)))
    result = []
    for op in segment.ops:
        held = [view.buffer.name for view in (op.src, op.dst) if rng.random() < 0.2]  # type: ignore[union-attr]
        size = target.config.scratchpad_size
        region = None if rng.random() < 0.5 else (size // 4, size)
        shape = ConvShape(op, Planner(target).site(op, dict.fromkeys(held, 0), region))  # type: ignore[arg-type]
        divided = zones(target.config, shape.region, inputs=shape.src.resident is None)
        if divided:
            cut = [
                Zone(item.a[1], item.b[1], item.o[1], shared_fraction(item, target.config))
                for item in divided
            ]
            result.append(Search(shape, cut))
    return result


def least(search: Search) -> ScoredPlan | None:
    """The first of the best among the plans of all frames."""
    tile, block, chunked, bound = search.parts.frames()
    if not len(tile):
        return None
    scored = _Scored(search.parts, tile, block, chunked)
    for at, size in enumerate(tile.tolist()):
        mine = (scored.size == size) & (scored.block == block[at]) & (scored.chunked == chunked[at])
        assert not mine.any() or scored.cycles[mine].min() >= bound[at]
    return scored.plan_at(int(np.argmin(scored.cycles))) if scored.cycles.size else None


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    for search in searches(rng):
        expected = least(search)
        for plans, frames in ((1, (1, 1)), (module._PLANS, module._FRAMES), (300, (2, 7))):
            monkeypatch.setattr(module, "_PLANS", plans)
            monkeypatch.setattr(module, "_FRAMES", frames)
            assert Search(search.parts.shape, search.parts.zones).best() == expected
            monkeypatch.undo()


@pytest.mark.parametrize("seed", range(8))
def test_the_best_of_all_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 500))
def test_the_best_of_all_is_found_of_more(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)
