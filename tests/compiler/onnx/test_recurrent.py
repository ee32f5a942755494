"""LSTM and GRU with quantised weights, unrolled on the device, against float64 and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.recurrent_models import CELL_STEP, STATE_STEP, Cell, CellNet, exact, reference

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["small"].replace(kernel=64)


CELLS = (
    Cell("LSTM", 5, 1, 7, 9),
    Cell("LSTM", 1, 1, 1, 1, initial="constant"),
    Cell("LSTM", 7, 2, 16, 8, "bidirectional", initial="constant", opset=21),
    Cell("LSTM", 3, 3, 5, 4, "reverse", biased=False, rows=True),
    Cell("LSTM", 4, 2, 6, 5, "bidirectional", layout=1, initial="given", seed=3),
    Cell("LSTM", 3, 1, 40, 20, weights="uint8", initial="given"),
    Cell("LSTM", 3, 1, 7, 9, results=1),
    Cell("LSTM", 3, 2, 7, 5, "bidirectional", results=2),
    Cell("GRU", 5, 1, 7, 9),
    Cell("GRU", 3, 2, 7, 9, "reverse", results=1),
    Cell("GRU", 7, 2, 16, 8, "bidirectional", late=1, initial="constant"),
    Cell("GRU", 4, 1, 16, 8, "reverse", late=1, opset=21),
    Cell("GRU", 3, 1, 16, 8, late=1, biased=False, rows=True, weights="uint8"),
    Cell("GRU", 4, 2, 6, 5, initial="given", layout=1),
)


def check(cell: Cell, config: weft.Config = CONFIG, *, runtime: bool = False) -> None:
    net = CellNet(cell)
    model = net.model()
    given = net.inputs(model)
    graph = import_model(model, config=config)
    assert sum(isinstance(segment, DeviceSegment) for segment in graph.segments) == 1
    why = {reason for _, _, place, reason in graph.assignment if place == "host"}
    assert all("boundary" in reason for reason in why), why
    outputs = weft.compile(model, config).run(given).outputs
    steps = (STATE_STEP, STATE_STEP, CELL_STEP)
    for expected in (exact(cell, model, given), *([reference(cell, given)] if runtime else [])):
        for (name, value), other, step in zip(outputs.items(), expected, steps, strict=False):
            assert value.shape == other.shape, name
            limited = np.clip(np.rint(other / step), -128, 127) * step
            assert np.abs(value - limited).max() < 1.01 * step, name


@pytest.mark.drawn(5)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_cells(cell: Cell) -> None:
    check(cell, runtime=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_drawn_cells(seed: int) -> None:
    rng = np.random.default_rng(seed)
    check(
        Cell(
            str(rng.choice(["LSTM", "GRU"])), *map(int, rng.integers(1, (30, 4, 70, 50))),
            str(rng.choice(["forward", "reverse", "bidirectional"])), int(rng.integers(2)), int(rng.integers(2)),
            str(rng.choice(["", "constant", "given"])), bool(rng.integers(2)), str(rng.choice(["int8", "uint8"])),
            bool(rng.integers(2)), int(rng.choice([14, 17, 20, 21])), seed,
        ),
        PRESETS[str(rng.choice(["tiny", "small", "default"]))].replace(kernel=64),
    )  # fmt: skip


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_quantised_biases(kind: str, each: bool) -> None:
    net = CellNet(Cell(kind, 2, 1, 5, 4))
    model = net.model()
    given = net.inputs(model)
    (biases,) = (item for item in model.graph.initializer if item.name == "B")
    real = numpy_helper.to_array(biases)
    shape = real.shape[1:] if each else ()
    scale = np.random.default_rng(0).uniform(0.004, 0.008, shape).astype(np.float32)
    zero = np.full(shape, 3, np.int8)
    stored = np.clip(np.rint(real / scale) + 3, -128, 127).astype(np.int8)
    biases.CopyFrom(numpy_helper.from_array((stored.astype(np.float32) - zero) * scale, "B"))
    expected = weft.compile(model, CONFIG).run(given).outputs
    model.graph.initializer.remove(biases)
    names = ["stored", "steps", "zeros"]
    model.graph.initializer.extend(map(numpy_helper.from_array, (stored, scale, zero), names))
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", names, ["B"], axis=-1))
    graph = import_model(model, config=CONFIG)
    assert sum(isinstance(segment, DeviceSegment) for segment in graph.segments) == 1
    outputs = weft.compile(model, CONFIG).run(given).outputs
    for name, value in expected.items():
        np.testing.assert_array_equal(outputs[name], value)


def test_on_rtl() -> None:
    net = CellNet(Cell("LSTM", 2, 1, 5, 4))
    model = net.model()
    given = net.inputs(model)
    program = weft.compile(model, CONFIG)
    on_rtl, golden = (program.run(given, on=where).outputs for where in ("rtl", "golden"))
    assert all(np.array_equal(on_rtl[name], value) for name, value in golden.items())
