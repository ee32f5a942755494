"""Networks that run whole on boards' own configurations: with gates, all on the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from support import qdq_models
from support.ort_sessions import plain_session
from support.qdq_models import Builder, Quantised

import weft
import weft.run.kernel
from weft.boards.board import Board, CoreKind
from weft.boards.registry import BOARDS
from weft.compiler.ir.model import CONVERTING

GATED = [board for board in BOARDS.values() if board.config.multiply and board.config.lookup_tables]


def add_quantised(builder: Builder, op: str, *sources: Quantised, scale: float, zero: int) -> Quantised:
    """Add an operator between DequantizeLinear and QuantizeLinear."""
    value = builder.node(op, [builder.dequantise(source) for source in sources])
    shape = builder.shape_of(value)
    return builder.like(value, shape, replace(sources[0], scale=scale, zero=zero, unsigned=False))


def gated_network() -> onnx.ModelProto:
    """Build a convolution with SiLU, and a gate for each channel from the means over its pixels."""
    builder = Builder(np.random.default_rng(3))
    value = builder.conv(builder.input((1, 3, 9, 10)), 6)
    sigmoid = add_quantised(builder, "Sigmoid", value, scale=1 / 256, zero=-128)
    value = add_quantised(builder, "Mul", value, sigmoid, scale=value.scale, zero=-20)
    gate = add_quantised(
        builder, "Sigmoid", builder.conv(builder.mean(value), 6, (1, 1)), scale=1 / 256, zero=-128
    )
    return builder.finish(add_quantised(builder, "Mul", value, gate, scale=value.scale / 2, zero=-20))


@pytest.mark.parametrize("board", GATED, ids=lambda board: board.name)
def test_gates_run_whole(board: Board) -> None:
    model = gated_network()
    program = weft.compile(model, config=board.config)
    on_host = [op for _, op, place, _ in program.assignment if place != "device"]
    assert on_host == list(CONVERTING), "only the model's ends are floats"
    feeds = qdq_models.feeds(model, np.random.default_rng(4))
    (wanted,) = plain_session(model).run(None, feeds)
    (found,) = program.run(feeds).outputs.values()
    assert found.std() > 0.05
    np.testing.assert_allclose(found, wanted, atol=0.1)


def normal(rows: weft.run.kernel.Rows) -> None:
    """A row less its mean, divided by its root mean square, in steps of 1/32."""
    x = rows.read(0)
    distance = x - rows.sum(x).scale(1 / rows.columns)
    squares = rows.sum(distance.times(distance))
    rows.store(distance.over((squares + 1).rsqrt(), 12, 1 << 14).scale(rows.columns**0.5 * 32 / 2**12))


@pytest.mark.parametrize("name", [name for name, board in BOARDS.items() if board.config.kernel])
def test_kernels_run_on_the_core_of_the_board(name: str) -> None:
    kernel = weft.run.kernel.compile(normal, rows=11, columns=27, config=BOARDS[name].config)
    x = np.random.default_rng(5).integers(-128, 128, (11, 27)).astype(np.int8)
    found = kernel.run(x, on="rtl")
    assert (found == kernel.evaluate(x)).all()
    centred = x - x.mean(axis=1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True)) * 32
    assert np.abs(found - exact).max() < 2


def test_boards_with_the_sequential_core_have_tables_and_products() -> None:
    """They cost it nothing but words of its microprogram, and entries of a memory."""
    assert {board.name for board in BOARDS.values() if board.core is CoreKind.SEQUENTIAL} <= {
        board.name for board in GATED
    }
