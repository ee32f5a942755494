"""Rows of constant tables: programs on golden and RTL against their micro-ops."""

from __future__ import annotations

import numpy as np
import pytest
from support.configurations import every
from support.golden_compare import compare, compare_on_rtl
from support.mostly_long import mostly_long
from support.op_cases import draw, random_view, segment_of

from weft.boards.registry import find
from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.products import Embedding, RowIndices
from weft.compiler.ir.views import Buffer, View
from weft.compiler.lower.rows import MAX_OFFSETS, plan
from weft.compiler.machine.target import Target
from weft.compiler.machine.tensors import TensorRef
from weft.compiler.plan.site import Site
from weft.compiler.verify import verify_op
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = {name: config for name, config in every().items() if config.softmax}


def embedding(
    rng: np.random.Generator, rows: int, columns: int, count: int, *, whole: bool = False
) -> Embedding:
    """Draw any table and range; the result is a buffer or a part of one."""
    table = Buffer("table", (1, 1, count, 4), "table")
    shape = (1, 1, count, columns)
    dst = View(Buffer("y", shape, "output"), shape) if whole else random_view(rng, "y", shape, "output")
    clamp = (draw(rng, -128, 0), draw(rng, 0, 127)) if rng.random() < 0.3 else (-128, 127)
    op = Embedding(
        "embedding", View(table, table.shape), dst, rng.integers(-255, 256, (rows, columns)).astype(np.int16),
        rng.uniform(0.2, 2.0, [(1, 1), (rows, 1), (1, columns)][draw(rng, 0, 2)]), draw(rng, -128, 127), *clamp,
    )  # fmt: skip
    verify_op(op)
    return op


def inputs_of(rng: np.random.Generator, op: Embedding) -> dict[str, np.ndarray]:
    rows, columns = op.values.shape
    indices = rng.integers(-rows, rows, op.dst.shape[2])
    return {"table": RowIndices("int64", rows, columns).offsets("indices", indices)}


def random_embedding(rng: np.random.Generator, most: int) -> Embedding:
    return embedding(
        rng, draw(rng, 1, 60), draw(rng, 1, most if rng.random() < 0.5 else 20), draw(rng, 1, 40)
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(3)
    for _ in range(8):
        op = random_embedding(rng, 300)
        segment = segment_of(op)
        compare(compile_segment(segment, config), segment, inputs_of(rng, op), config)


def test_rows_larger_than_the_scratchpad() -> None:
    config, rng = PRESETS["tiny"].replace(scratchpad_depth=64), np.random.default_rng(4)
    for columns in (config.n * config.scratchpad_size, 70000):
        op = embedding(rng, 3, columns, 5, whole=True)
        segment = segment_of(op)
        compare(compile_segment(segment, config), segment, inputs_of(rng, op), config)


@pytest.mark.parametrize("name", mostly_long(["tiny", "default", "ulx3s-12f"], 0))
def test_rtl(name: str) -> None:
    config, rng = (PRESETS.get(name) or find(name).config), np.random.default_rng(5)
    for seed in range(3):
        op = random_embedding(rng, 100)
        segment = segment_of(op)
        compare_on_rtl(segment, inputs_of(rng, op), config, seed)


def test_plans() -> None:
    """Contents on chip never exceed half of the free memory."""
    config, rng = PRESETS["tiny"], np.random.default_rng(6)
    for _ in range(200):
        columns, count, room = draw(rng, 1, 1 << 17), draw(rng, 1, 5000), draw(rng, 0, 900)
        dst = TensorRef(1, 0, 1, 1, count, columns, count * columns, count * columns, columns)
        actual = plan(Site((), dst, Target(config), (100, 100 + room)))
        assert (actual is None) == (room < 2)
        if actual is not None:
            assert 1 <= actual.rows <= count
            assert 2 * actual.rows * -(-actual.columns // config.n) <= room


def test_too_many_indices() -> None:
    """A program distinguishes a limited number of indices."""
    rng, config = np.random.default_rng(7), PRESETS["tiny"]
    first = embedding(rng, 2, 1, 100, whole=True)
    count = MAX_OFFSETS - 20
    table, dst = Buffer("other", (1, 1, count, 4), "table"), Buffer("z", (1, 1, count, 1), "output")
    second = first.replace(name="second", src=View(table, table.shape), dst=View(dst, dst.shape))
    with pytest.raises(CompileError, match=r"the program has more than 65,536 embedding indices"):
        compile_segment(DeviceSegment("both", (first, second)), config)


def test_without_softmax() -> None:
    with pytest.raises(CompileError, match="no softmax unit"):
        compile_segment(segment_of(embedding(np.random.default_rng(8), 2, 3, 4)), Config(probability_bits=0))
