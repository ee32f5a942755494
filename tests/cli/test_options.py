"""Numeric options of the command line, each with every kind of wrong value."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple, get_args

import pytest
import typer

from weft import __main__ as command
from weft.arguments import BANDWIDTH, SEED
from weft.cli import main

LATENCY = (1, 1_000_000)
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
"""Commands with their options, and the smallest and largest value of each."""


class Number(NamedTuple):
    """Numeric option: its declaration, and whether it is an int or a float."""

    option: Any
    kind: type


def numbers() -> dict[str, Number]:
    """Return every numeric option by command and name."""
    result = {}
    for registered in main.app.registered_commands:
        assert registered.callback is not None
        name = registered.name or registered.callback.__name__
        for parameter in inspect.signature(registered.callback, eval_str=True).parameters.values():
            declared = getattr(parameter.annotation, "__metadata__", None)
            given = parameter.annotation.__origin__ if declared else None
            for kind in {int, float} & {given, *get_args(given)}:
                names = (
                    declared[0].default,
                    *declared[0].param_decls,
                )  # typer takes the first name for a default
                result[f"{name} {names[0]}"] = Number(declared[0], kind)
    return result


NUMBERS = numbers()
TEXTS = ["nan", "-inf", "-1", "", "0x10", "1" * 5000, "[red]\n2"]
EACH_KIND = ["run --latency", "explore --clock", "demo --images", "train --rate", "generate --temperature"]
"""An int and a float option without a limit, with a small limit, and with the limit 0."""


def parse(name: str, text: str) -> Any:
    """Parse an option's text. Raises `typer.BadParameter`."""
    return NUMBERS[name].option.parser(text)


def message_start(name: str) -> str:
    """Return the start of the error message for an invalid value of the option."""
    article = {int: "an integer", float: "a finite number"}[NUMBERS[name].kind]
    low, high = LIMITS[name]
    limits = f"from {low:,} to {high:,}" if high is not None else f"of at least {low:,}"
    return f"'{name.split()[1]}' must be {article} {limits}, not "


def test_every_numeric_option_is_listed() -> None:
    assert NUMBERS.keys() == LIMITS.keys()
    assert set(EACH_KIND) <= LIMITS.keys()


@pytest.mark.parametrize("name", EACH_KIND)
def test_text_instead_of_a_number_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages use the words of the Python API, with limits and value, before anything else is checked."""
    command_name, flag = name.split()
    for text in TEXTS:
        with pytest.raises(SystemExit) as stop:
            command.main([command_name, flag, text])
        assert stop.value.code == 2
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        head = f"error: {message_start(name)}"
        assert (out, line[: len(head)]) == ("", head)
        if len(text) < 1000:
            assert line.removeprefix(head) in (repr(text), text, f"{text}.0")


def test_limits() -> None:
    """Limits are accepted, values beyond them and text are refused, for every option."""
    for name, (low, high) in LIMITS.items():
        kind = NUMBERS[name].kind
        step = 1 if kind is int else 0.0001
        for limit in (low, *([] if high is None else [high])):
            assert parse(name, str(limit)) == limit
        for value in (low - step, *([] if high is None else [high + step]), "nan"):
            with pytest.raises(typer.BadParameter) as refused:
                parse(name, str(value))
            assert str(refused.value).startswith(message_start(name))
            assert str(refused.value).removeprefix(message_start(name)) in (str(value), repr(value))


def test_help_shows_limits(capsys: pytest.CaptureFixture[str]) -> None:
    for name, (low, high) in LIMITS.items():
        shown = f"[{low:,} to {high:,}]" if high is not None else f"[at least {low:,}]"
        assert NUMBERS[name].option.help.endswith(shown), name
    with pytest.raises(SystemExit):
        command.main(["run", "--latency", "30", "--nothing"])
    assert capsys.readouterr().err.startswith("error: no such option: --nothing")
