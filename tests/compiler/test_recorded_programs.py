"""Programs equal the recorded ones: slower or different code is noticed."""

import pytest
from support.recorded_programs import NAMES, measure, recorded

HOW = "if that is meant, record them anew: cd tests && ../.venv/bin/python -m support.recorded_programs"


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", NAMES)
def test_programs_equal_the_recorded_ones(name: str) -> None:
    before, now = recorded()[name], measure(name)
    assert list(now) == list(before)
    other = {title: (before[title], item) for title, item in now.items() if before[title] != item}
    assert not other, f"{HOW}\n" + "\n".join(
        f"{title}: {old}, now {new}" for title, (old, new) in other.items()
    )
