"""Compile time grows linearly with the steps of recurrent networks, counted in attribute reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from support.recurrent_models import Cell, CellNet

import weft
from weft.compiler.ir.network import Node
from weft.compiler.ir.views import Buffer
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["small"].replace(kernel=64)
STEPS = 5
MOST = 2.15
"""Largest ratio of work for twice as many further steps: 2 is linear."""
COUNTED = ((Buffer, "name"), (Node, "outputs"), (Node, "inputs"))
"""Attributes that a pass reads of every operator it visits."""


def count_reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count reads of each attribute in `COUNTED` from now on."""
    actual: Counter[str] = Counter()

    def count(kind: type, name: str) -> property:
        def read(item: object) -> object:
            actual[f"{kind.__name__}.{name}"] += 1
            return item.__dict__[name]

        return property(read, lambda item, value: item.__dict__.__setitem__(name, value))

    for kind, name in COUNTED:
        monkeypatch.setattr(kind, name, count(kind, name), raising=False)
    return actual


@pytest.mark.parametrize("action", [weft.check, weft.compile])
def test_reads_grow_with_steps(action: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes of a network, its operators and their buffers, for four times as many steps."""
    models = [CellNet(Cell("GRU", STEPS * times, 1, 4, 4, "bidirectional")).model() for times in (1, 2, 4)]
    action(models[0], CONFIG)  # what is made once is made now
    actual = count_reads(monkeypatch)
    few, more, most = ([action(model, CONFIG), Counter(actual), actual.clear()][1] for model in models)
    for name, count in most.items():
        assert count - more[name] < MOST * (more[name] - few[name]), name
    assert more["Node.outputs"] > few["Node.outputs"] > 100
    assert action is weft.check or more["Buffer.name"] > few["Buffer.name"] > 1000
