"""Defaults of operators: no clamp, no addend, no change."""

from __future__ import annotations

import dataclasses
from typing import Any

from weft.compiler.ir.windows import ONE
from weft.compiler.operators.record import _operators

NEUTRAL: dict[str, Any] = {
    "low": -128, "high": 127, "clamp": (-(1 << 15), (1 << 15) - 1), "offset": 0, "least": 0, "page": 0, "group": 1,
    "groups": 1, "factor": 1, "gain": 1, "scale": 1, "a_scale": 1, "b_scale": 1, "by": "", "root": "", "window": ONE,
    "constants": (),
    **dict.fromkeys(("a_zero", "b_zero", "k_zero", "of_zero", "q_zero", "r_zero", "v_zero", "x_zero", "y_zero"), 0),
    **dict.fromkeys(("a_transposed", "a_wide", "b_wide", "causal", "final", "include_pad", "smallest", "swapped",
                     "transposed", "wide", "x_wide"), False),
    **dict.fromkeys(("b", "bias", "epilogue", "lookup", "number", "plan", "pool", "rounding", "table", "weight")),
}  # fmt: skip
"""Neutral value by field name."""
NORMS = {"LayerNorm": True, "GroupNorm": True, "WideLayerNorm": True}
"""Operators that subtract the mean by default."""


def test_defaults_are_neutral() -> None:
    for kind in _operators():
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                neutral = NORMS.get(kind.__name__, False) if field.name == "centre" else NEUTRAL[field.name]
                assert field.default == neutral, (kind.__name__, field.name)
