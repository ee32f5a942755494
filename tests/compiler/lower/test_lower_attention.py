"""Fused attention and softmax on the golden interpreter against float64, and the steps of their programs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from support import attention_bounds as bounds
from support import attention_cases, configurations
from support.attention_cases import (
    attention,
    random_attention,
    random_inputs,
    random_softmax,
    real,
    valid,
    view,
)
from support.repeated import repeated

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir import products as reference
from weft.compiler.ir.graph import Attention, DeviceSegment, Rounding, Softmax
from weft.compiler.ir.scales import NEGLIGIBLE_SHIFT, k_zero_shift
from weft.compiler.machine.target import Target
from weft.compiler.plan import attention_plan
from weft.compiler.plan.attention_plan import plan, steps, tiles
from weft.compiler.verify import verify_op
from weft.hdl.checker.program import check
from weft.hdl.isa import PARAMETER_VECTORS, Mm
from weft.hdl.isa.config import PRESETS, Config
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice

CONFIGS = {name: config for name, config in configurations.every().items() if config.softmax}


def run(op: Attention | Softmax, inputs: dict[str, np.ndarray], config: Config) -> np.ndarray:
    verify_op(op)
    program = compile_segment(DeviceSegment("test", (op,)), config)
    check(program.instructions, config, extents=program.areas.extents)
    image = Image(program)
    device = GoldenDevice(config, image.memory_bytes)
    image.run(device, inputs)
    return image.read(device, "y")


def error_within_bounds(op: Attention | Softmax, rng: np.random.Generator, config: Config) -> float | None:
    """Largest error as a share of the documented bound, or None if scores may saturate."""
    inputs = random_inputs(rng, op)
    if isinstance(op, Attention):
        got = run(op, inputs, config)
        if bounds.may_clamp(op, inputs):
            return None
        exact, bound = real(op, inputs), bounds.attention(op, inputs, config)
    else:
        got = run(op, inputs, config)
        scores = (inputs["x"].astype(float) - op.x_zero) * op.score_scale
        if np.abs(scores).max() > bounds.SCORE_CLAMP:
            return None
        exact = reference.probabilities(scores, np.ones(1, bool)) * op.scale + op.y_zero
        bound = bounds.softmax(op, inputs["x"], config)
    return float((np.abs(got - np.clip(exact, op.low, op.high)) / (bound + 0.5)).max())


def errors(kind: str, name: str, seed: int, cases: int) -> list[float]:
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, config.n, config.probability_bits])
    result = []
    for case in range(cases):
        op = random_attention(rng, config) if kind == "attention" else random_softmax(rng)
        error = error_within_bounds(op, rng, config)
        assert error is None or error <= 1, f"seed {seed}, case {case}: {error:.2f} times the bound of {op}"
        result += [] if error is None else [error]
    return result


@pytest.mark.drawn(12)
@pytest.mark.parametrize("kind", ["attention", "softmax"])
@pytest.mark.parametrize("name", CONFIGS)
def test_close_to_float64(name: str, kind: str) -> None:
    """Every configuration; saturated scores have no float64 reference and are only run."""
    actual = errors(kind, name, 0, 12)
    assert len(actual) >= 4
    assert max(actual) > 0.4  # the bound is tight


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("kind", ["attention", "softmax"])
@pytest.mark.parametrize("name", CONFIGS)
def test_close_to_float64_more(name: str, kind: str, seed: int) -> None:
    errors(kind, name, seed, 30)


@pytest.mark.parametrize("name", CONFIGS)
def test_zero_points_with_large_scales(name: str) -> None:
    """Scores of 20 nats and more, some far beyond the clamp without the product of zero points."""
    config, rng = CONFIGS[name], np.random.default_rng(0)
    for q_zero, k_zero in ((20, 110), (-128, -128), (-128, 127), (127, -128)):
        op = attention(6, 8, 16, score_scale=0.15 * 0.15 / 4, q_zero=q_zero, k_zero=k_zero)
        zeros = {"q": (op.q, q_zero), "k": (op.k, k_zero), "v": (op.v, 0)}
        inputs = {
            key: np.clip(np.rint(rng.normal(zero, 30, item.shape)), -128, 127).astype(np.int8)
            for key, (item, zero) in zeros.items()
        }
        assert bounds.SCORE_CLAMP > attention_cases.largest_score(op, inputs) > 20
        error = np.abs(run(op, inputs, config) - np.clip(real(op, inputs), -128, 127))
        assert (error <= bounds.attention(op, inputs, config) + 0.5).all()


@pytest.mark.parametrize("k_zero", [1, -1])
@pytest.mark.parametrize("name", CONFIGS)
def test_rounded_scores_see_the_zero_point_of_keys(name: str, k_zero: int) -> None:
    """A shift of all scores of a row moves them relative to the clamp."""
    config, rng = CONFIGS[name], np.random.default_rng(0)
    rounding = Rounding(0.02, 3, -70, 90)
    op = attention(5, 9, 16, q_zero=-100, k_zero=k_zero, score_scale=0.01, rounding=rounding, scale=4.0)
    assert k_zero_shift(1, 16, op.score_scale) < NEGLIGIBLE_SHIFT
    inputs = {"q": rng.integers(-20, 128, op.q.shape), "k": rng.integers(-30, 31, op.k.shape) + k_zero,
              "v": rng.integers(-20, 21, op.v.shape)}  # fmt: skip
    inputs = {key: value.astype(np.int8) for key, value in inputs.items()}
    without = real(dataclasses.replace(op, k_zero=0), inputs)
    assert np.abs(without - real(op, inputs)).max() > 2
    error = np.abs(run(op, inputs, config) - real(op, inputs))
    assert (error <= bounds.attention(op, inputs, config) + 0.5).all()


@pytest.mark.drawn(8)
@pytest.mark.parametrize("length", [32768, 65535])
@pytest.mark.parametrize("name", CONFIGS)
def test_long_softmax(name: str, length: int) -> None:
    """More columns than an instruction counts, in one row and in several; the last elements count."""
    x = np.zeros((1, 1, 2, length), np.int8)
    x[..., -5:] = 50
    op = Softmax("s", view("x", x.shape), view("y", x.shape, "output"), 0.05, 2.0 * length)
    exact = reference.probabilities(x * 0.05, np.ones(1, bool)) * op.scale
    assert np.abs(run(op, {"x": x}, CONFIGS[name]) - exact).max() <= 1


def test_without_any_key_the_result_is_zero() -> None:
    op = attention(9, 20, 16, lengths=(0,), y_zero=17, v_zero=5)
    assert (run(op, random_inputs(np.random.default_rng(0), op), PRESETS["small"]) == 17).all()


@repeated("seed", range(40))
def test_steps_cover_visible_scores_once(seed: int) -> None:
    """Each visible pair of query and key is in exactly one step; fully masked blocks are in none."""
    rng = np.random.default_rng(seed)
    config = PRESETS[str(rng.choice(["tiny", "small", "default"]))]
    op = random_attention(rng, config)
    chosen = plan(op, Target(config))
    assert chosen is not None
    for index, tile in enumerate(tiles(op, chosen)):
        seen = np.zeros((op.q.shape[2], op.keys + config.n * chosen.block), int)
        actual = steps(op, chosen, config, tile, index)
        assert [step.start for step in actual] == [True] + [False] * (len(actual) - 1)
        assert [step.end for step in actual] == [False] * (len(actual) - 1) + [True]
        assert actual[0].position == tile.position
        mask = valid(op, tile.image)
        end = tile.position + tile.positions
        for step in actual:
            assert step.first // chosen.block == (step.first + step.columns - 1) // chosen.block
            seen[step.position : end, step.first : step.first + step.columns] += 1
            useful = mask[step.position : end, step.first : step.first + step.columns]
            assert useful.any() or len(actual) == 1 or step.start
        inside = seen[tile.position : end, : op.keys]
        assert (inside[mask[tile.position : end]] == 1).all()
        assert inside.max() <= 1


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", CONFIGS)
def test_zones_of_the_scratchpad_are_apart(name: str) -> None:
    """Zones include parameters for softmax and rounding, but not the transient table."""
    config, rng = CONFIGS[name], np.random.default_rng(3)
    for _ in range(40):
        op = random_attention(rng, config)
        chosen = plan(op, Target(config))
        assert chosen is not None
        rows = chosen.rows * chosen.block // config.n
        assert chosen.rounded[1] == (0 if op.rounding is None else rows)
        zones = [chosen.q, chosen.kv, chosen.p, chosen.out, chosen.rounded, (chosen.constants, 2, 1)]
        zones.append((chosen.params, PARAMETER_VECTORS, 1 if op.rounding is None else 2))
        spans = sorted((first, first + size * slots) for first, size, slots in zones if size)
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
        assert spans[-1][1] <= config.scratchpad_size


def test_heads_of_a_group_share_a_tile() -> None:
    op = attention(1, 64, 64, heads=8, kv_heads=2)
    chosen = plan(op, Target(PRESETS["default"]))
    assert chosen is not None
    assert (chosen.heads, chosen.positions) == (4, 1)


@pytest.mark.parametrize("keys", [64, 512, 4096, 16384])
def test_memory_does_not_grow_with_the_sequence(keys: int) -> None:
    config = PRESETS["default"]
    op = attention(128, keys, 64, score_scale=2 / (1600 * 8))
    chosen = plan(op, Target(config))
    assert chosen is not None
    assert chosen.rows <= 128
    assert chosen.block <= 256
    rng = np.random.default_rng(keys)
    inputs = {
        name: np.clip(np.rint(rng.normal(0, 40, view.shape)), -128, 127).astype(np.int8)
        for name, view in (("q", op.q), ("k", op.k), ("v", op.v))
    }
    op = dataclasses.replace(op, scale=127 / np.abs(real(op, inputs)).max())
    error = run(op, inputs, config) - real(op, inputs)
    assert np.sqrt(np.mean(error**2)) < 0.5


def test_more_keys_than_fit_are_loaded_again() -> None:
    """A small scratchpad loads keys once per tile; results are equal."""
    small = PRESETS["default"].replace(scratchpad_depth=256)
    op = attention(256, 600, 64, score_scale=1e-4)
    inputs = random_inputs(np.random.default_rng(4), op)
    assert np.array_equal(run(op, inputs, small), run(op, inputs, PRESETS["default"]))


@pytest.mark.parametrize("preset", ["small", "default"])
def test_order_of_steps_does_not_change_results(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of steps, across tiles too, and the last block's values in parts only reorder sums."""
    rng, config = np.random.default_rng(8), PRESETS[preset]
    for heads, keys, size, images in ((4, 150, 16, 1), (1, 90, 20, 3), (2, 61, 16, 2)):
        op = attention(1, keys, size, heads=heads, images=images, v_zero=3, score_scale=1e-3)
        inputs = random_inputs(rng, op)
        chosen = plan(op, Target(config))
        assert chosen is not None
        assert min(chosen.kv[2], chosen.scores[2], chosen.sums[2] + (images == 1)) > 1
        results = []
        for pairs, parts in ((False, 1), (True, 1), (False, 4), (True, 3)):
            forced = dataclasses.replace(chosen, pairs=pairs, last_parts=parts)
            monkeypatch.setattr(attention_plan, "plan", lambda op, target, forced=forced: forced)
            results.append(run(op, inputs, config))
        assert all(np.array_equal(results[0], result) for result in results[1:])
        exact, bound = real(op, inputs), bounds.attention(op, inputs, config)
        assert (np.abs(results[0] - np.clip(exact, op.low, op.high)) <= bound + 0.5).all()


