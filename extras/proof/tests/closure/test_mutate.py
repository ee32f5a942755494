"""Verdicts on mutants of the hardware, and their counts."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
from pathlib import Path

import pytest
from closure.cores import CORES, component

from weft.extras.proof.mutants.mutated import Mutant, MutatedCore, mutate_core
from weft.extras.proof.tests.closure import kill, mutate
from weft.sim.rtl.coverage import Explanation, Point


class _Kills(kill.KillSet):
    """Kill set whose mutants behave as their numbers say."""

    def killer(self, number: int) -> str:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return {2: "bytes differ"}.get(number, "")


def test_verdicts_come_from_processes_of_their_own() -> None:
    kills = _Kills(CORES["sequential"]["small"], "", [])
    actual = dict(kill.verdicts(kills, [1, 2, 3], jobs=2))
    assert actual == {1: "", 2: "bytes differ", 3: "the simulation ends with SIGKILL"}


def test_results_are_counted_by_unit() -> None:
    mutants = [Mutant(index, unit, "mutate -mode inv -module weft -cell c -port A -portbit 3")
               for index, unit in enumerate(("a", "a", "a", "b"), 1)]  # fmt: skip
    result = mutate.Result(mutants, {1: "bytes", 2: mutate.EQUAL, 3: "", 4: "cycles"}, 4)
    assert result.counted() == {"a": [1, 1, 1], "b": [1, 0, 0]}
    assert mutate.place(mutants[0]) == Point("mutant", "a", "c A[3]")
    assert "of the other 3 2 killed, 66.7 %, 1 survive" in next(mutate.table("some", result))
    section = mutate.section(
        {"some": result}, "make", [Explanation(1, "some", "mutant", "a", "c A[3]", "why")]
    )
    assert section["rows"] == [
        [
            "some core, mutants of its gates that programs see",
            "2 of 3 (66.7 %), 1 explained; 1 more are the same hardware",
        ]
    ]
    part = dataclasses.replace(result, drawn=1000)
    (row,) = mutate.section({"some": part}, "make", [])["rows"]
    assert row[0] == "some core, the first 4 of 1,000 mutants of its gates that programs see"


@pytest.mark.long
@pytest.mark.parametrize("name", CORES)
def test_mutants_are_killed(name: str) -> None:
    core = next(iter(CORES[name].values()))
    result = mutate.run(core, 1000, 1, os.cpu_count() or 1, tried=40, stages=1)
    killed = sum(counts[0] for counts in result.counted().values())
    assert len(result.mutants) == 40
    assert killed > 20


@pytest.mark.long
def test_mutants_are_of_all_units() -> None:
    actual = mutate_core(component(CORES["pipelined"]["full"]), 1000, 1)
    assert {mutant.unit for mutant in actual.mutants} >= {
        "load.unpacker",
        "mm.array",
        "vec.kernel",
        "semaphores",
    }
    assert len({mutant.command for mutant in actual.mutants}) == 1000


@pytest.mark.long
def test_long_programs_see_what_others_do_not() -> None:
    """A bit of the length of a pixel, of more bytes than are on chip."""
    core = CORES["pipelined"]["full"]
    actual = mutate_core(component(core), 1000, 1)
    (bit,) = (item.number for item in actual.mutants if item.pin == ("\\load_queue.part6", "RD_DATA", 16))
    ((number, verdict),) = kill.verdicts(kill.long_set(core, actual), [bit], 1)
    assert number == bit
    assert verdict.startswith("long loads: ")


def test_proofs_of_mutants_are_verdicts() -> None:
    """A mutant of which nothing is found is not the same hardware."""
    actual = MutatedCore("", [Mutant(number, "core", "mutate") for number in range(4)], {}, Path("folder"))
    _, judge = mutate._by_proof(
        "all",
        actual,
        lambda plain, some: {item.number: [True, False, None, True][item.number] for item in some},
    )
    assert list(judge([3, 2, 1], 2)) == [(3, mutate.EQUAL), (2, ""), (1, "")]


def test_the_command_of_a_part_of_the_mutants() -> None:
    options = argparse.Namespace(core=None, count=9, tried=None, seed=2)
    assert mutate.command_of(options) == "make mutants COUNT=9 SEED=2"
    options.core, options.tried = "sequential", 3
    assert mutate.command_of(options).endswith("mutate.py --core sequential --count 9 --tried 3 --seed 2")
    options.core = None
    assert mutate.command_of(options).endswith("mutate.py --count 9 --tried 3 --seed 2")
