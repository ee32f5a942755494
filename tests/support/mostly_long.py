"""Parametrised tests of which only some cases run in ``make test``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_long(cases: Iterable[Any], *kept: int) -> list[Any]:
    """`cases` for `pytest.mark.parametrize`: those with the `kept` numbers run in ``make test``, the others are long.

    Raises `IndexError` if there is no case of a number.
    """
    cases = list(cases)
    for number in kept:
        cases[number]
    return [
        case
        if number in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for number, case in enumerate(cases)
    ]
