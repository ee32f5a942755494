"""The onnx package's node tests on weft: runs and classifies every case, and writes docs/conformance.md.

``cd tests && python -m support.conformance`` writes the page; test_conformance.py compares it with a run.
"""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

from support.onnx_backend import Compiled, Unsupported, WeftRep, prepare
from weft.compiler.backend import DeviceProgram

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
TESTED = "tested"
"""Name of the node under test."""
DEVICE, WRAPPED, HOST, SKIP = CLASSES = ("device", "device, wrapped", "host", "skip")

SCOPE = (
    "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ArgMax", "ArgMin",
    "Conv", "ConvTranspose", "Gemm", "MatMul",
    "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMean",
    "Add", "BatchNormalization", "Clip", "Div", "Mul", "Relu", "Sub",
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Resize", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample",
)  # fmt: skip
"""Operators on 8-bit integers, operators that can be exact on them, and operators that only move data."""
APPROXIMATE = (
    "Attention", "GRU", "GroupNormalization", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization",
    "LogSoftmax", "LpNormalization", "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceSum",
    "ReduceSumSquare", "Softmax",
)  # fmt: skip
"""Operators that the device computes in block floating point or on the kernel engine: to a step of the result, not
exactly."""


_CORNERS = (
    "align_corners with a scale that makes no integer: ONNX's text and ONNX Runtime divide by the size of the result, "
    "the case by the product of size and scale"
)
DISPUTED = dict.fromkeys(
    (
        "test_resize_downsample_scales_linear_align_corners",
        "test_resize_downsample_scales_cubic_align_corners",
    ),
    _CORNERS,
)
"""Cases that contradict the text of ONNX and ONNX Runtime, and why weft follows the text."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case: one of `CLASSES`, the reason (or the scales of a wrapped operator), and the failure, if any.

    A failed case has the class that it would have without the failure.
    """

    case: str
    operator: str
    kind: str
    reason: str
    failure: str = ""


@cache
def cases() -> tuple[Any, ...]:
    """Return all node cases of the package, in its order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose while they are made
        return tuple(load_model_tests(kind="node"))


def operator(case: Any) -> str:
    """Return the operator of a case of one node, "" for other cases."""
    nodes = [] if case.model is None else case.model.graph.node
    return str(nodes[0].op_type) if len(nodes) == 1 else ""


def in_scope() -> list[Any]:
    return [case for case in cases() if operator(case) in SCOPE]


def run(case: Any, device: str = "golden", config: str = "small") -> Outcome:
    """Run one case. The device must be exact; the host has the case's own tolerance."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.node[0].name = TESTED
    rep = prepare(model, device, config)
    found: list[Outcome] = []
    for inputs, expected in case.data_sets:
        try:
            results = rep.run(inputs)
        except Unsupported as error:
            found.append(Outcome(case.name, operator(case), SKIP, str(error)))
            continue
        kind, reason = _class(rep)
        failure = _difference(results, expected, case if kind == HOST else None)
        found.append(Outcome(case.name, operator(case), kind, reason, failure))
    assert len({(item.kind, item.reason) for item in found}) == 1, (
        f"{case.name}: its data sets differ in class"
    )
    return next((item for item in found if item.failure), found[0])


def _class(rep: WeftRep) -> tuple[str, str]:
    """Classify where the node under test ran, by the compiler's report, checked against the device's program."""
    assert rep.compiled is not None
    ((place, reason),) = [(row[2], row[3]) for row in rep.compiled.assignment if row[0] == TESTED]
    executed = TESTED in device_operators(rep.compiled)
    assert (place == "device") == executed, f"reported on the {place}, {executed=} on the device"
    if place == "host":
        return HOST, reason
    if rep.compiled.scales is None:
        return DEVICE, reason
    scales = ", ".join(f"{name} {scale:g}" for name, scale in rep.compiled.scales.items() if scale != 1)
    return WRAPPED, "; ".join(
        item for item in (reason, f"scales other than 1: {scales}" if scales else "") if item
    )


def device_operators(compiled: Compiled) -> set[str]:
    """Return the names of the operators in the device's programs."""
    programs = [item for item in compiled.program.segments if isinstance(item, DeviceProgram)]
    return {layer.name.split(".")[0] for program in programs for layer in program.layers}


def _difference(results: tuple[Any, ...], expected: list[Any], tolerant: Any) -> str:
    """Describe how results differ from the expected ones, "" if they do not."""
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    for result, item in zip(results, expected, strict=True):
        wanted = onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else np.asarray(item)
        if result.dtype != wanted.dtype or result.shape != wanted.shape:
            return f"{result.dtype}{result.shape} instead of {wanted.dtype}{wanted.shape}"
        if tolerant is not None and wanted.dtype.kind == "f":
            same = np.allclose(result, wanted, tolerant.rtol, tolerant.atol, equal_nan=True)
        else:
            same = np.array_equal(result, wanted)
        if not same:
            return f"{result.tolist()} instead of {wanted.tolist()}"
    return ""


