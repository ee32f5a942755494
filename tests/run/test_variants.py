"""Programs of one model for several memories: equal bytes, and choice of the fastest."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from support.qdq_models import feeds
from support.small_models import small
from support.state_models import Ring

import weft
from weft import __main__ as command
from weft.boards.registry import find
from weft.examples import digits
from weft.hdl.isa.config import PRESETS
from weft.run.variants import LOADS, Variants
from weft.sim.rtl.device import RtlDevice

TINY = PRESETS["tiny"].replace(probability_bits=0, loops=1, descriptors=1)


@functools.cache
def programs(name: str, config: weft.Config, rates: tuple[float, ...]) -> tuple[weft.Program, ...]:
    model = {"digits": digits.model, "small": small}[name]()
    return tuple(weft.compile(model, config, memory=rate) for rate in rates)


def image(seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": digits.held_out()[0][seed][None]}


def same_outputs(first: weft.Result, second: weft.Result) -> bool:
    assert first.outputs.keys() == second.outputs.keys() != set()
    return all(np.array_equal(first.outputs[name], array) for name, array in second.outputs.items())


def test_variants_compute_equal_bytes() -> None:
    inputs = feeds(small(), np.random.default_rng(1))
    compiled = programs("small", TINY, (4, 0.5))
    assert compiled[0].device_programs[0].code != compiled[1].device_programs[0].code
    expected = compiled[0].run(inputs)
    for rate in (1, 2, 4, 64):
        variants = Variants(compiled)
        with RtlDevice(TINY, 1 << 18, bandwidth=rate) as device:
            for _ in range(3):
                assert same_outputs(variants.run(inputs, on=device), expected)
        variants = Variants(compiled)
        chosen = set()
        for choice in (0, 1):
            variants.choice = choice
            result = variants.run(inputs)
            chosen.add(result.report["variant"]["ran"])
            assert same_outputs(result, expected)
        assert chosen == {0, 1}


@pytest.mark.parametrize("rate", [0.5, 1, 2, 4, 8, 16, 64])
def test_faster_variant_is_chosen_after_one_run(rate: float) -> None:
    """If the programs differ by over 5 %; after two runs in any case."""
    compiled = programs("digits", PRESETS["default"], (16, 4))
    cycles = [program.run(image(), on="timing", bandwidth=rate).report["cycles"] for program in compiled]
    variants = Variants(compiled)
    first = variants.run(image(), on="timing", bandwidth=rate).report["variant"]
    assert first["cycles"] == [cycles[0], None]
    assert (first["next"] == 1) == (first["loads"] >= LOADS)
    if abs(cycles[0] - cycles[1]) > 0.05 * min(cycles):
        assert cycles[variants.choice] == min(cycles)
    # The slower program is abandoned after its trial.
    for _ in range(3):
        report = variants.run(image(), on="timing", bandwidth=rate).report["variant"]
    known = [count for count in report["cycles"] if count is not None]
    assert cycles[variants.choice] == min(known)
    if rate <= 4:
        assert (first["next"], report["ran"]) == (1, 1)
        assert report["why"].startswith("of those that ran it takes the fewest cycles")
    if rate >= 16:
        assert report["cycles"] == [cycles[0], None]


def test_another_memory_restarts_the_choice() -> None:
    variants = Variants(programs("digits", PRESETS["default"], (16, 4)))
    for _ in range(2):
        variants.run(image(), on="timing", bandwidth=2)
    assert variants.choice == 1
    report = variants.run(image(), on="timing", bandwidth=16).report["variant"]
    assert report["cycles"][0] is None  # cycles counted on the other memory are forgotten
    assert report["next"] == 0
    assert report["why"].endswith("trying the program for a faster memory")


def test_three_variants_are_tried_in_order() -> None:
    variants = Variants(programs("digits", PRESETS["default"], (16, 1, 4)))
    chosen = [variants.run(image(), on="timing", bandwidth=1).report["variant"]["ran"] for _ in range(5)]
    assert chosen[:3] == [0, 2, 1]
    cycles = variants.run(image(), on="timing", bandwidth=1).report["variant"]["cycles"]
    assert chosen[3] == chosen[4] == cycles.index(min(cycles))


def test_choice_stays_without_cycle_counts() -> None:
    compiled = programs("small", TINY, (4, 0.5))
    variants = Variants(compiled)
    inputs = feeds(small(), np.random.default_rng(1))
    report = variants.run(inputs).report["variant"]
    assert report == {
        "ran": 0, "next": 0, "memories": [4, 0.5], "cycles": [None, None], "loads": None, "waits": None,
        "why": "the device counts no cycles",
    }  # fmt: skip


def test_states_move_to_the_other_variant() -> None:
    ring = Ring(taps=3, channels=4)
    compiled = [weft.compile(ring.build(), TINY, memory=rate) for rate in (4, 1)]
    name = next(iter(compiled[0].inputs))
    expected = [compiled[0].run({name: inputs}) for inputs in ring.feeds(4)]
    compiled[0].reset()
    variants = Variants(compiled)
    for index, inputs in enumerate(ring.feeds(4)):
        variants.choice = index % 2
        assert same_outputs(variants.run({name: inputs}), expected[index])
    variants.reset()
    variants.choice = 1
    assert same_outputs(variants.run({name: ring.feeds(4)[0]}), expected[0])
    assert variants.states.keys() == compiled[0].states.keys() != set()


def test_invalid_variants_are_refused() -> None:
    compiled = programs("small", TINY, (4, 0.5))
    with pytest.raises(weft.InputError, match=r"^a choice is between two programs or more, not 1$"):
        Variants(compiled[:1])
    with pytest.raises(
        weft.InputError, match=r"^program 1 has other inputs than program 0: all are to be of one model$"
    ):
        Variants([compiled[0], weft.compile(digits.model(), TINY, memory=1)])
    with pytest.raises(weft.InputError, match=r"^program 1 has other configuration than program 0"):
        Variants([compiled[0], weft.compile(small(), "tiny", memory=1)])
    with pytest.raises(
        weft.InputError, match=r"for memories of 4, 4 bytes a cycle: give each a memory of its own$"
    ):
        Variants([compiled[0], compiled[0]])


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        command.main(list(arguments))
    return int(stop.value.code or 0)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, program in zip(("fast", "slow"), programs("small", TINY, (4, 0.5)), strict=True):
        program.save(name)
    for seed in range(3):
        inputs = feeds(small(), np.random.default_rng(seed))
        np.savez(f"in{seed}.npz", **inputs)  # type: ignore[arg-type]


def test_run_chooses_a_variant(folders: None, capsys: pytest.CaptureFixture[str]) -> None:
    several = [word for seed in range(3) for word in ("--input", f"in{seed}.npz")]
    line = ["run", "fast", "--on", "rtl", *several, "--variant", "slow", "--report", "report.json"]
    assert call(*line, "--bandwidth", "0.5") == 0
    message = capsys.readouterr().out
    assert "mismatching bytes: 0" in message
    about = json.loads(Path("report.json").read_text())["variant"]
    assert None not in about["cycles"]
    best = about["cycles"].index(min(about["cycles"]))
    assert about["next"] == about["ran"] == best
    name = ("fast", "slow")[best]
    assert f"ran last: {name}; next: {name}: of those that ran it takes the fewest cycles: " in message
    assert call(*line) == 0
    about = json.loads(Path("report.json").read_text())["variant"]
    assert (about["ran"], about["next"]) == (0, 0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ["--on", "golden"],
            "--variant and --on golden do not go together: the choice needs the counters of runs on",
        ),
        (["--on", "timing"], "--variant and --on timing do not go together"),
        (
            ["--on", "rtl", "--certified"],
            "--variant and --certified do not go together: a certificate covers one",
        ),
        (["--on", "rtl", "--variant", "missing"], "missing is not a folder that `weft compile` wrote"),
        (
            ["--on", "rtl", "--variant", "fast"],
            "the programs are planned for memories of 4, 0.5, 4 bytes a cycle",
        ),
        (["--on", "rtl", "--report", "slow/program.json"], "slow/program.json"),
    ],
)
def test_run_refuses_invalid_variants(
    more: list[str], words: str, folders: None, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert call("run", "fast", "--input", "in0.npz", "--variant", "slow", *more) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.long
def test_simulated_board_chooses_a_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = find("ulx3s-12f").config.replace(
        descriptors=1, n=4, lanes=2, bus_bytes=4, kernel=0, depthwise_taps=0
    )
    Path("own.json").write_text(json.dumps(config.to_dict()))
    for name, rate in (("fast", 4), ("slow", 0.5)):
        weft.compile(small(), config, memory=rate).save(name)
    for seed in range(3):
        np.savez(f"in{seed}.npz", **feeds(small(), np.random.default_rng(seed)))  # type: ignore[arg-type]
    several = [word for seed in range(3) for word in ("--input", f"in{seed}.npz")]
    line = [
        "run",
        "fast",
        "--variant",
        "slow",
        "--on",
        "board",
        "--port",
        "virtual:ulx3s-12f@own.json",
        *several,
    ]
    assert call(*line, "--report", "report.json") == 0
    about = json.loads(Path("report.json").read_text())["variant"]
    assert about["cycles"][0] is not None
    assert about["ran"] == about["next"]
