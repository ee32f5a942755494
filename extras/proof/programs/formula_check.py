"""Test of formulas against their operators in float64, on random rows.

A program is proven to compute its formulas bit for bit. This test, which is not a proof, checks that a formula computes
its operator up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.extras.proof.programs.formula import evaluate, vectors_of
from weft.extras.proof.programs.graph import Operator
from weft.extras.proof.programs.symbols import Symbols
from weft.extras.proof.programs.values import Values

ROWS = 48
"""Random rows per formula."""
MAX_ERROR = 2
"""Largest error of a result, in steps of the output."""
MAX_OUTLIERS = 0.01
"""Fraction of results that may have larger errors, for example after a division by a number near zero."""

Numbers = dict[str, float]
Samples = list[np.ndarray]


def formula_error(op: Operator, rng: np.random.Generator) -> str:
    """Describe an error of an operator's formula; empty if there is none, or the operator has no float64 definition."""
    if op.formula is None or op.kind not in _EXACT or op.numbers.get("wide"):
        return ""
    samples = _samples(op, rng)
    values = Values(1)
    tensors = [sample.astype(np.int64)[:, :, None] & 0xFF for sample in samples]
    (results,) = evaluate(Symbols(values), op.formula, [*tensors, *vectors_of(op.formula)])
    computed = values.integers_of(results).low
    with np.errstate(all="ignore"):
        exact = np.rint(_EXACT[op.kind](op, [sample.astype(np.float64) for sample in samples]))
    finite = np.isfinite(exact)
    expected = np.where(finite, exact + op.numbers["y_zero"], 0)
    expected = np.clip(expected, op.numbers["low"], op.numbers["high"])
    error = np.where(finite, np.abs(computed - expected), 0)
    if (error > MAX_ERROR).mean() <= MAX_OUTLIERS:
        return ""
    return (
        f"the formula of {op.name!r} ({op.kind}) is up to {error.max():.0f} steps from the operator's result, on "
        f"{ROWS} random rows"
    )


def _samples(op: Operator, rng: np.random.Generator) -> Samples:
    """Draw rows of different spreads for each source: int64 (rows, columns)."""
    assert op.formula is not None
    samples = []
    for view in op.sources:
        columns = 1 if view.shape[3] == 1 else op.formula.columns
        size = rng.choice([0.6, 4, 30, 150], (ROWS, 1))
        rows = rng.normal(0, 1, (ROWS, columns)) * size + rng.uniform(-60, 60, (ROWS, 1))
        samples.append(np.clip(np.rint(rows), -128, 127).astype(np.int64))
    return samples


def _centre(numbers: Numbers, x: np.ndarray) -> np.ndarray:
    """Subtract the mean of the row, or the zero point."""
    return x - (x.mean(axis=-1, keepdims=True) if numbers["centre"] else numbers["x_zero"])


def _layer_norm(op: Operator, rows: Samples) -> np.ndarray:
    numbers, (weight, bias) = op.numbers, (op.arrays[name].numpy for name in ("weight", "bias"))
    x = _centre(numbers, rows[0])
    square = np.square(x).mean(axis=-1, keepdims=True)
    epsilon = numbers["epsilon"]
    root = np.sqrt(np.maximum(square, epsilon) if numbers["least"] else square + epsilon)
    return np.asarray((x / root * weight + bias) * numbers["scale"])


def _total(op: Operator, x: np.ndarray, zero: float) -> np.ndarray:
    """Reduce rows, and take the root: see `RowTotal` of the front end."""
    numbers, d = op.numbers, x - zero
    totals: dict[str, Callable[[], np.ndarray]] = {
        "sum": lambda: d.sum(-1), "magnitudes": lambda: np.abs(d).sum(-1), "squares": lambda: (d**2).sum(-1),
        "spread": lambda: ((d - d.mean(-1, keepdims=True)) ** 2).sum(-1), "largest": lambda: d.max(-1),
        "smallest": lambda: d.min(-1),
    }  # fmt: skip
    number = totals[op.texts["total"]]()[:, None] * numbers["factor"] + numbers["offset"]
    number = np.maximum(number, numbers["least"]) if numbers["least"] else number
    power = {"": 1.0, "root": 0.5, "inverse": -0.5}[op.texts["root"]]
    return np.asarray(number**power)


def _row_total(op: Operator, rows: Samples) -> np.ndarray:
    return _total(op, rows[0], op.numbers["x_zero"]) * op.numbers["scale"]


def _scale_rows(op: Operator, x: np.ndarray, number: np.ndarray | float) -> np.ndarray:
    """Multiply rows by a number per row and by weights, and add biases."""
    numbers, arrays = op.numbers, op.arrays
    weight, bias = (
        arrays[name].numpy if name in arrays else other for name, other in (("weight", 1.0), ("bias", 0.0))
    )
    return np.asarray(numbers["scale"] * (numbers["gain"] * _centre(numbers, x) * number * weight + bias))


def _row_scale(op: Operator, rows: Samples) -> np.ndarray:
    by = op.texts["by"]
    if not by:
        return _scale_rows(op, rows[0], 1.0)
    number = rows[1] - op.numbers["r_zero"]
    if by == "root":
        return _scale_rows(op, rows[0], (number + op.numbers["offset"]) ** -0.5)
    return _scale_rows(op, rows[0], number if by == "times" else 1 / number)


def _row_norm(op: Operator, rows: Samples) -> np.ndarray:
    return _scale_rows(op, rows[0], 1 / _total(op, rows[1], op.numbers["of_zero"]))


def _row_share(op: Operator, rows: Samples) -> np.ndarray:
    return _scale_rows(op, rows[0], 1 / np.abs(rows[0] - op.numbers["x_zero"]).sum(axis=-1, keepdims=True))


def _row_pair(op: Operator, rows: Samples) -> np.ndarray:
    numbers, kind = op.numbers, op.texts["kind"]
    a, b = rows[0] - numbers["a_zero"], rows[1] - numbers["b_zero"]
    if kind in ("quotient", "ratio"):
        return np.asarray((a / b if kind == "quotient" else b / a) * numbers["a_scale"])
    a, b = a * numbers["a_scale"], b * numbers["b_scale"]
    return np.asarray(np.minimum(a, b) if kind == "minimum" else np.maximum(a, b))


def _row_log_softmax(op: Operator, rows: Samples) -> np.ndarray:
    x = rows[0] * op.numbers["x_scale"]
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray((x - np.log(np.exp(x).sum(axis=-1, keepdims=True))) * op.numbers["scale"])


def _row_power(op: Operator, rows: Samples) -> np.ndarray:
    numbers = op.numbers
    base, exponent = rows[::-1] if numbers["swapped"] else rows
    a, b = (base + 128) * numbers["a_step"], (exponent - numbers["b_zero"]) * numbers["b_step"]
    return np.asarray(np.power(a, b) * numbers["scale"])


_EXACT: dict[str, Callable[[Operator, Samples], np.ndarray]] = {
    "LayerNorm": _layer_norm, "RowTotal": _row_total, "RowScale": _row_scale, "RowNorm": _row_norm,
    "RowShare": _row_share, "RowPair": _row_pair, "RowLogSoftmax": _row_log_softmax, "RowPower": _row_power,
}  # fmt: skip
"""Operators in float64, by kind: results before the zero point, in steps of the output."""
