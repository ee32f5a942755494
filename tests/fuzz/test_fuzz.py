"""A fixed budget of hostile and random inputs, and planted bugs that the harness must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import command, configurations, files, graphs, programs, run, sandbox, seeds, values
from fuzz.corpus import Corpus, CorpusError, features_of
from fuzz.features import SETTINGS
from fuzz.kinds import KINDS
from fuzz.outcome import Outcome, check_sentence

from weft.boards.registry import BOARDS
from weft.hdl.errors import ConfigError
from weft.hdl.isa import SEMAPHORE_MAX, Vec
from weft.hdl.isa import kernel as kernels
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter, base_register
from weft.run.runtime import Image
from weft.sim.device import Device
from weft.sim.golden.interpreter import EXECUTE
from weft.sim.golden.memories import Memories
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

BUDGET, PARTS = 70, 10
"""Inputs of all kinds, and parts of them, of which some are drawn. ``make fuzz COUNT=... SEED=...`` runs more."""


@pytest.fixture(scope="session", autouse=True)
def warmed() -> None:
    run.warm()


@pytest.mark.drawn(3)
@pytest.mark.parametrize("part", range(PARTS))
def test_budget(part: int) -> None:
    failed = {}
    for index in range(part * BUDGET // PARTS, (part + 1) * BUDGET // PARTS):
        name, edits = run.edits_of(1, index)
        outcome = run.outcome_of(name, edits)
        if outcome.failed:
            failed[f"{name} {index}"] = outcome.signature
    assert not failed, f"{failed}: make fuzz COUNT={BUDGET} SEED=1 keeps what fails"


@pytest.mark.parametrize("name", KINDS)
def test_inputs_are_reproducible(name: str) -> None:
    drawn = [[run.edits_of(seed, index, name) for index in range(30)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({str(edits) for _, edits in drawn[0]}) == 30


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", seeds.models())
def test_undamaged_files_are_accepted(name: str, tmp_path: Path) -> None:
    """Includes recomputed checksums: otherwise no code after the check would be reached."""

    def check(kind: str, edits: list[Any]) -> None:
        assert run.outcome_of(kind, edits).kind == "done", edits

    for target in files.shares():
        if target != "npy":  # not for models with several inputs
            check("files", [["target", target, name]])
    for target in set(values.names()):
        check("values", [["target", target, name]])
    check("models", [["model", name, "default"]])


def run_planted_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Callable[..., object]) -> Outcome:
    """Return the outcome of a command with a bug."""
    monkeypatch.setattr(command.main, "app", bug)
    work = tmp_path / "work"
    work.mkdir()
    (work / "before").write_text("x")
    return sandbox.run(
        lambda: files.verdict(command.call(work, "check", makes=(work / "made",))), tmp_path, 1.0
    )


def _raise(error: BaseException) -> Callable[..., object]:
    def bug(args: list[str]) -> None:
        raise error

    return bug


def _say(text: str) -> Callable[..., object]:
    def bug(args: list[str]) -> None:
        print(f"error: {text}", file=sys.stderr)
        sys.exit(2)

    return bug


def _hang(args: list[str]) -> None:
    while True:
        pass


def _grow(args: list[str]) -> None:
    bytearray(3 << 30)


def _grow_in_secret(args: list[str]) -> None:
    try:
        bytearray(3 << 30)
    except MemoryError:
        raise ConfigError("there is not enough of it") from None


def _die(args: list[str]) -> None:
    os.abort()


def _warn(args: list[str]) -> None:
    print("a.py:1: RuntimeWarning: invalid value", file=sys.stderr)


def _leave(args: list[str]) -> None:
    (Path("/proc/self/fd/2").readlink().parent / "work" / "part").write_text("half")
    raise ConfigError("no")


def _change(args: list[str]) -> None:
    (Path("/proc/self/fd/2").readlink().parent / "work" / "before").write_text("y")


def _make(args: list[str]) -> None:
    (Path("/proc/self/fd/2").readlink().parent / "work" / "made").write_text("y")


def _exit(args: list[str]) -> None:
    print("sorry", file=sys.stderr)
    sys.exit(3)


BUGS: dict[str, tuple[Callable[..., object], str]] = {
    "assertion": (_raise(AssertionError()), "traceback"),
    "foreign": (_raise(KeyError("x")), "traceback"),
    "recursion": (_raise(RecursionError()), "traceback"),
    "two lines": (_raise(ConfigError("a\nb")), "message"),
    "escape code": (_say("\x1b[31mred"), "message"),
    "nothing": (_raise(ConfigError("")), "message"),
    "long": (_say("x" * 2000), "message"),
    "insides": (_raise(ConfigError("bad <class 'int'>")), "message"),
    "exit code": (_exit, "message"),
    "hang": (_hang, "hang"),
    "memory": (_grow, "memory"),
    "memory, as a sentence": (_grow_in_secret, "memory"),
    "abort": (_die, "crash"),
    "warning": (_warn, "noise"),
    "half-written": (_leave, "left"),
    "input changed": (_change, "left"),
    "no bug: refused": (_raise(ConfigError("n is 3, which is no power of two")), "refused"),
    "no bug: output": (_make, "done"),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, kind = BUGS[name]
    assert run_planted_bug(tmp_path, monkeypatch, bug).kind == kind


def _spend(seconds: float) -> None:
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass


@pytest.mark.parametrize(("parts", "kind"), [((0.3, 0.3, 0.3), "done"), ((0.3, 0.9), "hang")])
def test_every_program_of_an_input_has_the_time(parts: tuple[float, ...], kind: str, tmp_path: Path) -> None:
    def action() -> Outcome:
        for part in parts:
            sandbox.next_program(0.6)
            _spend(part)
        return Outcome("done")

    assert sandbox.run(action, tmp_path, 0.6).kind == kind


GRAPH = [["graph", "tiny"], ["input", 4], ["conv", 2], ["conv", 3]]
"""Two convolutions in sequence."""


def off_by(step: np.ndarray | int) -> Callable[..., np.ndarray]:
    """Return a device method that adds `step` to all of memory after a run."""
    read = Image.read

    def bug(self: Image, device: Device, name: str) -> np.ndarray:
        found = read(self, device, name)
        more = np.broadcast_to(step, found.shape) if isinstance(step, int) else np.resize(step, found.shape)
        return np.clip(found.astype(int) + more, -128, 127).astype(np.int8)

    return bug


@pytest.mark.parametrize("step", [1, -1, 3, np.array([0] * 20 + [1])], ids=str)
def test_wrong_answers_are_seen(monkeypatch: pytest.MonkeyPatch, step: np.ndarray | int) -> None:
    """Wrong by one step, the least that a wrong rounding does, in all values or in some."""
    assert run.outcome_of("graphs", GRAPH).kind == "done"
    monkeypatch.setattr(Image, "read", off_by(step))
    assert run.outcome_of("graphs", GRAPH).kind == "wrong"


PROGRAM: dict[str, Any] = {
    "core": "tiny", "seed": 7, "count": 12, "serial": False, "large": True, "timed": True, "renamed": True,
    "full": True, "traffic": False, "turns": 2, "latency": 5, "rate": 1.5, "stalls": 0.3, "reordered": True, "fails": 0,
}  # fmt: skip


def program(**settings: Any) -> list[Any]:
    given = PROGRAM | settings
    return [["program", given], *(["step", step] for step in range(given["count"]))]


def test_programs_that_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte of the golden interpreter's results, and a cycle of the model's."""
    assert run.outcome_of("programs", program()).kind == "done"
    counters, vec = TimingDevice.counters, EXECUTE[Vec]
    monkeypatch.setattr(TimingDevice, "counters", lambda self: counters(self) | {Counter.VEC_BUSY: 1})
    assert run.outcome_of("programs", program()).signature == "wrong counters ['VEC_BUSY']"
    assert run.outcome_of("programs", program(timed=False)).kind == "done"

    def wrong(memories: Memories, instruction: Vec) -> None:
        vec(memories, instruction)
        memories.scratchpad[instruction.dst] ^= 1

    monkeypatch.setitem(EXECUTE, Vec, wrong)
    edits = program(timed=False, seed=6, count=8)  # which has two VECs
    found = run.outcome_of("programs", edits)
    assert found.signature == "wrong bytes"
    fewer = run.minimise("programs", edits, found)
    assert len(fewer) == 2
    assert run.outcome_of("programs", fewer).signature == "wrong bytes"


