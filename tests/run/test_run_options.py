"""Record of run options: keywords, checks, and use by functions."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import InputError, RunOptions
from weft.examples import digits
from weft.run.options import MemoryKeywords, RunKeywords
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.waves import Waves


def test_keywords_equal_the_fields() -> None:
    """Type checkers read the keywords from a second declaration."""
    fields = {field.name: field.type for field in dataclasses.fields(RunOptions) if field.name != "on"}
    assert {name: kind.__forward_arg__ for name, kind in RunKeywords.__annotations__.items()} == fields
    assert MemoryKeywords.__annotations__.keys() == RunOptions().memory.keys()


def test_record_replaces_keywords() -> None:
    program = weft.compile(digits.model(), config="tiny")
    inputs = {"image": digits.held_out()[0][:1]}
    record = RunOptions("timing", latency=90, bandwidth=np.float32(2))  # type: ignore[arg-type]
    assert type(record.bandwidth) is float
    slow = program.run(inputs, record).report["cycles"]
    assert slow == program.run(inputs, "timing", latency=90, bandwidth=2).report["cycles"]
    assert slow > program.run(inputs, record, latency=1).report["cycles"]
    assert program.run(inputs, RunOptions("timing")).report == program.run(inputs, "timing").report


@pytest.mark.parametrize(
    ("on", "options", "message"),
    [
        ("golden", {"waves": "w.fst"}, "'waves' is for the device rtl, and this one is golden"),
        ("timing", {"waves": Path("w.fst")}, "'waves' is for the device rtl, and this one is timing"),
        ("device", {"waves": "w.fst"}, "'waves' is for the device rtl, and this one is GoldenDevice"),
        ("rtl", {"waves_from": 3}, "'waves' is missing: 'waves_from' and 'waves_cycles' select its cycles"),
        ("rtl", {"waves_cycles": 3}, "'waves' is missing: 'waves_from' and 'waves_cycles' select its cycles"),
        ("rtl", {"waves": "w.fst", "waves_cycles": 0}, "'waves_cycles' must be an integer from 1 to"),
        ("rtl", {"waves": 5}, "'waves' must be a path or Waves, not int"),
        ("rtl", {"stall_seed": -1}, "'stall_seed' must be an integer from 0 to 4,294,967,295, not -1"),
        ("rtl", {"latency": None}, "'latency' must be an integer from 1 to 1,000,000, not None"),
    ],
)
def test_invalid_options_are_refused(on: str, options: dict[str, Any], message: str) -> None:
    device = GoldenDevice(weft.Config.load("tiny"), 4096) if on == "device" else on
    with pytest.raises(InputError) as refused:
        RunOptions(device, **options)
    assert str(refused.value).startswith(message)


def test_recording_options() -> None:
    assert RunOptions("rtl").recording is None
    options = RunOptions("rtl", waves="w.fst", waves_from=5, waves_cycles=7)
    assert options.recording == Waves(Path("w.fst"), 5, 7)
    waves = Waves(Path("w.vcd"))
    assert dataclasses.replace(options, waves=waves).recording is waves
    assert options.without_waves() == RunOptions("rtl")
