"""Operator records as a whole: discovery, tests, and texts."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest

from weft.compiler.machine.target import COUNT_MAX, PITCH_MAX, STEP_MAX
from weft.compiler.onnx import operators, registry
from weft.compiler.onnx.attention import MAX_HEAD_SIZE, MAX_KEYS, MAX_ROW, keys_fit, rows_fit
from weft.compiler.onnx.elementwise import PLAIN
from weft.compiler.onnx.operator import Constraint, sentence
from weft.compiler.onnx.operators.conv import pads_fit
from weft.compiler.onnx.operators.softmax import softmax_length
from weft.compiler.onnx.operators.windows import ELEMENTS, window_size, window_steps


def test_every_file_is_found_and_has_a_test() -> None:
    files = [item.name for item in pkgutil.iter_modules(operators.__path__)]
    modules = {operator.handler.__module__.rpartition(".")[2] for operator in registry.OPERATORS}
    assert modules == set(files)
    tested = [
        path.stem.removeprefix("test_op_") for path in (Path(__file__).parent / "operators").glob("test_*")
    ]
    assert not [name for name in files if not any(name.startswith(start) for start in tested)]


def test_records_do_not_overlap() -> None:
    """One record at most is for all nodes of an operator."""
    for name, records in registry.NAMES.items():
        general = [record.elementwise for record in records if record.applies is None]
        assert general.count(False) == registry.has(name)
        assert general.count(True) <= 1
        order = [(record.elementwise, record.applies is None) for record in records]
        assert order == sorted(order)


def test_table_is_made_of_sentences() -> None:
    table = dict(registry.table())
    titles = {record.title for record in registry.OPERATORS if record.title}
    assert list(table) == sorted({*filter(registry.has, registry.NAMES), *PLAIN, *titles})
    for sentences in table.values():
        assert all(line.endswith(".") and line[0].isupper() and len(line) < 130 for line in sentences)


@pytest.mark.parametrize(
    ("constraint", "limits"),
    [
        (pads_fit, (STEP_MAX, COUNT_MAX)),
        (window_steps, (STEP_MAX,)),
        (window_size, (COUNT_MAX, ELEMENTS)),
        (softmax_length, (PITCH_MAX,)),
        (keys_fit, (MAX_KEYS,)),
        (rows_fit, (MAX_HEAD_SIZE, MAX_ROW)),
    ],
)
def test_sentences_name_the_limits(constraint: Constraint, limits: tuple[int, ...]) -> None:
    assert all(f" {limit}" in sentence(constraint) for limit in limits)
