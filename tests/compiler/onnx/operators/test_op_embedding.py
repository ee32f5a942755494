"""Rows of constant tables by indices that are inputs, against ONNX Runtime; and every constraint violated once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.fallbacks import Case, builder, check_fallback, source, untested_constraints
from support.graph_runs import device_ops, on_host, run_graph
from support.ort_sessions import plain_session
from support.qdq_models import Builder

import weft
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.products import Embedding
from weft.compiler.onnx.conditions import softmax_unit
from weft.compiler.onnx.operators.move import EMBEDDING_OPERATORS, indices_integers, rows_constant, table_size
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["small"].replace(kernel=64)
KINDS = {"int32": TensorProto.INT32, "int64": TensorProto.INT64}


def indices(built: Builder, shape: tuple[int, ...], dtype: str = "int64") -> str:
    """An input of indices."""
    name = built.name("indices")
    built.inputs.append(helper.make_tensor_value_info(name, KINDS[dtype], shape))
    return name


def table(built: Builder, shape: tuple[int, ...], kind: str) -> str:
    """A constant as floats: of integers with one scale, or with one for each row or column; or never quantised."""
    rng = built.rng
    if kind == "floats":
        return built.constant(rng.normal(0, 2, shape).astype(np.float32))
    dtype = np.dtype("int8" if kind.startswith("each") else kind)
    info, axis = np.iinfo(dtype), 1 if kind == "each column" else 0
    values = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    count = shape[axis] if kind.startswith("each") else ()
    scale = rng.uniform(0.01, 0.1, count).astype(np.float32) / np.float32(256 ** (dtype.itemsize - 1))
    zero = rng.integers(info.min // 2, info.max // 2, count or None, endpoint=True)
    parts = [built.constant(np.asarray(item)) for item in (values, scale, np.asarray(zero, dtype))]
    return built.node("DequantizeLinear", parts, axis=axis)


def feeds(model: onnx.ModelProto, rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    arguments = {}
    for item in model.graph.input:
        shape = [size.dim_value for size in item.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        arguments[item.name] = rng.integers(-rows, rows, shape).astype(dtype)
    return arguments


def check(model: onnx.ModelProto, given: dict[str, np.ndarray], scale: float) -> np.ndarray:
    graph = import_model(model, config=CONFIG)
    assert any(isinstance(op, Embedding) for op in device_ops(graph)), on_host(graph)
    assert not on_host(graph)
    (expected,) = plain_session(model).run(None, given)
    (actual,) = run_graph(graph, given).values()
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    return np.abs(np.rint((actual.astype(np.float64) - expected) / scale))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "each row", "each column", "floats"])
def test_random(kind: str) -> None:
    """Indices of any shape, rows of one or two dimensions, results of 8 and 16 bits."""
    result: list[np.ndarray] = []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        built = Builder(rng, 21, int(rng.choice([8, 8, 16])))
        ends = 1 if kind == "each column" else int(rng.integers(1, 3))
        shape = (int(rng.choice([1, 2, 50, 300])), *(int(rng.choice([1, 3, 17, 40])) for _ in range(ends)))
        at = tuple(int(rng.integers(1, 6)) for _ in range(rng.integers(0, 4)))
        axis = int(rng.choice([0, -len(shape)]))
        dtype = str(rng.choice(list(KINDS)))
        value = built.node("Gather", [table(built, shape, kind), indices(built, at, dtype)], axis=axis)
        value = built.node("Relu", [value]) if rng.random() < 0.3 else value
        scale, zero, unsigned = built.parameters()
        produced = built.quantise(value, (*at, *shape[1:]), scale, zero, unsigned)
        model = built.finish(produced)
        result.append(check(model, feeds(model, rng, shape[0]), float(produced.exact[0])).reshape(-1))
    apart = np.concatenate(result)
    assert apart.max() <= 1
    assert apart.mean() < 0.01, "all but ties of float32"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_integers(dtype: str) -> None:
    """Rows of integers themselves, with DequantizeLinear behind them: every element is the same."""
    rng = np.random.default_rng(5)
    built, info = Builder(rng), np.iinfo(dtype)
    values = built.constant(rng.integers(info.min, info.max, (30, 12), dtype, endpoint=True))
    taken = built.node("Gather", [values, indices(built, (2, 9))])
    scale = float(np.float32(0.03 / 256 ** (np.dtype(dtype).itemsize - 1)))
    pair = [built.constant(np.float32(scale)), built.constant(np.array(0, dtype))]
    model = built.finish_as(built.node("DequantizeLinear", [taken, *pair]), TensorProto.FLOAT)
    assert not check(model, feeds(model, rng, 30), scale).any()


def encoder(built: Builder, at: tuple[int, int], rows: int, width: int) -> onnx.ModelProto:
    """Embeddings of words and of their kinds, added and normalised, and a projection, as in encoders."""
    same = (*at, width)
    word, kind = (
        built.quantise(
            built.node("Gather", [table(built, (count, width), "int8"), indices(built, at)]), same, 0.05, 3, False
        )
        for count in (rows, 2)
    )  # fmt: skip
    total = built.quantise(
        built.node("Add", [built.dequantise(item) for item in (word, kind)]), same, 0.08, -4, False
    )
    ones = [built.constant(np.full(width, value, np.float32)) for value in (1.1, 0.2)]
    normal = built.node("LayerNormalization", [built.dequantise(total), *ones])
    weight, _ = built.weight((width, 24), 1, per_channel=False, unsigned=False)
    product = built.node("MatMul", [built.dequantise(built.quantise(normal, same, 0.03, 0, False)), weight])
    return built.finish(built.quantise(product, (*at, 24), 0.1, 0, False))


@pytest.mark.parametrize(("on", "preset"), [("rtl", "small"), ("golden", "default"), ("golden", "large")])
def test_programs(on: str, preset: str, tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(2), 2
    built = Builder(rng)
    model = encoder(built, (2, 11), rows, 40)
    program = weft.compile(model, PRESETS[preset].replace(kernel=64))
    assert not [row for row in program.assignment if row[2] == "host" and "graph boundary" not in row[3]]
    program.save(tmp_path / "program")
    for _ in range(2):
        inputs = feeds(model, rng, rows)
        (outputs,) = (
            weft.load(tmp_path / "program")
            .run(inputs, on, stall_seed=3 if on == "rtl" else None)
            .outputs.values()
        )
        (expected,) = plain_session(model).run(None, inputs)
        assert np.abs(outputs - expected).max() <= 2 * np.abs(np.diff(np.unique(expected))).min()
    if on == "rtl":
        again = program.run(inputs, "golden").outputs.values()
        assert np.array_equal(outputs, next(iter(again)))
        with pytest.raises(CompileError, match=r"has index 2 at \[0, 4\], but the table has 2 rows"):
            program.run(
                {name: np.where(np.indices(value.shape).sum(0) == 4, 2, 0) for name, value in inputs.items()}
            )


@pytest.mark.parametrize("on", ["golden", "rtl"])
def test_sequential_core(on: str) -> None:
    """The board's own memory image is what the pipelined core has."""
    built, rng = builder(), np.random.default_rng(6)
    value = built.node("Gather", [table(built, (9, 11), "uint8"), indices(built, (7,))])
    model = built.finish(built.quantise(value, (7, 11), 0.07, 5, False))
    program, inputs = weft.compile(model, "icebreaker"), feeds(model, rng, 9)
    (outputs,) = program.run(inputs, on).outputs.values()
    (expected,) = plain_session(model).run(None, inputs)
    assert np.abs(np.rint((outputs - expected) / 0.07)).max() <= 1


