"""The example networks: all of them runs on the device, and reads digits as well as it did when it was stored."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import onnx
import pytest
from support.graph_runs import on_host, run_graph

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Add, Attention, DeviceSegment
from weft.examples import attention, digits


@pytest.mark.parametrize("example", [attention, digits])
def test_everything_is_on_the_device(example: ModuleType) -> None:
    graph = import_model(onnx.load_from_string(example.model()))
    assert not on_host(graph)
    assert [isinstance(segment, DeviceSegment) for segment in graph.segments].count(True) == 1


def test_attention_of_the_transformer() -> None:
    graph = import_model(onnx.load_from_string(attention.model()))
    (segment,) = (item for item in graph.segments if isinstance(item, DeviceSegment))
    actual = [op for op in segment.ops if isinstance(op, Attention)]
    assert [op.name for op in actual] == ["block1.attention", "block2.attention"]
    assert {(op.heads, op.head_size, op.q.shape, op.dst.shape) for op in actual} == {
        (4, 16, (1, 1, 16, 64), (1, 1, 16, 64))
    }
    added = sum(isinstance(op, Add) for op in segment.ops)
    assert (len(segment.ops), added) == (22, 5), "every Reshape and Transpose is a view"


def test_transformer_reads_digits() -> None:
    graph = import_model(onnx.load_from_string(attention.model()))
    images, labels = attention.held_out()
    right = [
        int(np.argmax(run_graph(graph, {"image": image[None]})["logits"])) == label
        for image, label in zip(images[:200], labels, strict=False)
    ]
    assert np.mean(right) >= 0.97
