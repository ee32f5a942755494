"""Operators that are alike share their tasks, and programs are the same as without."""

from __future__ import annotations

import pytest
from support.recurrent_models import Cell, CellNet

import weft
from weft.compiler.backend import DeviceProgram, Lowering
from weft.hdl.isa.config import PRESETS, Config

CELLS = (
    (Cell("GRU", 8, 1, 4, 4, "bidirectional"), PRESETS["small"].replace(kernel=64, lookup_tables=2)),
    (Cell("LSTM", 6, 2, 4, 20), PRESETS["small"].replace(kernel=64)),
    (Cell("GRU", 6, 1, 12, 16, late=1, rows=True), PRESETS["default"]),
)


def programs(cell: Cell, config: Config) -> list[DeviceProgram]:
    compiled = weft.compile(CellNet(cell).model(), config).compiled
    return [segment for segment in compiled.segments if isinstance(segment, DeviceProgram)]


@pytest.mark.parametrize(
    ("cell", "config"), CELLS, ids=lambda item: item.op if isinstance(item, Cell) else ""
)
def test_shared_tasks_are_those_of_each(cell: Cell, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer than half of the operators are lowered, and no byte differs from when all are."""
    lowered = []
    lower = Lowering._lower
    monkeypatch.setattr(
        Lowering,
        "_lower",
        lambda self, op, *rest, **more: lowered.append(op) or lower(self, op, *rest, **more),
    )
    shared, few = programs(cell, config), len(lowered)
    monkeypatch.setattr(Lowering, "_key", lambda self, form: object())
    alone = programs(cell, config)
    assert 0 < few < (len(lowered) - few) / 2
    assert [(item.code, item.constants, item.layers) for item in shared] == [
        (item.code, item.constants, item.layers) for item in alone
    ]
