"""Rows of constant tables in TFLite files, GATHER and EMBEDDING_LOOKUP, against LiteRT: on the device as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from support.litert import layers, tensors
from support.tflite_models import Model

import weft
from weft.compiler.tflite.file import parse
from weft.hdl.isa.config import PRESETS

KINDS = {"GATHER": "Gather", "EMBEDDING_LOOKUP": ""}


def model(name: str, rng: np.random.Generator, dtype: str) -> tuple[bytes, dict[int, np.ndarray]]:
    """A table of rows, and indices of some of them as the model's input."""
    file, info = Model(), np.iinfo(dtype)
    shape = tuple(int(rng.integers(1, 40)) for _ in range(rng.integers(2, 4)))
    at = tuple(
        int(rng.integers(1, 6)) for _ in range(1 if name == "EMBEDDING_LOOKUP" else rng.integers(1, 3))
    )
    values = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    scale, zero = 2.0 ** rng.uniform(-7, -2), 0 if dtype == "int16" else int(rng.integers(info.min, info.max))
    table = file.tensor(shape, dtype, scale, zero, data=values)
    indices = file.tensor(at, "int32", name="indices")
    result = file.tensor((*at, *shape[1:]), dtype, scale, zero, name="rows")
    inputs = [table, indices] if name == "GATHER" else [indices, table]
    file.operator(name, inputs, [result], KINDS[name])
    arrays = rng.integers(0, shape[0], at).astype(np.int32)
    return file.write([indices], [result]), {indices: arrays}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", KINDS)
def test_on_the_device(name: str, dtype: str) -> None:
    for seed in range(8):
        content, given = model(name, np.random.default_rng(seed), dtype)
        for operator, apart, _, graph in layers(parse(content, name), tensors(content, given)):
            assert apart == 0, f"{operator.label}, seed {seed}"
            assert {place for _, _, place, _ in graph.assignment} == {"device"}, f"seed {seed}"


def test_program() -> None:
    content, given = model("EMBEDDING_LOOKUP", np.random.default_rng(20), "int8")
    program = weft.compile(content, PRESETS["small"])
    assert program.inputs["indices"][0] == "int32"
    ((index, value),) = given.items()
    (outputs,) = program.run({"indices": value}).outputs.values()
    (expected,) = (item for at, item in tensors(content, given).items() if at == index + 1)
    assert np.array_equal(outputs, expected)