def test_register_traffic_that_is_noticed_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = program(timed=False, traffic=True)
    assert run.outcome_of("programs", edits).kind == "done"

    def disturb(device: RtlDevice, generator: programs.Program, rng: Any) -> None:
        device._write_register(base_register(6), generator.bases[6] + 4)

    monkeypatch.setattr(programs, "disturb", disturb)
    assert run.outcome_of("programs", edits).kind == "wrong"


def test_programs_cover_all_semaphores_and_counts() -> None:
    """All semaphores, with queues that wait for themselves, and counts up to the largest."""
    waits, most = 0, 0
    for seed in range(4):
        made = programs.build(programs.CORES["tiny"], PROGRAM | {"seed": seed}, list(range(12)))
        waits |= int(np.bitwise_or.reduce([item.wait for item in made.program]))
        counts = np.zeros(16, int)
        for item in made.program:
            for semaphore in range(16):
                counts[semaphore] += (item.signal >> semaphore & 1) - (item.wait >> semaphore & 1)
            most = max(most, int(counts.max()))
    assert waits == 0xFFFF
    assert SEMAPHORE_MAX - 2 <= most <= SEMAPHORE_MAX


def test_a_corpus_keeps_what_is_new(tmp_path: Path) -> None:
    """With fewer instructions, in a file that the next run starts with."""
    kept = Corpus(tmp_path / "folder" / "corpus.jsonl")
    edits = program(timed=False)
    found = set(features_of(edits))
    assert kept.add(edits, found)
    assert not kept.add(edits, found)
    new = {next(name for name in found if name.startswith("tiny LOAD rows="))}
    kept.known -= new
    assert kept.add(edits, found)
    assert len(kept.cases[1]) < len(edits)
    assert new <= features_of(kept.cases[1])
    again = Corpus(kept.path)
    assert (again.cases, again.known) == (kept.cases, kept.known)
    assert run.edits_of(1, -2, kept=again) == ("programs", kept.cases[1])


