"""The search for plans: plans are used, change no result, and are reproducible."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import qdq_models
from support.wrong_numbers import wrong

import weft
import weft.extras.search.tune as tuner
from weft.boards.board import CoreKind
from weft.boards.registry import BOARDS
from weft.cli import main
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.machine.target import Target
from weft.compiler.plan.conv_plan import ConvPlan, Tiling, candidates
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.site import Site
from weft.errors import FileError, InputError
from weft.examples import digits
from weft.extras.search import tune as tuning
from weft.extras.search.tune import RANKED_TRIALS, TunedLayer, Tuning, sources_digest, timed_sources, tune
from weft.hdl.isa.config import PRESETS, Config
from weft.run.options import RunOptions
from weft.sim.timing.library import library

TINY = PRESETS["tiny"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library()  # from the user's cache
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write two convolutions that differ only in weights and another one, with results too large to stay on chip."""
    return three_layers(tmp_path, 18)


def three_layers(folder: Path, side: int) -> Path:
    builder = qdq_models.Builder(np.random.default_rng(3))
    value = builder.input((1, 8, side, side))
    for _ in range(2):
        value = builder.conv(value, 8, pads=(1, 1, 1, 1))
    onnx.save(builder.finish(builder.conv(value, 12, (1, 1))), folder / "model.onnx")
    return folder / "model.onnx"


def ranked(index: int) -> Callable[[ConvShape], ConvPlan | None]:
    return lambda shape: (candidates(shape) or [None])[min(index, len(candidates(shape)) - 1)]


@pytest.mark.parametrize("index", [1, 40, 10**6])
def test_every_plan_gives_equal_results(index: int) -> None:
    images = digits.held_out()[0][:2]
    default = weft.compile(digits.model(), TINY)
    other = weft.compile(digits.model(), TINY, choose=ranked(index))
    assert other.disassemble() != default.disassemble()
    for image in images:
        actual, wanted = (
            program.run({"image": image[None]}).outputs["logits"] for program in (other, default)
        )
        assert np.array_equal(actual, wanted)


def shapes_of(model: Path | bytes, config: Config) -> dict[str, ConvShape]:
    shapes: dict[str, ConvShape] = {}

    def watch(done: str, segment: DeviceSegment) -> None:
        if done == "choose_plans":
            shapes.update({shape.key: shape for shape in tuner.convolutions(segment, Target(config))})

    weft.compile(model, config, watch=watch)
    return shapes


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_a_tiling_determines_the_plan(preset: str) -> None:
    groups = set()
    for shape in shapes_of(digits.model(), PRESETS[preset]).values():
        plans: dict[Tiling, ConvPlan] = {}
        for plan in candidates(shape):
            same = plans.setdefault(plan.tiling, plan)
            assert dataclasses.replace(same, cycles=0) == dataclasses.replace(plan, cycles=0)
            groups.add(plan.group)
    assert len(groups) > 2


def test_matches_an_exhaustive_search(model: Path) -> None:
    """With as many trials as the smallest layer has plans, the result is optimal."""
    shapes = shapes_of(model, TINY)
    memory = tuner._Judge(TINY, RunOptions("timing"))
    plans = {
        key: list({plan.tiling: plan for plan in candidates(shape)}.values()) for key, shape in shapes.items()
    }
    key = min(plans, key=lambda key: len(plans[key]))
    cycles = [memory.cycles(shapes[key], plan) for plan in plans[key]]
    actual = tuner._search(shapes[key], memory, RANKED_TRIALS, 0)
    assert (actual.default, actual.cycles) == (cycles[0], min(cycles[:RANKED_TRIALS]))
    assert min(cycles) <= tuner._search(shapes[key], memory, 40, 0).cycles <= actual.cycles
    assert min(cycles) < max(cycles)


def test_found_cycles_match_the_program(model: Path) -> None:
    tuning, default, cycles = tune(model, TINY, trials=20, latency=100, bandwidth=3)

    def takes(**options: Any) -> int:
        program = weft.compile(model, TINY, memory=3, **options)
        inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
        return int(program.run(inputs, on="timing", latency=100, bandwidth=3).report["cycles"])

    assert (takes(), takes(choose=tuning.chooser())) == (default, cycles)
    assert cycles < default
    assert all(layer.cycles < layer.default for layer in tuning.layers.values())


