"""The compiler's limits against the instruction set, by encoding values at and above them."""

from __future__ import annotations

import pytest

from weft.compiler.machine import limits
from weft.hdl.isa import IsaError, Load, Mm, Store, Vec

FITS = {
    "rows": (Load, "rows", limits.COUNT_MAX), "line": (Load, "line", limits.COUNT_MAX),
    "stored rows": (Store, "rows", limits.COUNT_MAX), "loop of MM": (Mm, "kc", limits.COUNT_MAX),
    "loop of VEC": (Vec, "ob", limits.COUNT_MAX), "pixels": (Load, "pixels", limits.PIXELS_MAX),
    "stride of MM": (Mm, "a_oy", limits.STRIDE_MAX), "stride of VEC": (Vec, "dst_ox", limits.STRIDE_MAX),
    "step of MM": (Mm, "x_kx", limits.STEP_MAX), "step of VEC": (Vec, "y_oy", limits.STEP_MAX),
    "length": (Load, "length", limits.LENGTH_MAX), "pitch": (Store, "pitch", limits.PITCH_MAX),
    "before": (Load, "before", limits.BEFORE_MAX), "run": (Load, "run", limits.RUN_MAX),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "most"), FITS.values(), ids=FITS)
def test_the_largest_value_fits_and_no_larger_one(kind: type, field: str, most: int) -> None:
    kind(**{field: most}).encode()
    with pytest.raises(IsaError):
        kind(**{field: most + 1}).encode()
