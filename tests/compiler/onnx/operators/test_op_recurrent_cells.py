"""Why an LSTM or a GRU runs on the host."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from support.recurrent_models import Cell, CellNet, reference

import weft
from weft.compiler.frontend import import_model
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["small"].replace(kernel=64)
PLAIN = Cell("LSTM", 5, 1, 7, 9)
REFUSED = {
    "clip is 3.0": Cell("LSTM", 2, 1, 3, 4, more=(("clip", 3.0),)),
    "activations are Sigmoid, Relu, Tanh": Cell(
        "LSTM", 2, 1, 3, 4, more=(("activations", ["Sigmoid", "Relu", "Tanh"]),)
    ),
    "input_forget is 1": Cell("LSTM", 2, 1, 3, 4, more=(("input_forget", 1),)),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    cell = REFUSED[why]
    net = CellNet(cell)
    model = net.model()
    actual = {
        reason for name, _, place, reason in import_model(model, config=CONFIG).assignment if name == "cell"
    }
    assert actual == {
        "LSTM and GRU need quantised weights, default activations, a kernel engine ('kernel' 32) and 2 look-up tables"
        f" ({why})"
    }
    given = net.inputs(model)
    expected = reference(cell, given) if cell.more[0][0] != "input_forget" else None
    if expected is not None:
        found_values = weft.compile(model, CONFIG).run(given).outputs.values()
        assert all(np.abs(a - b).max() < 1e-5 for a, b in zip(found_values, expected, strict=True))


def test_without_a_kernel_engine() -> None:
    model = CellNet(PLAIN).model()
    actual = {name: reason for name, _, _, reason in import_model(model, config=PRESETS["small"]).assignment}
    assert actual["cell"].endswith("('kernel' is 0, 'lookup_tables' is 4)")


def test_weights_in_float_stay() -> None:
    model = CellNet(PLAIN).model()
    weights = next(node for node in model.graph.node if node.name == "R_dq")
    model.graph.node.remove(weights)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 36, 9), np.float32), "R"))
    actual = {name: reason for name, _, _, reason in import_model(model, config=CONFIG).assignment}
    assert actual["cell"].endswith(
        "(the weights 'R' are not quantised to 8 bits with at most one scale per row)"
    )
