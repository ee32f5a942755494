"""Tests of many draws in one case: all of them run, and an error notes the failing value."""

from __future__ import annotations

import pytest
from support.repeated import repeated


def test_every_value_runs_until_one_fails() -> None:
    ran = []

    @pytest.mark.parametrize("other", [7])
    @repeated("seed", range(5))
    def drawn(seed: int, other: int) -> None:
        ran.append((seed, other))
        assert seed != 3

    with pytest.raises(AssertionError) as failed:
        drawn(other=7)
    assert ran == [(seed, 7) for seed in range(4)]
    assert failed.value.__notes__ == ["seed = 3"]


@repeated("value", [1, 2])
def test_fixtures_and_parameters_stay(value: int, request: pytest.FixtureRequest) -> None:
    assert "value" not in request.fixturenames
    assert value in (1, 2)
