"""Elements along an axis as runs: whole ones, and places between them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.onnx.reorder import Run, find_runs


def places(found: list[Run]) -> dict[int, int]:
    """What each place takes."""
    return {
        run.target + at * run.target_step: run.source + at * run.step
        for run in found
        for at in range(run.length)
    }


@pytest.mark.parametrize("unit", [1, 2, 6])
def test_runs_are_what_was_asked_for(unit: int) -> None:
    for seed in range(60):
        rng = np.random.default_rng([seed, unit])
        indices = rng.integers(0, 4 * unit, int(rng.integers(1, 20)))
        if seed % 2:
            indices = np.sort(indices)
        found = find_runs(indices, unit=unit)
        assert found is not None
        assert places(found) == dict(enumerate(indices.tolist()))
        for run in found:
            assert run.length == 1 or (run.step >= 0 and run.step % unit == 0)
            assert run.length == 1 or run.step or run.source % unit == 0, (
                "a place between elements is not repeated"
            )


def test_runs_are_few() -> None:
    assert find_runs(np.arange(100)) == [Run(0, 0, 100, 1, 1)]
    assert len(find_runs(np.repeat(np.arange(50), 2)) or ()) == 2
    assert find_runs(np.random.default_rng(0).permutation(200)) is None
    assert len(find_runs(np.arange(1, 80, 4), unit=8) or ()) == 2
