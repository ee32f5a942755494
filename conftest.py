"""Make the helper modules of this folder, and what benchmarks measure, importable from every test file; and have every
test draw the same numbers each time."""

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

HERE = Path(__file__).parent / "tests"
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent / "benchmarks"))

from support import long_tests  # noqa: E402 (its folder is on the path only now)


def pytest_addoption(parser: pytest.Parser) -> None:
    long_tests.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    long_tests.configure(config, HERE.parent)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    """Tests that draw from `random` itself do so by their names: what fails once fails again."""
    random.seed(request.node.nodeid)
