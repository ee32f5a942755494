"""Ranges of what the steps of LSTM and GRU have in 16 bits: so large that nothing is clamped that changes a result.

Sums of gates are bounded by weights and inputs, hidden states by their first ones, and the cells of an LSTM by the
number of steps or by forget gates that cannot open fully. Where that is too far for 16 bits, what a calibration found
counts (`weft.quantise` notes it in the model), and what may be beyond is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.model import CLAMPED
from weft.compiler.ir.network import Node, producer
from weft.compiler.onnx.model import Model

BITS = 15
"""Of a number without its sign."""
USUAL = 16.0
"""What sums of gates and cells reach at least."""
MOST_SUM, MOST_CELL = 256.0, 128.0
"""What they may reach: steps of 16 bits are too coarse beyond that."""
SATURATED = 11.0
"""From where on a sigmoid is 0 or 1 in 16 bits."""
HEADROOM = 1.25
"""How far cells may be beyond what a calibration found."""
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
    """The largest sums of gates, hidden states and cells that 16 bits have to hold, and what to say of them."""

    sums: float
    state: float
    cell: float
    note: str = ""


def scale_of(reach: float) -> float:
    """The scale by which 16 bits hold numbers up to `reach`: a power of two."""
    return 2.0 ** (math.ceil(math.log2(max(reach, 1.0))) - BITS)


def bound_of(model: Model, name: str) -> float:
    """The largest absolute value of a float value, by the parameters that it is dequantised with; infinity if it is
    not known. -128 of symmetric int8 counts as -127, which real numbers are not rounded beyond."""
    constant = model.constants.get(name)
    if constant is not None:
        return float(np.abs(constant).max(initial=0.0)) if constant.dtype.kind == "f" else math.inf
    made = producer(model.nodes, name)
    if made is None:
        return math.inf
    if made.op in _MOVES:
        read = made.inputs if made.op == "Concat" else made.inputs[:1]
        return max((bound_of(model, item) for item in read), default=math.inf)
    return _dequantised_bound(model, made) if made.op == "DequantizeLinear" else math.inf


def _dequantised_bound(model: Model, node: Node) -> float:
    scale, zero = model.constants.get(node.input(1)), model.constants.get(node.input(2))
    dtype = np.dtype(model.dtypes[node.inputs[0]]) if model.dtypes[node.inputs[0]] != "object" else None
    if scale is None or dtype is None or dtype.kind not in "iu" or (node.input(2) and zero is None):
        return math.inf
    ends = np.iinfo(dtype)
    offset = np.zeros(1, np.int64) if zero is None else zero.astype(np.int64)
    low = -int(ends.max) if ends.min < 0 and not offset.any() else int(ends.min)
    most = np.maximum(int(ends.max) - offset, offset - low)
    return float((np.abs(scale.astype(np.float64)) * most).max())


@dataclass(frozen=True)
class Gates:
    """What a cell makes of inputs and states, all float64: for each direction the weights of inputs and of states,
    (directions, gates * size, columns), and the biases beside each, (directions, gates * size)."""

    inputs: np.ndarray
    states: np.ndarray
    own: np.ndarray
    behind: np.ndarray

    def sums(self, read: float, state: float) -> tuple[float, float]:
        """The largest part of a sum that inputs up to `read` make, and that states up to `state` do."""
        inputs = np.abs(self.own) + _times(np.abs(self.inputs).sum(axis=2), read)
        states = np.abs(self.behind) + np.abs(self.states).sum(axis=2) * state
        return float(inputs.max()), float(states.max())

    def highest(self, read: float, state: float) -> np.ndarray:
        """The largest sum of each gate, (directions, gates * size)."""
        products = _times(np.abs(self.inputs).sum(axis=2), read) + np.abs(self.states).sum(axis=2) * state
        return np.asarray(self.own + self.behind + products)


def _times(sums: np.ndarray, most: float) -> np.ndarray:
    return np.multiply(sums, most, out=np.zeros_like(sums), where=sums > 0)


def ranges(model: Model, node: Node, gates: Gates, steps: int) -> Ranges | str:
    """What an LSTM or GRU of so many steps reaches, or why 16 bits do not hold that."""
    lstm = node.op == "LSTM"
    first = {index: bound_of(model, node.input(index)) for index in (5, 6) if node.input(index)}
    for index, most in first.items():
        if most == math.inf:
            return (
                f"nothing says how large the initial states {node.inputs[index]!r} are: quantise them as well"
            )
    state = max(1.0, first.get(5, 0.0))
    read = bound_of(model, node.inputs[0])
    a, b = gates.sums(read, state)
    # A part that is clamped must leave the sum where gates are closed or open, whatever the other part is.
    sums = max(USUAL, min(a, b + SATURATED), min(b, a + SATURATED))
    if sums > MOST_SUM:
        return (
            f"sums of gates may reach {sums:,.0f}, by its weights, and 16 bits have them up to {MOST_SUM:.0f}"
        )
    if not lstm:
        return Ranges(sums, state, 0.0)
    begun = first.get(6, 0.0)
    usual = USUAL if 6 in first else min(USUAL, steps)
    reached = begun + _grown(gates.highest(read, state), steps)
    found = model.network.largest.get(node.name)
    taken = reached if found is None else min(reached, max(usual, HEADROOM * found))
    if taken > MOST_CELL:
        how = "by its weights and steps" if found is None else "as a calibration found"
        remedy = (
            "" if found is not None else ": `weft quantise` of the float model finds out what they do reach"
        )
        return f"its cells may reach {taken:,.0f}, {how}, and 16 bits have them up to {MOST_CELL:.0f}{remedy}"
    cell = max(usual, taken)
    held = scale_of(cell) * (1 << BITS)
    note = f"cells beyond {held:.0f} {CLAMPED}, and a calibration found them up to {found or 0.0:.4g}"
    return Ranges(sums, state, cell, note if reached > held else "")


def _grown(highest: np.ndarray, steps: int) -> float:
    """What an LSTM's cells reach from 0 on, for the largest sums of gates: those of input, output, forgetting and
    cell."""
    i, _, f, _ = np.split(highest, 4, axis=1)
    with np.errstate(over="ignore"):
        added = 1 / (1 + np.exp(-i))
        kept = 1 / (1 + np.exp(-f))
    total = np.full(kept.shape, float(steps))
    some = kept < 1
    total[some] = (1 - kept[some] ** steps) / (1 - kept[some])
    return float((added * total).max())
