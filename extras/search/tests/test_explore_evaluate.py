"""Workers' cache of models: graphs of one configuration serve another only where the model runs alike."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft.extras.search.explore.evaluate as module
from weft.compiler.frontend import import_model
from weft.compiler.ir.model import dump
from weft.examples import attention
from weft.extras.search.explore.evaluate import Models
from weft.extras.search.tests.support.explored import model
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = [
    *PRESETS.values(),
    *(PRESETS["tiny"].replace(**changes) for changes in (
        {"probability_bits": 0}, {"kernel": 64}, {"kernel": 64, "probability_bits": 0}, {"kernel": 128, "lanes": 1},
        {"lookup_tables": 0}, {"lookup_tables": 0, "kernel": 64}, {"multiply": 0, "queue_depth": 1},
        {"scratchpad_depth": 64},
    )),
]  # fmt: skip


def record_reads(path: Path, config: Config) -> object:
    graph = import_model(path, config=config)
    return dump(graph), graph.assignment


@pytest.mark.parametrize("kind", ["convolutions", "attention"])
def test_graphs_are_those_of_the_configuration(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order; a model that reads no field of it is imported once."""
    path = model(tmp_path)
    if kind == "attention":
        path = tmp_path / "attention.onnx"
        path.write_bytes(attention.model())
    expected = [record_reads(path, config) for config in CONFIGS]
    calls = []

    def record(*arguments: object, **named: object) -> object:
        calls.append(arguments)
        return import_model(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "import_model", record)
    models = Models((str(path),), ("",))
    for _ in range(2):
        actual = [models.graphs(config)[0] for config in CONFIGS]
        assert [(dump(graph), graph.assignment) for graph in actual] == expected
    distinct = len({repr(item) for item in expected})
    assert distinct <= len(calls) < len(CONFIGS)
    assert (distinct > 1) == (kind == "attention")
