"""Weights of the type INT4 in TFLite files: the same program as of the same weights in INT8."""

from __future__ import annotations

import numpy as np
import pytest
from support.tflite_models import Model

import weft
from weft.compiler.errors import CompileError
from weft.hdl.isa.encoding import pack_int4

SHAPES = {"FULLY_CONNECTED": (7, 45), "CONV_2D": (7, 3, 3, 5)}


def model(operator: str, dtype: str, *, channels: bool = True, cut: int | None = None) -> bytes:
    """One operator with random weights of 4 bits, of an odd number; of their bytes in the file only some, if `cut`."""
    produced, rng, shape = Model(), np.random.default_rng(3), SHAPES[operator]
    conv = operator == "CONV_2D"
    source = produced.tensor((1, 8, 8, 5) if conv else (4, 45), "int8", 0.05, 3)
    result = produced.tensor((1, 6, 6, 7) if conv else (4, 7), "int8", 0.0503, -2)
    values = rng.integers(-8, 8, shape).astype(np.int8)
    data = pack_int4(values) if dtype == "int4" else values.tobytes()
    scale = rng.uniform(0.01, 0.03, shape[0] if channels else 1)
    weights = produced.tensor(shape, dtype, scale, np.zeros(scale.size, int), data=data[:cut])
    bias = produced.tensor(
        (7,), "int32", 0.05 * scale, np.zeros(scale.size, int), data=rng.integers(-99, 99, 7, "int32")
    )
    options = {"Padding": 1, "StrideH": 1, "StrideW": 1} if conv else {}
    produced.operator(
        operator, [source, weights, bias], [result], "Conv2D" if conv else "FullyConnected", **options
    )
    return produced.write([source], [result])


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("operator", SHAPES)
def test_is_the_model_in_8_bits(operator: str, channels: bool) -> None:
    four, eight = (
        weft.compile(model(operator, dtype, channels=channels), "small") for dtype in ("int4", "int8")
    )
    (program,), (other,) = four.device_programs, eight.device_programs
    assert program.instructions.tobytes() == other.instructions.tobytes()
    assert program.constants == other.constants
    assert four.narrow_bytes > 0
    ((name, (_, shape)),) = four.inputs.items()
    x = {name: np.random.default_rng(5).integers(-128, 128, shape).astype(np.int8)}
    (outputs,), (expected,) = four.run(x).outputs.values(), eight.run(x).outputs.values()
    assert np.array_equal(outputs, expected)
    assert np.unique(outputs).size > 10


def test_packed_values_of_a_wrong_length() -> None:
    with pytest.raises(
        CompileError, match=r"of type int4 and shape 7x45 has 157 bytes of contents; it must have 158$"
    ):
        weft.compile(model("FULLY_CONNECTED", "int4", cut=157), "small")
