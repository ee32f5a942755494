"""Numbers in the Python API: every parameter, with every kind of wrong value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.wrong_numbers import NO_INTEGERS, NOT_FINITE, wrong

import weft
from weft import InputError, Program
from weft.cli.demo import Demo
from weft.examples import digits
from weft.hdl.isa.config import PRESETS
from weft.run.attention import PagedAttention, Quantisation
from weft.run.trace import timelines_of


@pytest.fixture(scope="module")
def program() -> Program:
    return weft.compile(digits.model(), config="tiny")


def runs(program: Program) -> dict[str, Callable[..., Any]]:
    """Functions that take numbers, as (function name, parameter)."""
    inputs = {"image": digits.held_out()[0][:1]}
    kernel = PagedAttention("tiny", heads=1, head_size=4, page=4, pages=1, capacity=1, largest=100)
    q, pool = np.zeros((1, 1, 4), np.int8), np.zeros((1, 4, 1, 4), np.int8)
    targets: dict[str, Callable[..., Any]] = {}
    for on in ("golden", "rtl", "timing"):
        targets[f"run on {on}"] = lambda on=on, **options: program.run(inputs, on=on, **options)
        targets[f"attention on {on}"] = lambda on=on, **options: kernel.run(
            q, pool, pool, [0], 1, on, **options
        )
    return targets


def test_simulation(program: Program) -> None:
    for target, function in runs(program).items():
        for name in ("latency", "bandwidth", "stall_seed"):
            for value in wrong(name):
                with pytest.raises(InputError, match=f"^'{name}' must be ") as refused:
                    function(**{name: value})
                assert len(str(refused.value)) < 200, target


def test_traces(program: Program) -> None:
    for name in ("latency", "bandwidth"):
        for value in wrong(name):
            with pytest.raises(InputError, match=f"^'{name}' must be "):
                timelines_of(program, **{name: value})
    with pytest.raises(InputError, match=r"^traces are of 'timing' or 'rtl', not of 'golden'$"):
        timelines_of(program, on="golden")


def test_attention() -> None:
    good = {"heads": 1, "head_size": 4, "page": 4, "pages": 1, "capacity": 1}
    for name in (*good, "rows", "kv_heads"):
        for value in [*NO_INTEGERS, 0, -1]:
            if value is not None or name != "kv_heads":
                with pytest.raises(InputError, match=f"^'{name}' must be an integer of at least 1, not "):
                    PagedAttention("tiny", **(good | {name: value}))
    for name in ("q", "k", "v", "y"):
        for value in [*NOT_FINITE, 0.0, -1.0]:
            with pytest.raises(InputError, match=f"^'{name}_scale' must be a positive finite number, not "):
                PagedAttention("tiny", **good, quantisation=Quantisation(**{f"{name}_scale": value}))
        for value in [*NO_INTEGERS, -129, 128]:
            with pytest.raises(InputError, match=f"^'{name}_zero' must be an integer from -128 to 127, not "):
                PagedAttention("tiny", **good, quantisation=Quantisation(**{f"{name}_zero": value}))


def test_demonstration(tmp_path: Path) -> None:
    from rich.console import Console

    for value in [*(value for value in NO_INTEGERS if value is not None), 0, -1]:
        with pytest.raises(InputError, match=r"^'images' must be an integer of at least 1, not "):
            Demo("digits", PRESETS["tiny"], tmp_path, Console()).run(value)
    assert list(tmp_path.iterdir()) == []


def test_other_arguments(program: Program, tmp_path: Path) -> None:
    inputs = {"image": digits.held_out()[0][:1]}
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: program.run(inputs, on=3), "'on' must be 'golden', 'rtl' or 'timing', or a device, not int"),
        (lambda: program.run(inputs, on="fpga"), "unknown device 'fpga'; choose 'golden', 'rtl' or 'timing'"),
        (lambda: program.run(inputs, memory=1), "'memory' must be True or False, not 1"),
        (lambda: program.run(inputs, waves=5), "'waves' must be a path or Waves, not int"),
        (lambda: program.run([1]), "inputs are a dict of arrays by name, not list"),
        (lambda: program.run({"image": [[1], [1, 2]]}), "input 'image' is no array: "),
        (lambda: program.save(5), "a folder is a path, not int"),
        (lambda: weft.load(5), "a folder is a path, not int"),
        (lambda: weft.compile(5), "a model is a path, bytes or an onnx.ModelProto, not int"),
        (lambda: weft.check(None), "a model is a path, bytes or an onnx.ModelProto, not NoneType"),
        (lambda: weft.compile(b"", config=5), "a configuration is a Config, a name or a JSON file, not int"),
        (lambda: weft.verilog(5), "a configuration is a Config, a name or a JSON file, not int"),
        (lambda: weft.compile(b"", reuse="no"), "'reuse' must be True or False, not 'no'"),
        (lambda: weft.compile(b"", plain_inputs=None), "'plain_inputs' must be True or False, not None"),
        (lambda: weft.compile(b"", progress=1), "'progress' must be a function, not int"),
        (lambda: weft.compile(b"", choose="best"), "'choose' must be a function, not str"),
    ]
    for call, message in refused:
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(message)


def test_numbers_of_other_libraries_are_accepted(program: Program) -> None:
    inputs = {"image": digits.held_out()[0][:1]}
    plain = program.run(inputs, on="timing", latency=60, bandwidth=4.0).report["cycles"]
    for latency in (np.int64(60), np.uint8(60)):
        for bandwidth in (4, np.float32(4), np.int8(4), Fraction(8, 2)):
            actual = program.run(inputs, on="timing", latency=latency, bandwidth=bandwidth)
            assert actual.report["cycles"] == plain
