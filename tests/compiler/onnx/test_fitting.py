"""Operators that do not fit a small device: in parts there, or on the host; no model is refused for one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support import one_step
from support.attention_models import Sizes, operator, written_out
from support.fallbacks import one
from support.graph_runs import device_ops, on_host
from support.qdq_models import Builder

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Attention, Conv, DeviceSegment, Pool
from weft.compiler.ir.model import Graph
from weft.compiler.kernel.operators import RowOp
from weft.hdl.isa.config import PRESETS, Config

SMALL = {"tiny": PRESETS["tiny"], "small": PRESETS["small"]} | {
    name: BOARDS[name].config for name in ("icepi-zero", "icebreaker")
}


def compile_all(model: onnx.ModelProto, config: Config) -> Graph:
    """A model for a device, of which all segments compile."""
    graph = import_model(model, config=config)
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment):
            compile_segment(segment, config)
    return graph


def over_image(size: tuple[int, int], op: str, channels: int = 8) -> onnx.ModelProto:
    """The maximum over all of a convolution's result."""
    built = Builder(np.random.default_rng(0))
    value = built.conv(built.input((1, channels, *size)), channels, (3, 3), pads=(1, 1, 1, 1), relu=True)
    axes = [built.constant(np.array([2, 3], np.int64))] if op == "ReduceMax" else []
    name = built.node(op, [built.dequantise(value), *axes])
    return built.finish(built.like(name, (1, channels, 1, 1), value))


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("size", [(16, 16), (80, 15)])
@pytest.mark.parametrize("op", ["ReduceMax", "GlobalMaxPool"])
def test_maxima_over_convolutions(op: str, size: tuple[int, int], config: Config) -> None:
    graph = compile_all(over_image(size, op), config)
    assert not on_host(graph)
    assert [type(item) for item in device_ops(graph)] == [Conv, Pool]


def test_maxima_over_convolutions_are_right() -> None:
    one_step.check(over_image((30, 35), "ReduceMax", 3), np.random.default_rng(1), one_step.Tally())


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_attention_of_large_heads_is_products(preset: str) -> None:
    config = PRESETS[preset]
    model = written_out(np.random.default_rng(0), Sizes(1, 1, 1, 4, 6, 2048, 2048))
    graph = compile_all(model, config)
    assert not on_host(graph)
    kinds = {type(item) for item in device_ops(graph)}
    assert Attention not in kinds
    assert not any(issubclass(kind, RowOp) for kind in kinds)
    whole = compile_all(written_out(np.random.default_rng(0), Sizes(1, 1, 1, 4, 6, 64, 64)), config)
    assert Attention in {type(item) for item in device_ops(whole)}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (operator(np.random.default_rng(0), Sizes(1, 1, 1, 4, 6, 2048, 2048), scale=1e-3), "attention"),
        (one("AveragePool", (1, 2, 40, 40), kernel_shape=[40, 40], pads=[20, 20, 20, 20]), "pool"),
        (one("MaxPool", (1, 2, 1, 3000), kernel_shape=[1, 2], dilations=[1, 2500]), "pool"),
    ],
)
def test_indivisible_operators_run_on_the_host(model: onnx.ModelProto, kind: str) -> None:
    reasons = on_host(compile_all(model, PRESETS["tiny"]))
    expected = f"One output of an operator must fit the scratchpad ({kind} in 1024 vectors of 4 bytes)"
    assert expected in reasons.values()
