"""Evaluation of formulas, the integer expressions of operators on rows, on values.

A formula is part of a network. `weft.run.kernel` makes a formula from a Python function. The front end makes one for
each normalisation, quotient, logarithm and so on, with every rounding. All numbers have 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.extras.proof.programs.form import SATURATE
from weft.extras.proof.programs.graph import Formula, Node
from weft.extras.proof.programs.registers import Register, maximum, minimum, row_maximum, select
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Symbols
from weft.hdl.errors import WeftError

_SCALED = ("reciprocal", "rsqrt", "factor")
"""Kinds of second operands of products that have an exponent in bits 18 to 23."""
_MAX_PLACES = 63


class FormulaError(WeftError, ValueError):
    """An invalid formula."""


Tensor = np.ndarray | Sums
"""Values, or integers, (rows, columns, vectors)."""


class Evaluator:
    """Evaluation of a formula; `results` has the result of each node."""

    def __init__(self, symbols: Symbols, formula: Formula, tensors: Sequence[Tensor]) -> None:
        self.symbols, self.formula, self.tensors = symbols, formula, tensors
        self.results: list[Register] = []

    def run(self) -> None:
        """Evaluate all nodes in order. Raises `FormulaError`."""
        for index, node in enumerate(self.formula.nodes):
            if node.operands and not 0 <= min(node.operands) <= max(node.operands) < index:
                raise FormulaError(f"node {index} has operands {node.operands}, which are not before it")
            if not 0 <= node.value <= _MAX_PLACES and node.kind in ("multiply", "shift", "floor"):
                raise FormulaError(
                    f"node {index} shifts by {node.value} places; valid are 0 to {_MAX_PLACES}"
                )
            self.results.append(self._evaluate(node))

    def _evaluate(self, node: Node) -> Register:
        sources = {"read": self._read, "shared": self._shared, "number": self._number}
        if node.kind in sources:
            return Register(sources[node.kind](node))
        if node.kind == "accumulated":
            sums = self.tensors[0]
            if not isinstance(sums, Sums):
                raise FormulaError("it reads sums, and the operator has none")
            return Register(sums[:, :, node.value])
        if node.kind in ("index", "constant"):
            numbers = np.arange(self.formula.columns) if node.kind == "index" else np.full(1, node.value)
            return Register(self.symbols.integers(numbers[None]))
        operands = [self.results[place] for place in node.operands]
        if node.kind in ("known", "factor"):
            return operands[0]
        if node.kind in ("minimum", "maximum"):
            a, b = self._broadcast(operands)
            return (minimum if node.kind == "minimum" else maximum)(self.symbols, a, b)
        if node.kind == "largest":
            return row_maximum(self.symbols, self._whole_row(operands[0]), 1)
        if node.kind == "choose":
            condition, yes, no = self._broadcast(operands)
            return select(self.symbols, condition.number, yes, no)
        return Register(self._compute(node, [item.number for item in self._broadcast(operands)]))

    @staticmethod
    def _broadcast(operands: list[Register]) -> list[Register]:
        shape = np.broadcast_shapes(*(item.number.low.shape for item in operands))
        if all(item.number.low.shape == shape for item in operands):
            return operands
        places = [
            tuple(
                np.zeros(n, np.int64) if m == 1 else np.arange(n)
                for n, m in zip(shape, item.number.low.shape, strict=True)
            )
            for item in operands
        ]
        return [item.take(np.ix_(*at)) for item, at in zip(operands, places, strict=True)]

    def _whole_row(self, register: Register) -> Register:
        """Repeat a register of one column for each element of the row."""
        columns = self.formula.columns
        if register.number.low.shape[1] == columns:
            return register
        return register.take((slice(None), np.zeros(columns, np.int64)))

    def _compute(self, node: Node, operands: list[Sums]) -> Sums:
        symbols, value = self.symbols, node.value
        kinds: dict[str, Callable[[], Sums]] = {
            "add": lambda: symbols.limit(operands[0].plus(operands[1])),
            "subtract": lambda: symbols.limit(symbols.difference(operands[0], operands[1])),
            "multiply": lambda: symbols.multiply(
                operands[0], operands[1], value, floor=False, scaled=self._kind(node.operands[1]) in _SCALED
            ),
            "shift": lambda: symbols.shift_left(operands[0], value),
            "floor": lambda: self._floor(operands[0], value),
            "low byte": lambda: self._floor(symbols.shift_left(operands[0], 24), 24),
            "table": lambda: symbols.look_up(operands[0], node.table),
            "less": lambda: symbols.less(operands[0], operands[1]),
            "sum": lambda: symbols.limit(self._sum(operands[0])),
            "reciprocal": lambda: symbols.reciprocal(operands[0], root=False),
            "rsqrt": lambda: symbols.reciprocal(operands[0], root=True),
            "neighbour": lambda: self._swap_neighbours(operands[0]),
        }
        if node.kind not in kinds:
            raise FormulaError(f"a formula has the unknown kind {node.kind!r}")
        return kinds[node.kind]()

    def _kind(self, place: int) -> str:
        return self.formula.nodes[place].kind

    def _floor(self, number: Sums, places: int) -> Sums:
        one = self.symbols.integers(1, number.low.shape)
        return self.symbols.multiply(number, one, places, floor=True, scaled=False)

    def _sum(self, number: Sums) -> Sums:
        total = self._whole_row(Register(number)).number.sum(1)
        return total.reshape(len(total.low), 1)

    def _swap_neighbours(self, number: Sums) -> Sums:
        row = self._whole_row(Register(number)).number
        neighbour = np.arange(self.formula.columns) ^ 1
        exists = np.broadcast_to(neighbour < self.formula.columns, row.low.shape)
        swapped = row[:, np.minimum(neighbour, self.formula.columns - 1)]
        return self.symbols.where(exists, swapped, self.symbols.integers(0, row.low.shape))

    def _values(self, tensor: int) -> np.ndarray:
        values = self.tensors[tensor]
        if not isinstance(values, np.ndarray):
            raise FormulaError(f"tensor {tensor} has sums, and no bytes")
        return values

    def _read(self, node: Node) -> Sums:
        number = self.symbols.values.integers_of(self._values(node.value & 3)[:, :, node.value >> 2 & 1])
        return self.symbols.to_unsigned(number) if node.value & 8 else number

    def _shared(self, node: Node) -> Sums:
        return self.symbols.values.integers_of(self._values(node.value & 3)[:, :1, node.value >> 2])

    def _number(self, node: Node) -> Sums:
        return self.symbols.values.integers_of(self._values(node.value)[:, :1, 0])


def vectors_of(formula: Formula) -> list[np.ndarray]:
    """Return a formula's vectors as constants, (1, columns, 2): upper and lower bytes."""
    vectors = (vector.numpy.astype(np.int64) for vector in formula.vectors)
    return [np.stack([vector >> 8 & 0xFF, vector & 0xFF], axis=-1)[None] for vector in vectors]


def evaluate(symbols: Symbols, formula: Formula, tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Return the results of a formula, one array of values (rows, columns), or (rows, 1), for each.

    Rows and columns of tensors broadcast. Raises `FormulaError`.
    """
    evaluator, results = Evaluator(symbols, formula, tensors), []
    evaluator.run()
    rows, columns = max(map(_length, tensors)), formula.columns if formula.varies else 1
    for place in formula.results:
        word = symbols.to_int32(evaluator.results[place].number).broadcast_to((rows, columns))
        results.append(symbols.values.apply_forms(word.singletons, [SATURATE] * columns))
    return results


def _length(tensor: Tensor) -> int:
    return len(tensor.low) if isinstance(tensor, Sums) else len(tensor)