def test_placement_uses_tuned_plans(tmp_path: Path) -> None:
    """A layer much slower beside resident data gets it elsewhere, or not at all."""
    model = three_layers(tmp_path, 9)
    shapes = shapes_of(model, TINY).values()
    (between,) = (
        shape for shape in shapes if shape.src.resident is not None and shape.dst.resident is not None
    )
    tiling = candidates(between)[0].tiling

    def resident(cycles: int) -> dict[str, int]:
        tuning = Tuning(TINY, 30, None, {between.key: TunedLayer("layer", tiling, 100, cycles)})
        actual: dict[str, int] = {}
        weft.compile(
            model, TINY, choose=tuning.chooser(), watch=lambda _, segment: actual.update(segment.resident)
        )
        return actual

    usual = resident(50)
    assert resident(100) == usual
    assert len(usual) == 2
    assert resident(2000) != usual


def test_layers_whose_results_stay_on_chip(tmp_path: Path) -> None:
    """They are tried with operands and scratchpad contents as in the program."""
    model = three_layers(tmp_path, 9)
    shapes = shapes_of(model, TINY)
    on_chip = [(shape.src.resident is not None, shape.dst.resident is not None) for shape in shapes.values()]
    assert on_chip == [(False, True), (True, True), (True, False)]
    memory = tuner._Judge(TINY, RunOptions("timing"))
    last = list(shapes.values())[-1]
    moved = dataclasses.replace(last.src, resident=None)
    alone = ConvShape(last.op, Site((moved,), last.dst, Target(TINY)))
    assert min(memory.cycles(last, plan) for plan in candidates(last)) < memory.cycles(
        alone, candidates(alone)[0]
    )
    tuning, default, cycles = tune(model, TINY, trials=8, latency=100, bandwidth=2)
    assert cycles <= default
    image = {"input_1": np.random.default_rng(0).normal(0, 1, (1, 8, 9, 9)).astype(np.float32)}
    actual, wanted = (
        weft.compile(model, TINY, **options).run(image).outputs
        for options in ({"choose": tuning.chooser()}, {})
    )
    assert all(np.array_equal(actual[name], wanted[name]) for name in wanted)


