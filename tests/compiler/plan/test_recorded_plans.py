"""Estimates of all candidate plans equal the recorded ones."""

import pytest
from support.recorded_plans import NAMES, cases, estimate, recorded

HOW = "if that is meant, record them anew: cd tests && ../.venv/bin/python -m support.recorded_plans"


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", NAMES)
def test_estimates_equal_the_recorded_ones(name: str) -> None:
    before, now = recorded()[name], {title: estimate(case) for title, case in cases(name)}
    assert list(now) == list(before)
    other = {title: (before[title], item) for title, item in now.items() if before[title] != item}
    assert not other, f"{HOW}\n" + "\n".join(
        f"{title}: {old}, now {new}" for title, (old, new) in other.items()
    )


def test_most_operators_have_plans() -> None:
    """With a quarter of the scratchpad less, too."""
    actual = [item for plans in recorded().values() for item in plans.values()]
    assert sum(not item for item in actual) < len(actual) / 20