def test_one_query_pairs_keys_unless_sums_wait() -> None:
    op, target = attention(1, 1024, 64, heads=8, kv_heads=2), Target(PRESETS["default"])
    chosen = plan(op, target)
    assert chosen is not None
    assert (chosen.pairs, chosen.last_parts, chosen.sums[2]) == (True, 4, 2)


def test_steps_of_two_tiles_do_not_pair_without_room_for_sums() -> None:
    """25 steps a tile: a pair would start the next tile's sums before the division of the previous tile's."""
    short = PRESETS["small"].replace(accumulator_banks=2, accumulator_depth=16)
    op = attention(1, 200, 64, heads=4, kv_heads=2)
    chosen = plan(op, Target(short))
    assert chosen is not None
    assert (chosen.scores[2], chosen.sums[2], chosen.block) == (2, 1, 8)
    inputs = random_inputs(np.random.default_rng(5), op)
    assert np.array_equal(run(op, inputs, short), run(op, inputs, PRESETS["small"]))


def test_layout_of_heads_does_not_change_results() -> None:
    """Heads as channels or as images hold equal numbers in another order."""
    rng = np.random.default_rng(6)
    beside = attention(20, 30, 16, images=2, heads=4, kv_heads=2, causal=True, offset=3)
    apart = attention(20, 30, 16, images=2, heads=4, kv_heads=2, causal=True, offset=3, beside=False)
    inputs = random_inputs(rng, beside)
    other = {}
    for name, item, heads in (("q", apart.q, 4), ("k", apart.k, 2), ("v", apart.v, 2)):
        parts = [
            attention_cases.head(inputs[name], beside, i, h, heads) for i in range(2) for h in range(heads)
        ]
        other[name] = np.stack(parts)[:, None].astype(np.int8).reshape(item.shape)
    got = run(beside, inputs, PRESETS["small"])
    parts = [attention_cases.head(got, beside, i, h, 4) for i in range(2) for h in range(4)]
    assert np.array_equal(np.stack(parts)[:, None], run(apart, other, PRESETS["small"]))


def test_too_large_for_any_tile() -> None:
    config = PRESETS["tiny"].replace(accumulator_depth=16)
    op = attention(4, 4, 4, v_size=400)
    with pytest.raises(CompileError, match="attention: not even one output of this attention fits on chip"):
        compile_segment(DeviceSegment("test", (op,)), config)


def test_no_softmax_unit() -> None:
    op = attention(4, 4, 16)
    with pytest.raises(CompileError, match="has no softmax unit; set 'probability_bits' to 8"):
        compile_segment(DeviceSegment("test", (op,)), PRESETS["tiny"].replace(probability_bits=0))


def test_zero_points_of_keys_cost_only_where_they_matter() -> None:
    """K's zero point is dropped where shifted scores cannot reach their clamp."""

    def products(k_zero: int, score_scale: float) -> int:
        op = attention(16, 16, 16, k_zero=k_zero, score_scale=score_scale)
        program = compile_segment(DeviceSegment("test", (op,)), PRESETS["default"])
        return sum(isinstance(instruction, Mm) for instruction in program.instructions)

    assert products(-3, 1e-3) == products(0, 1e-3)
    assert products(-128, 1e-2) == 2 * products(0, 1e-2)  # two more products for each score
