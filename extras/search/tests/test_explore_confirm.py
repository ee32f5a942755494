"""Points that are confirmed, on the RTL and by synthesis: that a difference is seen, where cycles depend on data, and
where a board turns out to be too small."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import attention_models, qdq_models
from support.explored import OBJECTIVES, measured, model, task

import weft.extras.search.explore.confirm as confirming
from weft.boards.build.tools import ToolError
from weft.boards.families.family import Resources
from weft.boards.registry import BOARDS
from weft.examples import attention
from weft.extras.search.explore.confirm import Counted, Run, run, synthesised
from weft.extras.search.explore.evaluate import Models
from weft.extras.search.explore.explore import Task
from weft.extras.search.explore.output import models_of
from weft.extras.search.explore.place import MEMORY, Place
from weft.extras.search.explore.point import Measured, Point, Timing
from weft.hdl.isa.config import PRESETS, Config


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
    """In a byte, and in a cycle."""
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
    monkeypatch.setattr(confirming, "CYCLES", 50)
    monkeypatch.setattr(confirming, "MOST", 100)
    made = task(tmp_path)
    found = run(measured(made, PRESETS["tiny"], tmp_path), made.models)
    assert found == Run("")
    assert not found.good
    assert found.told == "nothing was run: no layer with multiplications takes 100 cycles or fewer"


def test_the_shortest_layer_where_all_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model's cycles, whether or not that is sure from multiplications alone; of others the largest."""
    made = task(tmp_path)
    item = measured(made, PRESETS["tiny"], tmp_path)
    cycles = {op.name: cycles for op, _, _, _, cycles in every(item, made.models)}
    shortest, longest = min(cycles, key=lambda name: cycles[name]), max(cycles, key=lambda name: cycles[name])
    assert cycles[shortest] < cycles[longest]
    assert run(item, made.models).layer == longest
    for limit in (cycles[shortest] - 1, 1):
        monkeypatch.setattr(confirming, "CYCLES", limit)
        found = run(item, made.models)
        assert found.layer == shortest
        assert found.good
        assert found.rtl == cycles[shortest]
    monkeypatch.setattr(confirming, "CYCLES", cycles[shortest])
    assert run(item, made.models).layer == shortest
    monkeypatch.setattr(confirming, "CYCLES", 1)
    monkeypatch.setattr(confirming, "_is_long", lambda *given: False)
    assert run(item, made.models).layer == shortest


def every(item: Measured, models: Models) -> list[confirming._Layer]:
    """All layers, as none is short enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confirming, "CYCLES", 1)
        patch.setattr(confirming, "_is_long", lambda *given: False)
        return list(confirming._tried(item, models, 0))


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


def uncounted(name: str, config: Config) -> Measured:
    """A point whose cycles nobody has counted, as nothing here depends on them."""
    point = Point.of(config, Place(name))
    return Measured(point, point.resources(), Timing([1], 1, 1, 1))


def only_attention(folder: Path, seed: int) -> Models:
    path = folder / "attention.onnx"
    rng = np.random.default_rng(seed)
    model = attention_models.random_operator(rng)
    attention_models.calibrated(model, qdq_models.feeds(model, rng))
    onnx.save(model, path)
    return models_of(folder, [path], {})


@pytest.mark.parametrize("config", ["tiny", pytest.param("small", marks=pytest.mark.long)])
def test_divisions_take_what_data_say(tmp_path: Path, config: str) -> None:
    """On the pipelined core: a few cycles a row, not more, and bytes are the same nevertheless."""
    found = run(uncounted(MEMORY, PRESETS[config]), only_attention(tmp_path, 4), seed=1)
    assert found.good, found
    assert found.differ == 0
    assert 0 < abs(found.rtl - found.model) <= found.within
    assert f"the model's {found.model:,}" in found.told
    assert not dataclasses.replace(found, differ=1).good
    for apart in (found.within + 1, -found.within - 1):
        assert not dataclasses.replace(found, rtl=found.model + apart).good
    assert json.loads(json.dumps(found.described()))["within"] == found.within


def test_the_sequential_model_has_the_data(tmp_path: Path) -> None:
    found = run(uncounted("tang-nano-9k", BOARDS["tang-nano-9k"].config), only_attention(tmp_path, 2))
    assert found.good, found
    assert found.within == 0
    assert found.rtl == found.model > 0


def test_convolutions_come_first(tmp_path: Path) -> None:
    """Where attention has the most multiplications."""
    convolutions, larger = models_of(tmp_path, [model(tmp_path)], {}), only_attention(tmp_path, 4)
    both = Models(larger.paths + convolutions.paths, larger.digests + convolutions.digests)
    item = uncounted(MEMORY, PRESETS["tiny"])
    found = run(item, both)
    assert found == run(item, convolutions)
    assert found.good
    assert found.within == 0


@pytest.mark.parametrize(("name", "good"), [("tang-nano-9k", False), (MEMORY, True)])
def test_a_board_may_be_too_small(monkeypatch: pytest.MonkeyPatch, name: str, good: bool) -> None:
    """However near the estimate is; without a board there are no limits."""
    item = uncounted(name, BOARDS["tang-nano-9k"].config)
    available = item.point.place.similar.available
    counted = dataclasses.replace(item.need, ram=available.ram + 1)
    monkeypatch.setattr(confirming, "synthesised_resources", lambda *given: counted)
    found = synthesised(item)
    assert found.good == good
    assert found.lacking == (() if good else ("ram",))
    assert ("more than the board has" in found.told) != good
    assert json.loads(json.dumps(found.described()))["good"] == good
    full = Resources(**{kind: getattr(available, kind) for kind in Resources.NAMES})
    monkeypatch.setattr(confirming, "synthesised_resources", lambda *given: full)
    assert synthesised(item).lacking == ()


def test_tools_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    item = uncounted("tang-nano-9k", BOARDS["tang-nano-9k"].config)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolError, match="pip install 'weft\\[boards\\]'"):
        synthesised(item)
