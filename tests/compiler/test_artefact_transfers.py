"""Saved programs whose values are not int8: with 16 bits, or indices of rows. Lies about them are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.manifests import manifest_of, refusal, write
from support.qdq_models import Builder

import weft
from weft.hdl.isa.config import PRESETS


@pytest.fixture(scope="module")
def wide() -> weft.Program:
    """Values of 16 bits that enter, leave, and lie between two segments."""
    builder = Builder(np.random.default_rng(1), bits=16)
    x = builder.conv(builder.input((1, 3, 8, 8)), 4, (1, 1))
    middle = builder.node("LogSoftmax", [builder.dequantise(x)], axis=1)
    model = builder.finish(builder.conv(builder.quantise(middle, x.shape, 0.05, 3, False), 4, (1, 1)))
    return weft.compile(model, PRESETS["tiny"].replace(kernel=64))


def test_programs_of_16_bits_on_disk(wide: weft.Program, tmp_path: Path) -> None:
    wide.save(tmp_path)
    loaded = weft.load(tmp_path)
    (name,) = wide.inputs
    x = {name: np.random.default_rng(0).normal(0, 2, (1, 3, 8, 8)).astype(np.float32)}
    (ours,), (theirs,) = wide.run(x).outputs.values(), loaded.run(x).outputs.values()
    assert ours.any()
    assert np.array_equal(ours, theirs)


def _narrow(item: Any) -> None:
    item["wide"] = False


def _narrow_of_twice_the_size(item: Any) -> None:
    item["wide"] = False
    for shape in (item["nhwc"], item["shape"], item["model_shape"]):
        shape[0] *= 2


@pytest.mark.parametrize("change", [_narrow, _narrow_of_twice_the_size])
@pytest.mark.parametrize(
    ("side", "at"), [("to_device", 0), ("to_device", 1), ("from_device", 0), ("from_device", 1)]
)
def test_values_that_have_16_bits(
    wide: weft.Program, tmp_path: Path, side: str, at: int, change: Any
) -> None:
    """A transfer that says that they have 8 is refused: sizes, or types of values on the host, disagree."""
    wide.save(tmp_path)
    manifest = manifest_of(tmp_path)
    change(manifest[side][at])
    write(tmp_path, manifest)
    said = refusal(tmp_path)
    assert ("which does not fill" if change is _narrow else "int16 of shape") in said


@pytest.fixture(scope="module")
def embedded() -> weft.Program:
    """Rows of a table of 50 x 12 by indices that are an input."""
    built = Builder(np.random.default_rng(0))
    built.inputs.append(helper.make_tensor_value_info("places", TensorProto.INT64, (2, 3)))
    table = built.constant(np.arange(600, dtype=np.float32).reshape(50, 12) / 100)
    value = built.node("Gather", [table, "places"])
    return weft.compile(built.finish(built.quantise(value, (2, 3, 12), 0.05, 0, False)), "tiny")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("rows", {"dtype": "int8", "rows": 50, "pitch": 12}, "has indices of type 'int8', not int32 or int64"),
        ("rows", {"dtype": "int32", "rows": 50, "pitch": 12}, "is int64 of shape (2, 3), but int32"),
        ("rows", {"dtype": "int64", "rows": 0, "pitch": 12}, "has indices of 0 rows of 12 bytes"),
        ("rows", {"dtype": "int64", "rows": 50, "pitch": 1 << 40}, "but constants have"),
        ("rows", None, "tables hold indices, and only tables do"),
        ("shape", [2, 4], "which does not fill"),
        ("nhwc", [1, 1, 6, 3], "which does not fill"),
    ],
)  # fmt: skip
def test_indices(embedded: weft.Program, tmp_path: Path, field: str, value: Any, said: str) -> None:
    embedded.save(tmp_path)
    manifest = manifest_of(tmp_path)
    manifest["to_device"][0][field] = value
    write(tmp_path, manifest)
    assert said in refusal(tmp_path)


def test_a_table_that_is_an_input(embedded: weft.Program, tmp_path: Path) -> None:
    embedded.save(tmp_path)
    manifest = manifest_of(tmp_path)
    (name,) = (name for name, item in manifest["segments"][0]["buffers"].items() if item["kind"] == "table")
    manifest["segments"][0]["buffers"][name]["kind"] = "input"
    write(tmp_path, manifest)
    assert "tables hold indices, and only tables do" in refusal(tmp_path)
