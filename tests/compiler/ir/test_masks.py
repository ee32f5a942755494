"""Causal masks, key by key."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.ir.scales import causal


@pytest.mark.parametrize("offset", [-2, 0, 3])
def test_causal(offset: int) -> None:
    wanted = [[key <= query + offset for key in range(4)] for query in range(3)]
    assert causal(3, 4, offset).tolist() == wanted


def test_offset_of_each_image() -> None:
    found = causal(3, 4, np.array([1, -1]).reshape(2, 1, 1))
    assert np.array_equal(found, [causal(3, 4, 1), causal(3, 4, -1)])
