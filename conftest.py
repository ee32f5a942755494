"""Make the helper modules of tests/, and what benchmarks measure, importable from every test file; and have every test
draw the same numbers each time, in the cases that the run draws."""

import os
import random
import signal
import sys
from pathlib import Path

import pytest

import weft

assert weft.__version__  # imported before any test imports ONNX Runtime, whose telemetry it switches off

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background job. Commands that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.append(str(ROOT / "benchmarks"))

from support import drawn_cases, long_tests  # noqa: E402 (their folder is on the path only now)


def pytest_addoption(parser: pytest.Parser) -> None:
    long_tests.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    long_tests.configure(config, ROOT)
    drawn_cases.configure()


def pytest_report_header() -> str:
    return f"cases drawn with {drawn_cases.SEED}={os.environ[drawn_cases.SEED]}"


@pytest.hookimpl(tryfirst=True)  # ahead of the choice by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    all_long = config.getoption("markexpr") == "long"
    drawn_cases.mark_others(items, "" if all_long else os.environ[drawn_cases.SEED])


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Tests that draw from `random` itself do so by their names: what fails once fails again."""
    random.seed(request.node.nodeid)
