"""Options of the command line that are numbers: each with values of every wrong kind."""

from __future__ import annotations

import inspect
from typing import get_args

import pytest
import typer

from weft import __main__ as command
from weft import cli
from weft.arguments import BANDWIDTH, LATENCY, SEED

LIMITS: dict[str, tuple[float, float | None]] = {
    "run --latency": LATENCY,
    "run --bandwidth": BANDWIDTH,
    "run --stall-seed": SEED,
    "run --waves-from": (0, 1 << 40),
    "run --waves-cycles": (1, 1 << 40),
    **{
        f"{name} --baud": (1, 1 << 31)
        for name in ("run", "probe", "generate", "perplexity", "serve", "train")
    },
    "trace --latency": LATENCY,
    "trace --bandwidth": BANDWIDTH,
    "tune --latency": LATENCY,
    "tune --bandwidth": BANDWIDTH,
    "tune --trials": (1, 100_000),
    "tune --seed": SEED,
    "compile --substitute": (1, 1_000_000),
    "rules --seed": SEED,
    "explore --trials": (1, 1_000_000),
    "explore --minutes": (0.01, 100_000),
    "explore --seed": SEED,
    "explore --jobs": (1, 1024),
    "explore --latency": LATENCY,
    "explore --bandwidth": BANDWIDTH,
    "explore --clock": (0.1, 1000),
    "train --layers": (1, 10_000),
    "train --adapter": (0, 1024),
    "train --epochs": (1, 10_000),
    "train --batch": (1, 4096),
    "train --rate": (1e-9, 1000),
    "train --momentum": (0, 0.9999),
    "train --seed": SEED,
    "prove --seconds": (1, 86_400),
    "prove --jobs": (1, 1024),
    "prove --mutants": (0, 10_000),
    "prove --seed": SEED,
    "quantise --budget": (0, 200),
    "quantise --top": (0, 1_000_000),
    "build --seed": (1, (1 << 31) - 1),
    "build --clock": (1, 10_000),
    "demo --images": (1, None),
    "demo --tokens": (1, 1 << 24),
    "generate --tokens": (1, 1 << 24),
    "generate --temperature": (0, 100),
    "generate --top-k": (1, 1 << 24),
    "generate --seed": (0, (1 << 32) - 1),
    "perplexity --stride": (1, 1 << 24),
    "serve --port": (0, 65535),
    "serve --pages": (1, 1 << 24),
    "serve --connections": (1, 1 << 16),
    "serve --read-timeout": (0.1, 86_400),
    "serve --idle-timeout": (0.1, 86_400),
    **{f"{name} --context": (1, 1 << 24) for name in ("generate", "perplexity", "serve")},
    **{f"{name} --rows": (1, 64) for name in ("generate", "perplexity", "serve")},
    **{f"{name} --latency": LATENCY for name in ("generate", "perplexity")},
    **{f"{name} --bandwidth": BANDWIDTH for name in ("generate", "perplexity")},
    **{f"{name} --clock": (0.001, 1e5) for name in ("generate", "perplexity")},
}
"""Commands with their options, and the least and the most that they take."""


def numbers() -> dict[str, type]:
    """Every option that is a number, and whether it is an int or a float."""
    found = {}
    commands = typer.main.get_command(cli.app).commands
    for registered in cli.app.registered_commands:
        assert registered.callback is not None
        name = registered.name or registered.callback.__name__
        options = {option.name: option.opts[0] for option in commands[name].params}
        for parameter in inspect.signature(registered.callback, eval_str=True).parameters.values():
            given = parameter.annotation.__origin__ if hasattr(parameter.annotation, "__metadata__") else None
            for kind in {int, float} & {given, *get_args(given)}:
                found[f"{name} {options[parameter.name]}"] = kind
    return found


NUMBERS = numbers()
TEXTS = ["nan", "-inf", "-1", "", "0x10", "1" * 5000, "[red]\n2"]


def said(capsys: pytest.CaptureFixture[str], option: str, value: str) -> str:
    """What weft says to a value that it refuses."""
    name, option = option.split()
    with pytest.raises(SystemExit) as left:
        command.main([name, option, value])
    assert left.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    return line


def test_all_of_them() -> None:
    assert NUMBERS.keys() == LIMITS.keys()


@pytest.mark.parametrize("option", NUMBERS)
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:10]))
def test_no_numbers(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In the words of the Python API, with the limits and the value, and before anything else is looked at."""
    article = {int: "an integer", float: "a finite number"}[NUMBERS[option]]
    low, high = LIMITS[option]
    limits = f"from {low:,} to {high:,}" if high is not None else f"of at least {low:,}"
    line = said(capsys, option, text)
    head = f"error: '{option.split()[1]}' must be {article} {limits}, not "
    assert line.startswith(head)
    if len(text) < 1000:
        assert line.removeprefix(head) in (repr(text), text, f"{text}.0")


@pytest.mark.parametrize("option", NUMBERS)
def test_outside_the_limits(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    low, high = LIMITS[option]
    step = 1 if NUMBERS[option] is int else 0.0001
    for value in (low - step, *([] if high is None else [high + step])):
        assert said(capsys, option, str(value)).endswith(f", not {value}")


@pytest.mark.parametrize("option", NUMBERS)
def test_limits_are_taken_and_shown(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong then is something else: here an option that does not exist."""
    name, flag = option.split()
    for limit in LIMITS[option]:
        if limit is not None:
            with pytest.raises(SystemExit):
                command.main([name, flag, str(limit), "--nothing"])
            assert capsys.readouterr().err.startswith("error: no such option: --nothing")
