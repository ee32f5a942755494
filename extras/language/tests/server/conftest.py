"""A server of a small language model for each file of tests, and its client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from weft.extras.language.run.engine import Engine
from weft.extras.language.server.server import Server
from weft.extras.language.tests.support.served import load_served, run_server, write_served


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    with load_served(path, 3) as model, Engine(model) as engine:
        yield engine


@pytest.fixture(scope="module")
def port(engine: Engine) -> Iterator[int]:
    with Server(engine, "served") as server, run_server(server.application()) as (port, _):
        yield port


@pytest.fixture(scope="module")
def client(port: int) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        yield client
