"""Every test of the golden interpreter runs on the specification, and on the compiled interpreter in its place."""

from __future__ import annotations

import pytest

from weft.sim.compiled.device import CompiledDevice
from weft.sim.golden.interpreter import GoldenDevice


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if hasattr(metafunc.module, "GoldenDevice"):
        metafunc.parametrize(
            "_device", [GoldenDevice, CompiledDevice], ids=["specification", "compiled"], indirect=True
        )


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(request, "param"):
        monkeypatch.setattr(request.module, "GoldenDevice", request.param)
