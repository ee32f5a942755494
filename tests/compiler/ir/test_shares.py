"""Shares of a model on device and host, against a count by hand."""

from __future__ import annotations

import numpy as np
import onnx
from support import qdq_models

from weft.compiler.frontend import import_model
from weft.compiler.ir.model import shares

CONV, DENSE = 4 * 6 * 6 * 3 * 9, 4 * 36 * 5
"""Multiplications of the model's convolution and of its matrix product."""


def model(*, between: str = "") -> onnx.ModelProto:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 8, 8)), 4)
    if between:
        result = builder.node(between, [builder.dequantise(value)], axis=1)
        value = builder.quantise(result, value.shape, 0.1, 0, False)
    return builder.finish(builder.dense(builder.flatten(value), 5))


def test_all_on_the_device() -> None:
    actual = shares(import_model(model()))
    assert (actual.device_macs, actual.host_macs, actual.on_device) == (CONV + DENSE, 0, 1.0)
    assert (actual.bytes_to_device, actual.bytes_from_device, actual.crossing) == (
        3 * 8 * 8,
        5,
        3 * 8 * 8 + 5,
    )


def test_host_operators_in_between_cross_twice() -> None:
    actual = shares(import_model(model(between="Hardmax")))
    assert (actual.device_macs, actual.host_macs) == (CONV + DENSE, 0)
    assert (actual.bytes_to_device, actual.bytes_from_device) == (3 * 8 * 8 + 4 * 36, 4 * 36 + 5)


def test_products_on_the_host_are_counted() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.input((2, 7))
    weight = builder.constant(np.ones((7, 3), np.float32))
    result = builder.node("MatMul", [builder.node("Hardmax", [builder.dequantise(value)], axis=1), weight])
    actual = shares(import_model(builder.finish(builder.quantise(result, (2, 3), 0.1, 0, False))))
    assert (actual.device_macs, actual.host_macs, actual.on_device, actual.crossing) == (0, 2 * 7 * 3, 0.0, 0)
