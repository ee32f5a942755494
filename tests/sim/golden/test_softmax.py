"""Distance of the unit's softmax and attention from float64: all rows of two scores, and random longer ones.

The rows and errors are those of `benchmarks/accuracy.py`, which measures many more.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from support import attention_bounds, configurations

from weft.hdl.isa.config import PRESETS
from weft.sim.golden import vector

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "accuracy.py"
SPEC = importlib.util.spec_from_file_location("accuracy", PATH)
assert SPEC is not None
assert SPEC.loader is not None
accuracy = sys.modules["accuracy"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(accuracy)

DEFAULT = PRESETS["default"]
CONFIGS = {name: config for name, config in configurations.every().items() if config.softmax}
STEPS = [0.5 / 32, 1 / 32, 4 / 32, 0.3]
"""Sizes of a step of int8 scores, in nats."""


@pytest.mark.parametrize("nats", STEPS)
def test_octave_logits_of_all_bytes(nats: float) -> None:
    mantissa, shift = accuracy.score_multiplier(nats)
    scores = np.arange(-128, 128)
    y = vector.octave_logits(scores[:, None], np.zeros(1, np.int64), mantissa, shift)[:, 0]
    exact = np.clip(scores * nats / math.log(2) * vector.OCTAVE, -(1 << 15), (1 << 15) - 1)
    assert np.abs(y - exact).max() <= 0.501  # of the multiplier, too


@pytest.mark.parametrize("name", CONFIGS)
def test_probabilities_of_all_distances(name: str) -> None:
    """Each is the power of two in the middle of its entry, rounded; from 16 octaves on it is 0."""
    config = CONFIGS[name]
    table = np.frombuffer(config.exp2_table, np.uint8)
    distances, top = np.arange(vector.REACH + 2), (1 << config.probability_bits) - 1
    found = vector.probabilities(-distances[:, None], np.ones((1, 1), bool), np.zeros(1, np.int64), table)[
        :, 0
    ]
    exact = top * 2.0 ** (-distances / vector.OCTAVE)
    half = (vector.REACH // config.table_depth - 1) / 2 / vector.OCTAVE  # of an entry, in octaves
    assert (np.abs(found - exact) <= 0.5 + exact * (2**half - 1)).all()
    assert not found[vector.REACH :].any()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("nats", STEPS)
def test_all_rows_of_two(together: bool, nats: float) -> None:
    """Every pair of bytes, in one group of columns or in two."""
    pairs = np.stack(np.meshgrid(*[np.arange(-128, 128)] * 2), axis=-1).reshape(-1, 2)
    unit = accuracy.Block(pairs.astype(np.int8), nats, DEFAULT, 2 if together else 1)
    found = unit.probabilities()
    exact = accuracy.from_powers(pairs.astype(np.int8), nats, lambda below: np.exp(-below))
    assert 255 * np.abs(found - exact).max() <= 1.5
    assert np.abs(found.sum(axis=1) - 1).max() <= 0.001
    assert np.abs(unit.output() - 255 * exact).max() <= 2


@pytest.mark.parametrize("length", accuracy.LENGTHS)
@pytest.mark.parametrize("sigma", accuracy.SIGMAS)
def test_random_rows(length: int, sigma: float) -> None:
    rng = np.random.default_rng([length, int(10 * sigma)])
    error = accuracy.probabilities(length, sigma, 500, DEFAULT, rng, ("block",))["block"]
    assert error.largest <= 3
    assert error.row_sum <= 0.01
    assert error.output <= 3.5
    assert error.rms <= 0.36


@pytest.mark.parametrize("length", [1, 7, 64, 500])
@pytest.mark.parametrize("name", CONFIGS)
def test_random_rows_on_every_configuration(name: str, length: int) -> None:
    """Within the error of the roundings, whether N divides the length or not."""
    config, rng = CONFIGS[name], np.random.default_rng(length)
    for nats in (0.002, 0.05, 0.3, 1.3):
        scores = rng.integers(-128, 128, (40, length)).astype(np.int8)
        p, off, unit_of_rows = attention_bounds.powers(scores * nats, np.ones(scores.shape, bool), config)
        total, share = p.sum(1, keepdims=True), off.sum(1, keepdims=True)
        bound = (off + p / total * share) / np.maximum(total - share, 0.05 * total)
        unit = accuracy.Block(scores, nats, config)
        assert (np.abs(unit.probabilities() - p / total) <= bound + 2.0**-14).all()
        assert (np.abs(unit.output() - 255 * p / total) <= 255 * (bound + 2.0**-14) + 0.5).all()
        v = rng.integers(-128, 128, (length, 3))
        error = np.abs(unit.attend(v, 0.9) - 0.9 * (p / total @ v))
        assert (error <= 0.9 * attention_bounds.means((p, off, unit_of_rows), v, 0, config) + 0.5).all()


@pytest.mark.parametrize("keys", [64, 1024, 4096])
@pytest.mark.parametrize("sigma", accuracy.SIGMAS)
@pytest.mark.parametrize("full", [False, True])
def test_fused_attention(keys: int, sigma: float, full: bool) -> None:
    head = accuracy.Head.random(keys, sigma, False, np.random.default_rng([keys, int(10 * sigma)]))
    assert accuracy.fused_errors(head, DEFAULT, full=full)["block"] <= 0.5


def test_reciprocals() -> None:
    """All sums of 17 bits, and some of each other number of bits, within 2**-15."""
    rng = np.random.default_rng(0)
    more = np.concatenate([rng.integers(1 << bits, 2 << bits, 2000) for bits in range(17, 32)])
    sums = np.concatenate([np.arange(1, 1 << 17), more])
    for scale in (1 << 15, 50_000, 65_535):
        bits, r = vector.reciprocal(sums, scale)
        exact = scale * 2.0 ** (bits - 1) / sums
        assert np.abs(np.minimum(exact, 65535) - r).max() <= 2, scale


def test_no_probabilities_at_all() -> None:
    bits, r = vector.reciprocal(np.zeros(1, np.int64), 1 << 15)
    assert (bits[0], r[0]) == (0, 0)
