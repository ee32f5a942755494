"""The compiler's limits against the instruction set, by encoding values at and above them."""

from __future__ import annotations

import pytest

from weft.compiler.machine import target
from weft.hdl.errors import IsaError
from weft.hdl.isa import Load, Mm, Store, Vec

FITS = {
    "rows": (Load, "rows", target.COUNT_MAX), "line": (Load, "line", target.COUNT_MAX),
    "stored rows": (Store, "rows", target.COUNT_MAX), "loop of MM": (Mm, "kc", target.COUNT_MAX),
    "loop of VEC": (Vec, "ob", target.COUNT_MAX), "pixels": (Load, "pixels", target.PIXELS_MAX),
    "stride of MM": (Mm, "a_oy", target.STRIDE_MAX), "stride of VEC": (Vec, "dst_ox", target.STRIDE_MAX),
    "step of MM": (Mm, "x_kx", target.STEP_MAX), "step of VEC": (Vec, "y_oy", target.STEP_MAX),
    "length": (Load, "length", target.LENGTH_MAX), "pitch": (Store, "pitch", target.PITCH_MAX),
    "before": (Load, "before", target.BEFORE_MAX), "run": (Load, "run", target.RUN_MAX),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "most"), FITS.values(), ids=FITS)
def test_the_largest_value_fits_and_no_larger_one(kind: type, field: str, most: int) -> None:
    kind(**{field: most}).encode()
    with pytest.raises(IsaError):
        kind(**{field: most + 1}).encode()
