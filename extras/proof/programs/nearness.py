"""How near formulas are to what their operators are in real numbers, on sample rows: a test, and no proof.

A program is proven to compute its formulas bit for bit. That a formula is the operator that it stands for, up to
rounding, is looked at here: both are computed for rows of every spread, the operator in float64 by its definition.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.extras.proof.programs.formula import evaluate, vectors_of
from weft.extras.proof.programs.graph import Operator
from weft.extras.proof.programs.symbols import Symbols
from weft.extras.proof.programs.values import Values

ROWS = 48
"""Sample rows of each formula."""
STEPS = 2
"""What results may be off, in steps of the output."""
SHARE = 0.01
"""Of results that may be further off, as where something is divided by next to nothing."""

Numbers = dict[str, float]
Samples = list[np.ndarray]


def far(op: Operator, rng: np.random.Generator) -> str:
    """What is wrong with an operator's formula; empty if nothing is, or nothing is known of what it should be."""
    if op.formula is None or op.kind not in _EXACT or op.numbers.get("wide"):
        return ""
    samples = _samples(op, rng)
    values = Values(1)
    tensors = [sample.astype(np.int64)[:, :, None] & 0xFF for sample in samples]
    (made,) = evaluate(Symbols(values), op.formula, [*tensors, *vectors_of(op.formula)])
    found = values.terms(made).low
    with np.errstate(all="ignore"):
        exact = (
            np.rint(_EXACT[op.kind](op, [sample.astype(np.float64) for sample in samples]))
            + op.numbers["y_zero"]
        )
    known = np.isfinite(exact)
    wanted = np.clip(np.where(known, exact, 0), op.numbers["low"], op.numbers["high"])
    off = np.where(known, np.abs(found - wanted), 0)
    if (off > STEPS).mean() <= SHARE:
        return ""
    return (
        f"the formula of {op.name!r} ({op.kind}) is up to {off.max():.0f} steps from what the operator says, on "
        f"{ROWS} sample rows"
    )


def _samples(op: Operator, rng: np.random.Generator) -> Samples:
    """Rows of any spread for each tensor that is no vector: int64 (rows, columns)."""
    assert op.formula is not None
    found = []
    for view in op.sources:
        columns = 1 if view.shape[3] == 1 else op.formula.columns
        size = rng.choice([0.6, 4, 30, 150], (ROWS, 1))
        rows = rng.normal(0, 1, (ROWS, columns)) * size + rng.uniform(-60, 60, (ROWS, 1))
        found.append(np.clip(np.rint(rows), -128, 127).astype(np.int64))
    return found


def _centred(numbers: Numbers, x: np.ndarray) -> np.ndarray:
    """Less the mean of the row, or the zero point."""
    return x - (x.mean(axis=-1, keepdims=True) if numbers["centre"] else numbers["x_zero"])


def _layer_norm(op: Operator, given: Samples) -> np.ndarray:
    numbers, (weight, bias) = op.numbers, (op.arrays[name].numpy for name in ("weight", "bias"))
    x = _centred(numbers, given[0])
    square = np.square(x).mean(axis=-1, keepdims=True)
    epsilon = numbers["epsilon"]
    root = np.sqrt(np.maximum(square, epsilon) if numbers["least"] else square + epsilon)
    return np.asarray((x / root * weight + bias) * numbers["scale"])


def _total(op: Operator, x: np.ndarray, zero: float) -> np.ndarray:
    """A total of rows, and its root: see `RowTotal` of the front end."""
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


def _row_total(op: Operator, given: Samples) -> np.ndarray:
    return _total(op, given[0], op.numbers["x_zero"]) * op.numbers["scale"]


def _multiplied(op: Operator, x: np.ndarray, number: np.ndarray | float) -> np.ndarray:
    """Rows times a number of each, a weight, and a bias added."""
    numbers, arrays = op.numbers, op.arrays
    weight, bias = (
        arrays[name].numpy if name in arrays else other for name, other in (("weight", 1.0), ("bias", 0.0))
    )
    return np.asarray(numbers["scale"] * (numbers["gain"] * _centred(numbers, x) * number * weight + bias))


def _row_scale(op: Operator, given: Samples) -> np.ndarray:
    by = op.texts["by"]
    if not by:
        return _multiplied(op, given[0], 1.0)
    number = given[1] - op.numbers["r_zero"]
    if by == "root":
        return _multiplied(op, given[0], (number + op.numbers["offset"]) ** -0.5)
    return _multiplied(op, given[0], number if by == "times" else 1 / number)


def _row_norm(op: Operator, given: Samples) -> np.ndarray:
    return _multiplied(op, given[0], 1 / _total(op, given[1], op.numbers["of_zero"]))


def _row_share(op: Operator, given: Samples) -> np.ndarray:
    return _multiplied(op, given[0], 1 / np.abs(given[0] - op.numbers["x_zero"]).sum(axis=-1, keepdims=True))


def _row_pair(op: Operator, given: Samples) -> np.ndarray:
    numbers, kind = op.numbers, op.texts["kind"]
    a, b = given[0] - numbers["a_zero"], given[1] - numbers["b_zero"]
    if kind in ("quotient", "ratio"):
        return np.asarray((a / b if kind == "quotient" else b / a) * numbers["a_scale"])
    a, b = a * numbers["a_scale"], b * numbers["b_scale"]
    return np.asarray(np.minimum(a, b) if kind == "minimum" else np.maximum(a, b))


def _row_log_softmax(op: Operator, given: Samples) -> np.ndarray:
    x = given[0] * op.numbers["x_scale"]
    x = x - x.max(axis=-1, keepdims=True)
    return np.asarray((x - np.log(np.exp(x).sum(axis=-1, keepdims=True))) * op.numbers["scale"])


def _row_power(op: Operator, given: Samples) -> np.ndarray:
    numbers = op.numbers
    base, exponent = given[::-1] if numbers["swapped"] else given
    a, b = (base + 128) * numbers["a_step"], (exponent - numbers["b_zero"]) * numbers["b_step"]
    return np.asarray(np.power(a, b) * numbers["scale"])


_EXACT: dict[str, Callable[[Operator, Samples], np.ndarray]] = {
    "LayerNorm": _layer_norm, "RowTotal": _row_total, "RowScale": _row_scale, "RowNorm": _row_norm,
    "RowShare": _row_share, "RowPair": _row_pair, "RowLogSoftmax": _row_log_softmax, "RowPower": _row_power,
}  # fmt: skip
"""By kind, results before the zero point, in steps of the output."""
