"""Proposals of searches that share a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.extras.search.explore.space import Study
from weft.extras.search.tests.support.explored import task


@pytest.mark.parametrize("mine", [None, [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("other", [None, [3.0, 2.0, 1.0]])
@pytest.mark.parametrize("between", [False, True])
def test_two_reports_of_one_proposal(
    mine: list[float] | None,
    other: list[float] | None,
    between: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first counts, even if the second comes after Optuna has read the proposal's state."""
    search = task(tmp_path)
    first, second = (
        Study(
            tmp_path / "journal.log",
            "weft",
            search.space,
            search.places,
            search.objectives,
            "nsga2",
            seed=seed,
        )
        for seed in (1, 2)
    )
    number, values, place = first.propose()
    accepted: list[bool] = []

    def tell(*_: Any) -> None:
        monkeypatch.undo()
        accepted.append(second.tell(number, other))

    if between:
        monkeypatch.setattr(first._study.sampler, "after_trial", tell)
    else:
        tell()
    accepted.append(first.tell(number, mine))
    # Both see the same solutions, whatever they reported.
    assert accepted == [other is not None] * 2
    solutions = [] if other is None else [(values, place)]
    assert list(first.solutions()) == list(second.solutions()) == solutions
    assert not list(first.abandoned_trials())
    assert first.propose()[0] > number