@cache
def outcomes() -> tuple[Outcome, ...]:
    """Run all cases in scope on the golden interpreter."""
    return tuple(
        Outcome(case.name, operator(case), SKIP, DISPUTED[case.name]) if case.name in DISPUTED else run(case)
        for case in in_scope()
    )


def counts() -> dict[str, dict[str, int]]:
    """Count cases by operator and class."""
    found = Counter((item.operator, item.kind) for item in outcomes())
    return {name: {kind: found[name, kind] for kind in CLASSES} for name in SCOPE}


def left_out() -> dict[str, Counter[str]]:
    """Return the reasons for cases that are not run, each with the number of cases by operator."""
    reasons: dict[str, Counter[str]] = {}
    for case in cases():
        name = operator(case)
        if name in SCOPE:
            continue
        if name in APPROXIMATE:
            reason = (
                "the device approximates it: see [attention.md](attention.md) and [kernels.md](kernels.md)"
            )
        elif name:
            reason = "the device does not have the operator"
        else:
            reason = "several nodes, most often an operator written out: it tests no single operator"
        reasons.setdefault(reason, Counter())[name or "several"] += 1
    return reasons


ABOUT = """
The onnx package ships tests of single operators, with inputs and expected outputs. `make test` runs those of the
operators below through [`tests/support/onnx_backend.py`](../tests/support/onnx_backend.py), an
`onnx.backend.base.Backend`, on the golden interpreter. This page is what came out, with onnx {version}: {run} cases
of {total}; none of them fails.

- **device**: the operator ran on the device, and every element of the result is equal. Inputs that are constants in a
  network (weights, scales, zero points, shapes) were bound when compiling, since the device needs them then.
- **device, wrapped**: the same for an operator that came in float or with 32-bit results: QuantizeLinear and
  DequantizeLinear were put around it. All inputs and results of such a case are 8-bit integers times one scale, 1
  unless the table gives another. Nothing is rounded, and results are compared for equality.
  ConvInteger and MatMulInteger become Conv and MatMul behind DequantizeLinear with their zero points, which is their
  definition.
- **host**: weft compiled and ran the case, but placed the operator on the host, by ONNX Runtime or the onnx package.
  Its right result says nothing about the device. The reason is the compiler's.
- **skip**: weft does not compile the case, or no 8-bit form of it is exact: most cases come with random floats.

The scale of a result is found as a quantiser would, by evaluating the case on the host; the integers that are compared,
times that scale, are the device's. QLinearConv and QLinearMatMul are read as the Conv and MatMul between
DequantizeLinear and QuantizeLinear that they stand for. A reshape or transpose alone stays on the host even where it is
exact. On the device it moves no bytes: the next operator reads them in another order.
"""


def page() -> str:
    """Return docs/conformance.md."""
    lines = ["<!-- Generated by tests/support/conformance.py from a run. -->\n\n# Conformance\n"]
    lines.append(ABOUT.format(version=onnx.__version__, run=len(outcomes()), total=len(cases())))
    lines.append(f"\n| operator | {' | '.join(CLASSES)} |\n|{' --- |' * 5}\n")
    for name, found in counts().items():
        lines.append(f"| [{name}](#{name.lower()}) | {' | '.join(str(found[kind]) for kind in CLASSES)} |\n")
    totals = Counter(item.kind for item in outcomes())
    lines.append(f"| all | {' | '.join(str(totals[kind]) for kind in CLASSES)} |\n")
    lines.append("\n## Not run\n\n| cases | reason | operators |\n| --- | --- | --- |\n")
    for reason, found in left_out().items():
        names = ", ".join(f"{name} {count}" for name, count in sorted(found.items()))
        lines.append(f"| {found.total()} | {reason} | {names} |\n")
    for name in SCOPE:
        lines.append(f"\n## {name}\n\n| result | reason | cases |\n| --- | --- | --- |\n")
        lines += _rows(name)
    return "".join(lines)


def _rows(name: str) -> Iterator[str]:
    """Return one table row for all cases of an operator that share class and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for item in outcomes():
        if item.operator == name:
            groups.setdefault((item.kind, item.reason), []).append(item.case.removeprefix("test_"))
    for kind, reason in sorted(groups, key=lambda key: CLASSES.index(key[0])):
        text = reason.replace("|", "\\|")
        yield f"| {kind} | {text} | {', '.join(groups[kind, reason])} |\n"


def main() -> int:
    failed = [item for item in outcomes() if item.failure]
    for item in failed:
        print(f"{item.case} ({item.kind}): {textwrap.shorten(item.failure, 300)}", file=sys.stderr)
    if not failed:
        PAGE.write_text(page())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
