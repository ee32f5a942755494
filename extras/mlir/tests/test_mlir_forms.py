"""Matching of TOSA patterns: holes, numbers and their types."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.extras.mlir import device_text, forms


def matches(term: forms.Number, values: list[np.ndarray | None]) -> bool:
    """Return whether one pattern name matches all of some constants; None is a variable value."""
    names = [object() for _ in values]
    arrays = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    builder: Any = SimpleNamespace(arrays=arrays)
    result: dict[str, Any] = {}
    return all(forms._unify(builder, term, name, result, {}) for name in names)  # type: ignore[arg-type]


def test_numbers_have_a_type_and_one_value() -> None:
    number = forms.Number("n")
    three = np.full((2, 3), 3, np.int32)
    assert matches(number, [three])
    assert matches(number, [three, three[:1]])
    assert not matches(number, [three.astype(np.int64)])
    assert not matches(number, [three.astype(np.int8)])
    assert not matches(number, [None])
    assert not matches(number, [three, three + 1])
    listed = forms.Number("n", "int8", listed=True)
    assert matches(listed, [np.array([1, 2], np.int8)] * 2)
    assert not matches(listed, [np.array([1, 2], np.int8), np.array([1, 3], np.int8)])


@pytest.mark.parametrize("shift", [-100, -31, -30])
def test_scales_without_a_shift_in_tosa(shift: int) -> None:
    """Shifts below 2 even after widening the multiplier."""
    with pytest.raises(CompileError, match="which TOSA's rescale cannot"):
        device_text._widen(SimpleNamespace(name="op"), 1 << 23, shift, (-(1 << 30), 1 << 30))
