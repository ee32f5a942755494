"""The onnx package's node tests on the golden interpreter: which pass where, as docs/conformance.md says."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.compiler.onnx import registry
from weft.compiler.onnx.operator import DEQUANTISE, QUANTISE

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))
from support import conformance
from support.conformance import CLASSES, DEVICE, HOST, PAGE, SKIP, WRAPPED

ON_DEVICE = {
    "QLinearConv": (1, 0), "QLinearMatMul": (8, 0), "ConvInteger": (0, 2), "MatMulInteger": (0, 1), "Conv": (0, 6),
    "ConvTranspose": (0, 10),
    "AveragePool": (0, 5), "GlobalAveragePool": (0, 1), "GlobalMaxPool": (0, 1), "MaxPool": (0, 7),
    "ReduceMean": (0, 3), "Add": (0, 2), "Clip": (0, 9), "Div": (0, 1), "Mul": (0, 1), "Concat": (0, 12),
    "DepthToSpace": (0, 2), "Expand": (0, 2), "Gather": (0, 1), "Resize": (0, 16), "SpaceToDepth": (0, 2),
    "Split": (0, 14), "Tile": (0, 1),
}  # fmt: skip
"""Cases that must run on the device, by operator: as they are, and wrapped."""


def test_no_case_fails() -> None:
    assert [f"{item.case}: {item.failure}" for item in conformance.outcomes() if item.failure] == []


def test_counts() -> None:
    counts = conformance.counts()
    found = {name: (item[DEVICE], item[WRAPPED]) for name, item in counts.items()}
    assert {name: pair for name, pair in found.items() if any(pair)} == ON_DEVICE
    totals = {kind: sum(item[kind] for item in counts.values()) for kind in CLASSES}
    assert totals == {DEVICE: 9, WRAPPED: 99, HOST: 58, SKIP: 183}


def test_page_says_what_the_run_gave() -> None:
    assert conformance.page() == PAGE.read_text(), "run python -m support.conformance in tests/"


def test_every_case_of_the_package_is_accounted_for() -> None:
    left_out = sum(found.total() for found in conformance.left_out().values())
    assert len(conformance.outcomes()) + left_out == len(conformance.cases())


def test_all_operators_of_the_device_are_in_scope_or_approximate() -> None:
    operators = set(filter(registry.has, registry.NAMES)) - {QUANTISE, DEQUANTISE}
    assert operators <= {*conformance.SCOPE, *conformance.APPROXIMATE}


def test_host_cases_have_a_reason() -> None:
    silent = [item.case for item in conformance.outcomes() if item.kind in (HOST, SKIP) and not item.reason]
    assert silent == []


def case(name: str) -> object:
    return next(item for item in conformance.in_scope() if item.name == name)


@pytest.mark.parametrize("name", conformance.DISPUTED)
def test_disputed_cases_have_other_results(name: str) -> None:
    assert "instead of" in conformance.run(case(name)).failure


def test_a_wrong_result_is_a_failure() -> None:
    found = case("test_matmulinteger")
    inputs, (expected,) = found.data_sets[0]
    wrong = dataclasses.replace(
        found, data_sets=[(inputs, [expected + np.eye(*expected.shape, dtype=expected.dtype)])]
    )
    assert conformance.run(found).failure == ""
    outcome = conformance.run(wrong)
    assert (outcome.kind, "instead of" in outcome.failure) == (WRAPPED, True)


def test_device_is_believed_only_if_the_device_executed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "device_operators", lambda compiled: set())
    with pytest.raises(AssertionError, match="reported on the device, executed=False on the device"):
        conformance.run(case("test_qlinearconv"))


def test_on_the_rtl() -> None:
    """Cases on the device give equal results on the generated Verilog."""
    names = {item.case for item in conformance.outcomes() if item.kind in (DEVICE, WRAPPED)}
    found = [
        conformance.run(item, device="rtl", config="tiny")
        for item in conformance.in_scope()
        if item.name in names
    ]
    assert len(found) == sum(sum(pair) for pair in ON_DEVICE.values())
    wrong = [item for item in found if item.failure or item.kind not in (DEVICE, WRAPPED)]
    assert [f"{item.case}: {item.kind} {item.failure}" for item in wrong] == []
