"""Whole networks: every quantised value against ONNX Runtime, and random layers on the RTL."""

from __future__ import annotations

import models
import pytest
import zoo

import weft
from weft.hdl.isa.config import PRESETS

CONFIG = PRESETS["default"]
RATE = {"densenet121": 5e-3, "vit_layer": 5e-2}
"""Allowed share of differing values, 1e-5 by default. Constants added to a channel are rounded to 1/64 of the
input's step, which decides ties."""


def check(name: str, rtl: int) -> None:
    model = zoo.quantise_network(name)
    program = weft.compile(model, CONFIG)
    feeds = models.image(program)
    result = program.run(feeds)
    assert {output: values.shape for output, values in result.outputs.items()} == {
        output: shape for output, (_, shape) in program.outputs.items()
    }
    assert program.run(feeds, on="timing").report["cycles"] > result.report["macs"] / CONFIG.n**2
    total, wrong, most = models.differences(model, feeds, CONFIG, rtl)
    print(f"{wrong} of {total} values differ")
    assert most <= 1
    assert wrong < max(2, RATE.get(name, 1e-5) * total)


def test_squeezenet() -> None:
    check("squeezenet", 0)


@pytest.mark.long
@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_network(name: str) -> None:
    check(name, 3)
