"""Attacks on proofs: no accepted mutant computes anything else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import extreme_inputs, mutated

from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.tests.closure import certificates
from weft.extras.proof.tests.closure.certificates import (
    DIFFERS,
    FAILED,
    KINDS,
    REFUSED,
    SAME,
    Campaign,
    attacks,
    subject_of,
)
from weft.extras.proof.tests.closure.proof_subjects import Result, SegmentSubject

FEW = 3
"""Mutants of each kind in every run; campaigns of `certificates` try thousands."""


def check(kind: str, seed: int, count: int) -> list[Result]:
    print(f"{kind}, seed {seed}")
    actual = attacks(kind, seed, 0, count)
    assert [item for item in actual if item.outcome in (DIFFERS, FAILED)] == []
    return actual


@pytest.mark.drawn(5)
@pytest.mark.parametrize("kind", KINDS)
def test_mutants(kind: str) -> None:
    check(kind, 1001, FEW)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2000, 2028))
def test_five_thousand_mutants(kind: str, seed: int) -> None:
    assert {item.outcome for item in check(kind, seed, 12)} <= {REFUSED, SAME}


def test_a_checker_that_accepts_all_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The attacks do produce programs that compute something else."""
    subject = subject_of("product", 1, 0, tmp_path)
    assert isinstance(subject, SegmentSubject)
    monkeypatch.setattr(subject, "_refusal", lambda graph, program: "")
    rng = np.random.default_rng(3)
    actual = [subject.attack(rng) for _ in range(40)]
    assert {item.changed for item in actual if item.outcome == DIFFERS} == {"words", "constants", "networks"}


def test_a_campaign_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[int] = []

    def attack(kind: str, seed: int, index: int) -> list[Result]:
        tried.append(index)
        return [Result("words", SAME), Result("words", REFUSED), Result("constants", REFUSED)]

    monkeypatch.setattr(certificates, "attacks", attack)
    path = tmp_path / "kept.jsonl"
    Campaign(5, path).run(2 * certificates.MUTANTS, 0)
    going = Campaign(5, path)
    going.run(3 * certificates.MUTANTS, 0)
    assert tried == [0, 1, 2]
    assert going.total == {REFUSED: 6, SAME: 3}
    assert going.counts("changed")["constants"] == {REFUSED: 3}
    assert going.show()
    assert "9 mutants of 3 programs" in capsys.readouterr().out
    assert Campaign(6, path).total == {}
    item = json.loads(path.read_text().splitlines()[0])
    path.write_text(json.dumps(item | {"counts": [["words", DIFFERS, 1]]}) + "\n")
    assert not Campaign(5, path).show()


def test_errors_other_than_refusals_are_recorded() -> None:
    class Broken:
        def attack(self, rng: np.random.Generator) -> Result:
            raise Unproven("it is not caught") if rng.random() < 2 else AssertionError

    actual = certificates._attack(Broken(), np.random.default_rng(1))
    assert actual.outcome == FAILED
    assert "it is not caught" in actual.reason


def test_inputs_are_of_every_kind() -> None:
    rng = np.random.default_rng(1)
    actual = extreme_inputs.extreme_inputs(rng, {"x": (1, 2, 3, 4), "rows": (1, 1, 5, 4)}, {"rows": (7, 6)})
    assert len(actual) == 50
    assert any((item["x"] == -128).all() for item in actual)
    assert any((item["x"] == 127).all() for item in actual)
    assert any(
        sum(int((one[name] != other[name]).sum()) for name in one) == 1 for one in actual for other in actual
    )
    offsets = np.concatenate([item["rows"].reshape(-1).view("<u4") for item in actual])
    assert set(offsets.tolist()) == {6 * row for row in range(7)}


def test_changes_of_values() -> None:
    """All parts of a nested value change, except protected keys."""
    rng, value = np.random.default_rng(2), {"a": [1, 2.5, "x"], "b": {"c": b"\0\1"}, "stays": 3}
    changed = [mutated.change_value(rng, value, ("stays",)) for _ in range(400)]
    assert value == {"a": [1, 2.5, "x"], "b": {"c": b"\0\1"}, "stays": 3}
    assert all(item["stays"] == 3 for item in changed if isinstance(item, dict) and "stays" in item)
    assert any(item["b"] != value["b"] for item in changed if isinstance(item, dict) and "b" in item)
    assert any(item["a"] != value["a"] for item in changed if isinstance(item, dict) and "a" in item)