def test_programs_are_drawn_from_a_corpus(tmp_path: Path) -> None:
    kept = Corpus(tmp_path / "corpus.jsonl")
    (name, settings), *steps = program(timed=False)
    kept.add([[name, settings], *steps], {"something"})
    drawn = [kept.draw(np.random.default_rng(seed)) for seed in range(20)]
    for (_, other), *fewer in drawn:
        assert {key for key in other if other[key] != settings[key]} <= set(SETTINGS)
        assert all(step in steps for step in fewer)
    assert len({len(edits) for edits in drawn}) > 2
    assert len({str(edits[0]) for edits in drawn}) > 10
    own = [run.edits_of(1, index, "programs", kept)[1][0][1]["seed"] for index in range(40)]
    assert 4 < own.count(settings["seed"]) < 25


def test_invalid_corpus_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    for text in ("{", "[]", '{"edits": []}'):
        path.write_text(text + "\n")
        with pytest.raises(CorpusError, match=r"corpus\.jsonl, line 1 is no program of a corpus"):
            Corpus(path)


@pytest.mark.long
def test_a_run_resumes_from_its_corpus(tmp_path: Path) -> None:
    command = ["--kind", "programs", "--jobs", "1", "--keep", str(tmp_path), "--json"]
    counts = []
    for count in (3, 1):
        done = subprocess.run(
            [sys.executable, run.__file__, "--count", str(count), *command],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        counts.append(json.loads(done.stdout.splitlines()[-1])["programs"]["done"])
    kept = len((tmp_path / "corpus.jsonl").read_text().splitlines())
    assert counts[0] == 3
    assert counts[1] in (kept + 1, kept)  # the last program may have been new


def test_a_hole_in_the_checker_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that reads a register which nothing wrote, as `make fuzz` found it."""
    settings = PROGRAM | {
        "seed": 797817530, "count": 8, "serial": True, "large": False, "timed": False, "renamed": False, "full": False,
        "rate": 0, "stalls": 0.7,
    }  # fmt: skip
    edits = [["mutant", settings], ["put", [645400777, 141381953, 422613081, 701861202]]]
    refused = run.outcome_of("mutants", edits)
    assert (refused.kind, "reads register 5" in refused.text) == ("refused", True)
    monkeypatch.setattr(kernels, "_check_initialised", lambda ops: None)
    assert run.outcome_of("mutants", edits).signature == "wrong bytes"


def test_mutants_are_refused_or_run() -> None:
    kinds = {run.outcome_of(*run.edits_of(1, index, "mutants")).kind for index in range(4)}
    assert kinds == {"done", "refused"}


def test_configurations_are_drawn_from_all_fields() -> None:
    drawn = [configurations.draw(np.random.default_rng(seed)) for seed in range(200)]
    values = {(name, value) for _, *changes in drawn for _, name, value in changes}
    assert values == {(name, value) for name, choices in configurations.FIELDS.items() for value in choices}
    assert set(configurations.FIELDS) == set(PRESETS["tiny"].to_dict())
    assert any(run.edits_of(1, index)[0] == "configurations" for index in range(200))


@pytest.mark.long  # each builds a simulator
@pytest.mark.parametrize("index", range(12))
def test_random_configurations_run_programs(index: int) -> None:
    found = run.outcome_of(*run.edits_of(2, index, "configurations"))
    assert found.kind in ("done", "refused"), found.text


def test_a_case_is_minimised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unneeded edits are dropped, and the kept case fails again."""
    kind = KINDS["values"]

    def odd(edits: list[Any], folder: Path) -> Outcome:
        return (
            Outcome("wrong", "", "wrong odd")
            if ["b"] in edits
            else kind.run([["target", "configuration", "rows"]], folder)
        )

    monkeypatch.setitem(KINDS, "values", type(kind)(kind.draw, odd, 1))
    case = {"seed": 1, "index": 2, "kind": "values", "edits": [["target"], ["a"], ["b"], ["c"]]}
    run.keep(tmp_path, case, Outcome("wrong", "", "wrong odd"))
    (kept,) = tmp_path.glob("*/case.json")
    assert '"edits": [\n  [\n   "target"\n  ],\n  [\n   "b"\n  ]\n ]' in kept.read_text()


def test_configurations_are_those_of_all_boards_and_with_kernels() -> None:
    drawn = {graphs.draw(np.random.default_rng(seed))[0][1] for seed in range(300)}
    assert drawn == set(graphs.CONFIGS)
    assert len(drawn) == len(BOARDS) + 2 * len(PRESETS)


def test_a_sentence_may_have_any_words() -> None:
    check_sentence("node '/é☃' has 2 inputs; MaxPool takes 1, or 3")
