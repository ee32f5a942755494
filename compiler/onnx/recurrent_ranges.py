"""Ranges of 16-bit values in the steps of LSTM and GRU, wide enough that clamps never change a result.

Weights and inputs bound the sums of gates, initial states bound the hidden states, and the number of steps or forget
gates that never open fully bound the cells of an LSTM. Where a bound exceeds 16 bits, calibrated values apply
(`weft.quantise` stores them in the model), and the report notes values that may be clamped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.model import CLAMPED
from weft.compiler.ir.network import Node, producer
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.onnx.model import Model

BITS = 15
"""Bits of a magnitude."""
USUAL = 16.0
"""Least range of sums of gates and of cells."""
MOST_SUM, MOST_CELL = 256.0, 128.0
"""Largest ranges of sums and of cells. Beyond, steps of 16 bits are too coarse."""
SATURATED = 11.0
"""Magnitude from which on a sigmoid is 0 or 1 in 16 bits."""
HEADROOM = 1.25
"""Factor by which cells may exceed calibrated values."""
_MOVES = (
    "Concat",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)


@dataclass(frozen=True)
class Ranges:
    """Largest sums of gates, hidden states and cells that 16 bits must represent, and a note for the report."""

    sums: float
    state: float
    cell: float
    note: str = ""


def scale_of(reach: float) -> float:
    """Return the power of two with which 16 bits represent numbers up to `reach`."""
    return 2.0 ** (math.ceil(math.log2(max(reach, 1.0))) - BITS)


def bound_of(model: Model, name: str) -> float:
    """Return the largest magnitude of a value's real numbers, from its quantisation; infinity if unknown.

    -128 of symmetric int8 counts as -127, because quantisation of real numbers never yields it.
    """
    constant = model.constants.get(name)
    if constant is not None:
        return float(np.abs(constant).max(initial=0.0)) if constant.dtype.kind == "f" else math.inf
    quantisation = model.network.quantisation.get(name)
    if quantisation is not None:
        return _quantised_bound(quantisation)
    node = producer(model.nodes, name)
    if node is None or node.op not in _MOVES:
        return math.inf
    sources = node.inputs if node.op == "Concat" else node.inputs[:1]
    return max((bound_of(model, item) for item in sources), default=math.inf)


def _quantised_bound(quantisation: Quantisation) -> float:
    if quantisation.dtype.kind not in "iu":
        return math.inf
    ends, offset = np.iinfo(quantisation.dtype), quantisation.zeros.astype(np.int64)
    low = -int(ends.max) if ends.min < 0 and not offset.any() else int(ends.min)
    most = np.maximum(int(ends.max) - offset, offset - low)
    return float((np.abs(quantisation.scales.astype(np.float64)) * most).max())


@dataclass(frozen=True)
class Gates:
    """Float64 weights and biases of a cell.

    `inputs` and `states` are weights (directions, gates * size, columns); `input_bias` and `state_bias` are the biases
    that are added to their products, (directions, gates * size).
    """

    inputs: np.ndarray
    states: np.ndarray
    input_bias: np.ndarray
    state_bias: np.ndarray

    def sums(self, read: float, state: float) -> tuple[float, float]:
        """Return the largest magnitudes of both parts of a gate's sum, for inputs up to `read` and states up to
        `state`.
        """
        inputs = np.abs(self.input_bias) + _times(np.abs(self.inputs).sum(axis=2), read)
        states = np.abs(self.state_bias) + np.abs(self.states).sum(axis=2) * state
        return float(inputs.max()), float(states.max())

    def highest(self, read: float, state: float) -> np.ndarray:
        """Return the largest sum of each gate: (directions, gates * size)."""
        products = _times(np.abs(self.inputs).sum(axis=2), read) + np.abs(self.states).sum(axis=2) * state
        return np.asarray(self.input_bias + self.state_bias + products)


def _times(sums: np.ndarray, most: float) -> np.ndarray:
    return np.multiply(sums, most, out=np.zeros_like(sums), where=sums > 0)


def ranges(model: Model, node: Node, gates: Gates, steps: int) -> Ranges | str:
    """Return the ranges of an LSTM or GRU with `steps` steps, or the reason why 16 bits do not suffice."""
    lstm = node.op == "LSTM"
    first = {index: bound_of(model, node.input(index)) for index in (5, 6) if node.input(index)}
    for index, most in first.items():
        if most == math.inf:
            return f"the range of the initial states {node.inputs[index]!r} is unknown: quantise them as well"
    state = max(1.0, first.get(5, 0.0))
    read = bound_of(model, node.inputs[0])
    a, b = gates.sums(read, state)
    # If one part is clamped, the gate must be saturated for every value of the other part.
    sums = max(USUAL, min(a, b + SATURATED), min(b, a + SATURATED))
    if sums > MOST_SUM:
        return f"sums of gates may reach {sums:,.0f}, by its weights, and 16 bits hold at most {MOST_SUM:.0f}"
    if not lstm:
        return Ranges(sums, state, 0.0)
    initial = first.get(6, 0.0)
    usual = USUAL if 6 in first else min(USUAL, steps)
    reached = initial + _cell_bound(gates.highest(read, state), steps)
    calibrated = model.network.largest.get(node.name)
    needed = reached if calibrated is None else min(reached, max(usual, HEADROOM * calibrated))
    if needed > MOST_CELL:
        how = "by its weights and steps" if calibrated is None else "by calibration"
        remedy = (
            "" if calibrated is not None else ": `weft quantise` of the float model measures their real range"
        )
        return f"its cells may reach {needed:,.0f}, {how}, and 16 bits hold at most {MOST_CELL:.0f}{remedy}"
    cell = max(usual, needed)
    limit = scale_of(cell) * (1 << BITS)
    note = f"cells beyond {limit:.0f} {CLAMPED}, and a calibration found them up to {calibrated or 0.0:.4g}"
    return Ranges(sums, state, cell, note if reached > limit else "")


def _cell_bound(highest: np.ndarray, steps: int) -> float:
    """Return the bound of an LSTM's cells that start at 0, for the largest sums of its gates: input, output, forget,
    cell.
    """
    i, _, f, _ = np.split(highest, 4, axis=1)
    with np.errstate(over="ignore"):
        added = 1 / (1 + np.exp(-i))
        forget = 1 / (1 + np.exp(-f))
    # A cell c = forget * c + input is bounded by the geometric series of `forget`.
    total = np.full(forget.shape, float(steps))
    some = forget < 1
    total[some] = (1 - forget[some] ** steps) / (1 - forget[some])
    return float((added * total).max())