def test_results_are_reproducible_and_cached(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tune(model, TINY, trials=12)
    files = sorted((tmp_path / "cache").iterdir())
    for path in files:
        shutil.rmtree(path)
    assert tune(model, TINY, trials=12) == first
    assert sorted((tmp_path / "cache").iterdir()) == files
    assert len(files) == 2  # the two that are alike are searched once
    monkeypatch.setattr(tuner, "_search", lambda *_: pytest.fail("searched again"))
    assert tune(model, TINY, trials=12) == first
    layer = files[0] / "layer.json"
    text = layer.read_text()
    for damaged in (
        "{",
        "[]",
        text.replace("weft tuned layer 2", "weft tuned layer 0"),
        text.replace('"tile"', '"t"'),
    ):
        layer.write_text(damaged)
        with pytest.raises(pytest.fail.Exception, match="searched again"):
            tune(model, TINY, trials=12)


def test_proposals_depend_on_the_seed_alone(model: Path) -> None:
    shape = min(shapes_of(model, TINY).values(), key=lambda shape: shape.key)
    plans = candidates(shape)

    def proposals(seed: int) -> list[int]:
        return tuner._try_proposals(plans, lambda index: 1000 + index % 7, RANKED_TRIALS + 10, seed)

    assert proposals(1) == proposals(1) != proposals(2)
    assert len(proposals(1)) == 10


def test_only_improvements_of_the_program_are_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are faster alone may not be faster in the program."""
    worst = {}

    def search(shape: ConvShape, *_: object) -> TunedLayer:
        worst[shape.key] = candidates(shape)[-1].tiling
        return TunedLayer(shape.op.name, worst[shape.key], 2, 1)

    monkeypatch.setattr(tuner, "_search", search)
    tuning, default, cycles = tune(model, TINY)
    assert worst
    assert not tuning.layers
    assert default == cycles


def test_without_optuna(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    tune(model, TINY, trials=RANKED_TRIALS)
    with pytest.raises(FileError, match=r"pip install 'weft\[tune\]', or set --trials to 8"):
        tune(model, TINY, trials=RANKED_TRIALS + 1)


def test_nothing_to_tune(tmp_path: Path) -> None:
    builder = qdq_models.Builder(np.random.default_rng(3))
    source = builder.input((1, 4, 8, 8))
    path = tmp_path / "pool.onnx"
    onnx.save(builder.finish(builder.pool(source, "MaxPool", kernel_shape=[2, 2])), path)
    with pytest.raises(FileError, match=r"pool.onnx has no convolution or matrix product on the device"):
        tune(path, TINY)


def saved(tmp_path: Path, changes: dict[str, object]) -> Path:
    values = json.loads(Tuning(TINY, 30, None, {}).text()) | changes
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(values))
    return path


LAYER = {"name": "a", "tiling": {"tile": [1, 2], "zones": [3, 4], "block": 7, "chunk": 5, "group": 6, "chunked": True},
         "default": 7, "cycles": 8}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), [
    ({"format": "weft tuning 0"}, "it has format .weft tuning 0., and this version of weft reads .weft tuning [1-9]."),
    ({"format": None}, "format: expected str, got null"),
    ({"sources": "0"}, "is from another version of weft"),
    ({"sources": 0}, "sources: expected str, got int"),
    ({"config": PRESETS["small"].to_dict()}, f"is for configuration {PRESETS['small'].digest:#010x}"),
    ({"config": {"n": 5}}, "configuration field 'n' must be a power of two from 2 to 128, not 5"),
    ({"config": None}, "config: expected object, got null"),
    ({"latency": 0}, "latency: expected int >= 1"),
    ({"bandwidth": -1}, "bandwidth: expected float > 0"),
    ({"bandwidth": "fast"}, r"bandwidth: expected float \| null, got str"),
    ({"layers": None}, "layers: expected object, got null"),
    ({"layers": {"key": None}}, r"layers\[...\]: expected object, got null"),
    ({"layers": {"key": LAYER | {"tiling": {"tile": 3}}}}, r"layers\[...\].tiling.tile: expected array, got int"),
    ({"layers": {"key": LAYER | {"cycles": 10**4000}}}, r"layers\[...\].cycles: "),
    ({"layers": {"key": LAYER | {"default": 0}}}, r"layers\[...\].default: expected int >= 1"),
    ({"layers": {"key": LAYER | {"cycles": 1.5}}}, r"layers\[...\].cycles: expected int, got float"),
    ({"spare": 1}, "object contains unknown field spare"),
], ids=range(17))  # fmt: skip
def test_files_that_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    Tuning.load(saved(tmp_path, {"layers": {"key": LAYER}}), TINY)
    path = saved(tmp_path, changes)
    with pytest.raises(FileError, match=message) as caught:
        Tuning.load(path, TINY)
    assert "weft tune`" in str(caught.value)


LOADED = """
import sys, weft.extras.search.tune
from weft.hdl.isa.config import PRESETS
weft.extras.search.tune.tune(sys.argv[1], PRESETS["tiny"], trials=1)
print(*(module.__file__ for name, module in list(sys.modules.items()) if name.startswith("weft.")), sep="\\n")
"""
NO_CYCLES = ("__init__", "api", "arguments", "configurations", "devices", "errors", "execution", "files", "options",
             "program", "report", "run_report", "tuning")  # fmt: skip
"""Modules that take part in a search without influencing its cycles."""


def test_sources_that_cycles_depend_on(model: Path) -> None:
    """The compiler, hardware and cycle model, and any other module that a search loads."""
    root = Path(__file__).resolve().parents[3]
    folders = {"compiler": ("py",), "hdl": ("py",), "sim/timing": ("py", "h", "cpp")}
    sources = {path.resolve() for path in timed_sources()}
    assert sources >= {
        path for folder, ends in folders.items() for end in ends for path in (root / folder).rglob(f"*.{end}")
    }
    command = [sys.executable, "-c", LOADED, str(model)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = {Path(line).resolve() for line in printed.splitlines()}
    above = (root / "weft", root / "extras")
    own = {
        path
        for path in loaded - sources
        if any(map(path.is_relative_to, above)) and path.stem not in NO_CYCLES
    }
    readers = root / "extras" / "mlir"  # of models, whose layers are known by their shapes
    assert {path for path in own if not path.is_relative_to(readers)} == set()
    rooms = {path.relative_to(root).parts[0] for path in loaded - sources if path.is_relative_to(root)}
    assert rooms <= {"weft", "extras", "sim", "boards"}  # the protocol of devices, and the names of boards


@pytest.mark.parametrize("source", random.Random(0).sample(timed_sources(), 12), ids=lambda path: path.name)
def test_a_change_of_any_source_is_another_version(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, {})
    read = Path.read_bytes
    changed = lambda self: read(self) + (b" " if self == source else b"")  # noqa: E731
    monkeypatch.setattr(Path, "read_bytes", changed)
    monkeypatch.setattr(tuning, "sources_digest", sources_digest.__wrapped__)
    with pytest.raises(FileError, match="is from another version of weft: run `weft tune` again"):
        Tuning.load(path, TINY)


@pytest.mark.parametrize(
    "raw", [b"\xff{", b"", b"[" * 100_000, b'{"a": ' * 5000, b"9" * 5000, b"null", b"[]"], ids=range(7)
)
def test_other_files_are_refused(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "tuning.json").write_bytes(raw)
    with pytest.raises(FileError, match=r"tuning.json is not a valid tuning: .*; run `weft tune` again$"):
        Tuning.load(tmp_path / "tuning.json", TINY)


def test_written_plans_are_read(tmp_path: Path) -> None:
    tiling = Tiling((1, 2), (3, 4), 7, 5, 6, True)
    plans = Tuning(TINY, 100, 2.5, {"key": TunedLayer("conv", tiling, 20, 10)})
    path = tmp_path / "tuning.json"
    path.write_text(plans.text())
    assert Tuning.load(path, TINY) == plans


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main.main(list(arguments))
    return int(left.value.code or 0)


def test_commands(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(model.parent)
    memory = ("--latency", "100", "--bandwidth", "3")
    assert call("tune", "model.onnx", "-o", "tuned.json", "--config", "tiny", "--trials", "20", *memory) == 0
    assert "% less)" in capsys.readouterr().out
    tuning = Tuning.load(Path("tuned.json"), TINY)
    assert (tuning.latency, tuning.bandwidth) == (100, 3)
    assert call("compile", "model.onnx", "-o", "built", "--config", "tiny", "--tuning", "tuned.json") == 0
    wanted = weft.compile(Path("model.onnx"), TINY, memory=3, choose=tuning.chooser())
    assert weft.load("built").disassemble() == wanted.disassemble()
    assert wanted.disassemble() != weft.compile(Path("model.onnx"), TINY).disassemble()
    assert weft.load("built").memory == 3
    capsys.readouterr()
    other = (
        "compile",
        "model.onnx",
        "-o",
        "other",
        "--config",
        "tiny",
        "--tuning",
        "tuned.json",
        "--memory",
        "4",
    )
    assert call(*other) == 2
    assert (
        "tuned.json is for 3 bytes a cycle, unlike --memory 4: leave out --memory" in capsys.readouterr().err
    )
    assert call("compile", "model.onnx", "-o", "other", "--tuning", "tuned.json") == 2
    assert "run `weft tune` with the same --config" in capsys.readouterr().err
    assert not Path("other").exists()
    assert call("tune", "missing.onnx", "-o", "none.json") == 2
    assert call("tune", ".", "-o", "none.json") == 2
    assert not Path("none.json").exists()


def test_wrong_numbers(model: Path) -> None:
    for name in ("latency", "bandwidth", "seed", "trials"):
        for value in wrong(name):
            with pytest.raises(InputError, match=f"^'{name}' must be "):
                tune(model, PRESETS["tiny"], **{name: value})


@pytest.mark.parametrize("board", [name for name, item in BOARDS.items() if item.core is CoreKind.SEQUENTIAL])
def test_only_for_the_pipelined_core(board: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = (
        f"this is the configuration of .*{board}.*, which (have|has) the sequential core: tilings are tuned"
    )
    with pytest.raises(InputError, match=f"^{said} for the pipelined core only"):
        tune(model.with_name("not looked at"), BOARDS[board].config)
    tuning = model.with_name("tuning.json")
    assert call("tune", str(model), "-o", str(tuning), "--config", board) == 2
    assert re.match(f"error: {said}", capsys.readouterr().err.splitlines()[-1])
    assert not tuning.exists()
