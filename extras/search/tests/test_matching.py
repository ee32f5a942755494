"""Names of windows in rules."""

from __future__ import annotations

import pytest

from weft.compiler.ir.windows import Window
from weft.extras.search.substitution.matching import Match
from weft.extras.search.substitution.term import HALF


@pytest.mark.parametrize(("name", "window"), [("1", Window((1, 1))), ("s", Window((1, 1), (2, 2)))])
def test_windows_that_have_names_of_their_own(name: str, window: Window) -> None:
    """Windows of one element, and of every second row and column; equal windows only."""
    match = Match()
    assert match.with_window(name, window) == match
    assert match.with_window(name, Window((3, 3))) is None
    assert match.with_window(name, Window() if name == "s" else HALF) is None


def test_other_windows_are_named_once() -> None:
    match = Match().with_window("a", Window((3, 3)))
    assert match is not None
    assert match.with_window("a", Window((3, 3))) == match
    assert match.with_window("a", Window((3, 1))) is None
    both = match.with_window("b", Window((3, 1)))
    assert both is not None
    assert both.windows == {"a": Window((3, 3)), "b": Window((3, 1))}