def test_one_input_for_two_tables() -> None:
    """Tables of other lengths and widths, of one value."""
    rng = np.random.default_rng(7)
    built = Builder(rng)
    name = indices(built, (3, 4))
    result = [
        built.quantise(built.node("Gather", [table(built, shape, "int8"), name]), (3, 4, shape[1]), 0.05, 0, False)
        for shape in ((9, 8), (5, 8), (5, 12))
    ]  # fmt: skip
    joined = built.node("Concat", [built.dequantise(item) for item in result], axis=-1)
    model = built.finish(built.quantise(joined, (3, 4, 28), 0.05, 0, False))
    inputs = {name: rng.integers(-5, 5, (3, 4))}
    assert check(model, inputs, 0.05).max() <= 1


def lookup(shape: tuple[int, ...] = (4, 6), **attributes: object) -> onnx.ModelProto:
    built = builder()
    value = built.node("Gather", [table(built, shape, "int8"), indices(built, (2, 3))], **attributes)
    return built.finish(built.quantise(value, built.shape_of(value), 0.1, 0, False))


def of_no_constant() -> onnx.ModelProto:
    built = builder()
    first = built.dequantise(source(built, (4, 6)))
    value = built.node("Gather", [first, indices(built, (2, 3))])
    return built.finish(built.quantise(value, (2, 3, 6), 0.1, 0, False))


def many() -> onnx.ModelProto:
    built = builder()
    value = built.node("Gather", [table(built, (4, 1), "int8"), indices(built, (257, 256))])
    return built.finish(built.quantise(value, (257, 256, 1), 0.1, 0, False))


CASES: dict[str, Case] = {
    "columns": (lambda: lookup(axis=1), "Gather", rows_constant),
    "many rows": (many, "Gather", table_size),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_without_softmax() -> None:
    check_fallback((lookup, "Gather", softmax_unit), probability_bits=0)


def test_of_no_constant() -> None:
    """Rows of an activation are taken on the host."""
    graph = import_model(of_no_constant())
    assert any("indices of Gather, must be constant" in reason for reason in on_host(graph).values())


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(EMBEDDING_OPERATORS, CASES.values()) == {
        "softmax_unit",
        indices_integers.__name__,
    }


@pytest.mark.parametrize(
    ("table", "taken", "good"),
    [
        ((1 << 15, 1 << 15), (3,), True), ((1 << 15, (1 << 15) + 1), (3,), False), ((0, 5), (3,), False),
        ((5, 5), (256, 256), True), ((5, 5), (256, 257), False), ((5, 5), (0,), False),
    ],
)  # fmt: skip
def test_sizes_of_tables(table: tuple[int, ...], taken: tuple[int, ...], good: bool) -> None:
    """2**30 elements and 2**16 rows, which no model of a test has."""
    context: Any = SimpleNamespace(shape=lambda index=0: (table, taken)[index])
    assert (table_size(context) is None) == good
