"""Number of inputs of each TFLite operator, as checked by its kernels."""

from __future__ import annotations

import pytest
from support.tflite_models import Model

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.tflite.record import NAMES

INPUTS: dict[tuple[int, int | None], str] = {
    (0, 0): "CALL_ONCE VAR_HANDLE",
    (1, 1):
        "ABS AVERAGE_POOL_2D CAST CEIL COS DEPTH_TO_SPACE DEQUANTIZE ELU EXP FLOOR GELU HARD_SWISH "
        "L2_NORMALIZATION LEAKY_RELU LOG LOGICAL_NOT LOGISTIC LOG_SOFTMAX MAX_POOL_2D NEG QUANTIZE READ_VARIABLE "
        "RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 ROUND RSQRT SHAPE SIGN SIN SOFTMAX SPACE_TO_DEPTH SQRT SQUARE "
        "SQUEEZE TANH UNPACK",
    (1, 2): "RESHAPE",
    (1, None): "ADD_N CONCATENATION PACK",
    (2, 2):
        "ADD ARG_MAX ARG_MIN ASSIGN_VARIABLE BATCH_MATMUL BROADCAST_TO DIV EMBEDDING_LOOKUP EQUAL EXPAND_DIMS "
        "GATHER GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR MAXIMUM MEAN MINIMUM MIRROR_PAD MUL "
        "NOT_EQUAL PAD POW PRELU REDUCE_MAX REDUCE_MIN REDUCE_PROD RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR "
        "REVERSE_V2 SPLIT SQUARED_DIFFERENCE SUB SUM TILE TRANSPOSE",
    (2, 3): "CONV_2D DEPTHWISE_CONV_2D FULLY_CONNECTED",
    (20, 24): "UNIDIRECTIONAL_SEQUENCE_LSTM",
    (3, 3): "BATCH_TO_SPACE_ND PADV2 SELECT SELECT_V2 SLICE SPACE_TO_BATCH_ND SPLIT_V",
    (3, 4): "TRANSPOSE_CONV",
    (4, 4): "STRIDED_SLICE",
    (5, 5): "SVDF",
}  # fmt: skip


def one_operator_file(name: str, count: int) -> bytes:
    """An operator with so many inputs, all the same."""
    model = Model()
    source, result = (model.tensor((1, 4), "int8", 0.1, 3, name=name) for name in "xy")
    model.operator(name, [source] * count, [result])
    return model.write([source], [result])


def refusal(name: str, count: int) -> str:
    with pytest.raises(CompileError) as caught:
        import_model(one_operator_file(name, count))
    return str(caught.value).partition("which makes tensor 1 ('y'), ")[2]


TAKEN = {(1, 1): "RELU", (2, 2): "MAXIMUM", (1, None): "ADD_N", (1, 2): "RESHAPE"}
"""One of some, that may have all inputs alike."""


@pytest.mark.parametrize("counts", INPUTS, ids=str)
def test_numbers_of_inputs_of_each(counts: tuple[int, int | None]) -> None:
    (least, most), names = counts, INPUTS[counts].split()
    assert sorted(names) == sorted(name for name, record in NAMES.items() if record.inputs == counts)
    expected = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
    wrong = [
        count for count in (least - 1, None if most is None else most + 1) if count is not None and count >= 0
    ]
    for count in wrong:
        assert refusal(names[-1], count) == f"has {count} inputs; it takes {expected}"
    if counts in TAKEN:
        assert list(import_model(one_operator_file(TAKEN[counts], least)).outputs) == ["y"]
