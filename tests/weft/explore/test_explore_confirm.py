"""Points that are confirmed: on the RTL, and by synthesis; and that a difference is seen."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from support.explored import OBJECTIVES, job, task

import weft.explore.confirm as confirming
from weft.boards.family import Resources
from weft.boards.registry import BOARDS
from weft.examples import attention
from weft.explore.confirm import Counted, run, synthesised
from weft.explore.evaluate import timed
from weft.explore.explore import Exploration, Task
from weft.explore.output import confirm, models_of
from weft.explore.point import Measured, Point
from weft.hdl.isa.config import PRESETS, Config


def measured(made: Task, config: Config, folder: Path) -> Measured:
    (place,) = made.places
    point = Point.of(config, place)
    return Measured(point, point.resources(), timed(job(made, config, place, folder)))


@pytest.mark.parametrize(
    ("board", "changes"),
    [
        ("", {}),
        ("tang-nano-9k", {}),
        pytest.param("", {"bus_bytes": 16, "queue_depth": 1}, marks=pytest.mark.long),
        pytest.param("ulx3s-12f", {}, marks=pytest.mark.long),
    ],
)
def test_layers_on_the_rtl(tmp_path: Path, board: str, changes: dict[str, int]) -> None:
    """On both cores: no byte differs, and cycles are the model's."""
    made = task(tmp_path, boards=[board] if board else [])
    config = BOARDS[board].config if board else PRESETS["tiny"].replace(**changes)
    found = run(measured(made, config, tmp_path), made.models)
    assert found.good, found
    assert found.layer
    assert 0 < found.rtl == found.model
    json.dumps(found.described())


def test_attention_on_the_rtl(tmp_path: Path) -> None:
    path = tmp_path / "attention.onnx"
    path.write_bytes(attention.model())
    made = task(tmp_path)
    made = Task(models_of(tmp_path, [path], {}), made.space, made.places, OBJECTIVES)
    assert run(measured(made, PRESETS["tiny"], tmp_path), made.models, seed=2).good


def test_differences_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a byte, in a cycle, and in what is told of a front."""
    made = task(tmp_path)
    item = measured(made, PRESETS["tiny"], tmp_path)
    compared = confirming._compared
    for change, said in (
        (lambda differ, rtl: (3, rtl), "3 bytes of "),
        (lambda differ, rtl: (0, rtl + 1), "the model's "),
    ):
        monkeypatch.setattr(confirming, "_compared", lambda *given, change=change: change(*compared(*given)))
        found = run(item, made.models)
        assert not found.good
        assert said in found.told
        known, good = confirm(Exploration(OBJECTIVES, [item]), made.models, 0, True, False, lambda text: None)
        assert not good
        assert known[item.point.key]["verified"]["good"] is False


def test_the_golden_interpreter_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another program it has other bytes."""
    made = task(tmp_path)
    item = measured(made, PRESETS["tiny"], tmp_path)
    device = confirming.golden_device

    class Wrong:
        def __init__(self, *given: object) -> None:
            self._device = device(*given)  # type: ignore[arg-type]

        def __getattr__(self, name: str) -> object:
            return getattr(self._device, name)

        def read(self, address: int, size: int) -> bytes:
            found = bytearray(self._device.read(address, size))
            found[-1] ^= 1
            return bytes(found)

    monkeypatch.setattr(confirming, "golden_device", Wrong)
    found = run(item, made.models)
    assert found.differ == 1
    assert not found.good


def test_no_layer_is_small_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "CYCLES", 100)
    made = task(tmp_path)
    found = run(measured(made, PRESETS["tiny"], tmp_path), made.models)
    assert not found.good
    assert found.told == "no layer of 100 cycles or fewer"


def test_how_near_synthesis_is() -> None:
    known = Resources(1000, 1000, 0, 10)
    assert Counted(known, known).good
    assert Counted(dataclasses.replace(known, lut=1099, dsp=1, ram=20), known).good
    assert not Counted(dataclasses.replace(known, lut=1101), known).good
    assert not Counted(dataclasses.replace(known, ff=890), known).good
    assert Counted(dataclasses.replace(known, lut=1050), known).apart["lut"] == pytest.approx(0.05)


@pytest.mark.long
@pytest.mark.parametrize("board", ["tang-nano-9k", "ulx3s-12f"])
def test_synthesis(tmp_path: Path, board: str) -> None:
    """Of a configuration that the estimates have not seen."""
    made = task(tmp_path, boards=[board])
    config = BOARDS[board].config.replace(scratchpad_depth=128, accumulator_depth=64)
    found = synthesised(measured(made, config, tmp_path))
    print(found.told)
    assert found.good, found.told
