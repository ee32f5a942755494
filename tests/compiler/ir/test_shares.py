"""What of a model is where, against what is counted by hand."""

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
        made = builder.node(between, [builder.dequantise(value)], axis=1)
        value = builder.quantise(made, value.shape, 0.1, 0, False)
    return builder.finish(builder.dense(builder.flatten(value), 5))


def test_all_on_the_device() -> None:
    found = shares(import_model(model()))
    assert (found.device_macs, found.host_macs, found.on_device) == (CONV + DENSE, 0, 1.0)
    assert (found.bytes_to_device, found.bytes_from_device, found.crossing) == (3 * 8 * 8, 5, 3 * 8 * 8 + 5)


def test_what_the_host_makes_between_crosses_twice() -> None:
    found = shares(import_model(model(between="Hardmax")))
    assert (found.device_macs, found.host_macs) == (CONV + DENSE, 0)
    assert (found.bytes_to_device, found.bytes_from_device) == (3 * 8 * 8 + 4 * 36, 4 * 36 + 5)


def test_products_of_the_host_count() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.input((2, 7))
    weight = builder.constant(np.ones((7, 3), np.float32))
    made = builder.node("MatMul", [builder.node("Hardmax", [builder.dequantise(value)], axis=1), weight])
    found = shares(import_model(builder.finish(builder.quantise(made, (2, 3), 0.1, 0, False))))
    assert (found.device_macs, found.host_macs, found.on_device, found.crossing) == (0, 2 * 7 * 3, 0.0, 0)
