"""Formulas: what operators on rows say that they compute, as integer expressions, and those on values.

A formula is part of a network: `weft.run.kernel` makes one of a function in Python, and the front end one for each
normalisation, quotient, logarithm and so on, down to how its numbers are rounded. All of its numbers have 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.extras.proof.programs.form import STORED
from weft.extras.proof.programs.graph import Formula, Node
from weft.extras.proof.programs.registers import Register, chosen, larger, largest_of, smaller
from weft.extras.proof.programs.sums import Sums
from weft.extras.proof.programs.symbols import Symbols
from weft.hdl.errors import WeftError

_SCALED = ("reciprocal", "rsqrt", "factor")
"""Second operands of products that have an exponent in bits 18 to 23."""
_PLACES = 64


class FormulaError(WeftError, ValueError):
    """A formula with something that means nothing."""


Tensor = np.ndarray | Sums
"""Values (rows, columns, vectors), or numbers of that shape."""


class Evaluator:
    """Carries out a formula: `known` has what each of its nodes is."""

    def __init__(self, symbols: Symbols, formula: Formula, tensors: Sequence[Tensor]) -> None:
        self.symbols, self.formula, self.tensors = symbols, formula, tensors
        self.known: list[Register] = []

    def run(self) -> None:
        """All nodes, in order. Raises `FormulaError`."""
        for node in self.formula.nodes:
            if node.operands and not 0 <= min(node.operands) <= max(node.operands) < len(self.known):
                raise FormulaError(
                    f"node {len(self.known)} has operands {node.operands}, which are not before it"
                )
            if not 0 <= node.value < _PLACES and node.kind in ("multiply", "shift", "floor"):
                raise FormulaError(
                    f"node {len(self.known)} shifts by {node.value} places; there are 0 to {_PLACES - 1}"
                )
            self.known.append(self._made(node))

    def _made(self, node: Node) -> Register:
        reading = {"read": self._read, "shared": self._shared, "number": self._number}
        if node.kind in reading:
            return Register(reading[node.kind](node))
        if node.kind == "accumulated":
            sums = self.tensors[0]
            if not isinstance(sums, Sums):
                raise FormulaError("there are no sums to read")
            return Register(sums[:, :, node.value])
        if node.kind in ("index", "constant"):
            numbers = np.arange(self.formula.columns) if node.kind == "index" else np.full(1, node.value)
            return Register(self.symbols.integers(numbers[None]))
        given = [self.known[place] for place in node.operands]
        if node.kind in ("known", "factor"):
            return given[0]
        if node.kind in ("minimum", "maximum"):
            a, b = self._alike(given)
            return (smaller if node.kind == "minimum" else larger)(self.symbols, a, b)
        if node.kind == "largest":
            return largest_of(self.symbols, self._whole(given[0]), 1)
        if node.kind == "choose":
            condition, yes, no = self._alike(given)
            return chosen(self.symbols, condition.number, yes, no)
        return Register(self._computed(node, [item.number for item in self._alike(given)]))

    def _alike(self, given: list[Register]) -> list[Register]:
        """The same with as many rows and columns as the largest."""
        shape = np.broadcast_shapes(*(item.number.low.shape for item in given))
        if all(item.number.low.shape == shape for item in given):
            return given
        places = [
            tuple(
                np.zeros(n, np.int64) if m == 1 else np.arange(n)
                for n, m in zip(shape, item.number.low.shape, strict=True)
            )
            for item in given
        ]
        return [item.at(np.ix_(*at)) for item, at in zip(given, places, strict=True)]

    def _whole(self, given: Register) -> Register:
        """The same with an element for each of the row."""
        columns = self.formula.columns
        if given.number.low.shape[1] == columns:
            return given
        return given.at((slice(None), np.zeros(columns, np.int64)))

    def _computed(self, node: Node, given: list[Sums]) -> Sums:
        symbols, value = self.symbols, node.value
        kinds: dict[str, Callable[[], Sums]] = {
            "add": lambda: symbols.kept(given[0].plus(given[1])),
            "subtract": lambda: symbols.kept(symbols.difference(given[0], given[1])),
            "multiply": lambda: symbols.product(
                given[0], given[1], value, floor=False, scaled=self._kind(node.operands[1]) in _SCALED
            ),
            "shift": lambda: symbols.shifted(given[0], value),
            "floor": lambda: self._floored(given[0], value),
            "low byte": lambda: self._floored(symbols.shifted(given[0], 24), 24),
            "table": lambda: symbols.looked_up(given[0], node.table),
            "less": lambda: symbols.less(given[0], given[1]),
            "sum": lambda: symbols.kept(self._summed(given[0])),
            "reciprocal": lambda: symbols.reciprocal(given[0], root=False),
            "rsqrt": lambda: symbols.reciprocal(given[0], root=True),
            "neighbour": lambda: self._neighbours(given[0]),
        }
        if node.kind not in kinds:
            raise FormulaError(f"a formula has the unknown kind {node.kind!r}")
        return kinds[node.kind]()

    def _kind(self, place: int) -> str:
        return self.formula.nodes[place].kind

    def _floored(self, number: Sums, places: int) -> Sums:
        one = self.symbols.integers(1, number.low.shape)
        return self.symbols.product(number, one, places, floor=True, scaled=False)

    def _summed(self, number: Sums) -> Sums:
        total = self._whole(Register(number)).number.total(1)
        return total.reshape(len(total.low), 1)

    def _neighbours(self, number: Sums) -> Sums:
        whole = self._whole(Register(number)).number
        beside = np.arange(self.formula.columns) ^ 1
        there = np.broadcast_to(beside < self.formula.columns, whole.low.shape)
        moved = whole[:, np.minimum(beside, self.formula.columns - 1)]
        return self.symbols.where(there, moved, self.symbols.integers(0, whole.low.shape))

    def _values(self, tensor: int) -> np.ndarray:
        found = self.tensors[tensor]
        if not isinstance(found, np.ndarray):
            raise FormulaError(f"tensor {tensor} has sums, and no bytes")
        return found

    def _read(self, node: Node) -> Sums:
        found = self.symbols.values.terms(self._values(node.value & 3)[:, :, node.value >> 2 & 1])
        return self.symbols.unsigned(found) if node.value & 8 else found

    def _shared(self, node: Node) -> Sums:
        return self.symbols.values.terms(self._values(node.value & 3)[:, :1, node.value >> 2])

    def _number(self, node: Node) -> Sums:
        return self.symbols.values.terms(self._values(node.value)[:, :1, 0])


def vectors_of(formula: Formula) -> list[np.ndarray]:
    """The vectors of a formula as constants: (1, columns, 2), upper and lower bytes."""
    found = (vector.numpy.astype(np.int64) for vector in formula.vectors)
    return [np.stack([vector >> 8 & 0xFF, vector & 0xFF], axis=-1)[None] for vector in found]


def evaluate(symbols: Symbols, formula: Formula, tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """The results of a formula: values (rows, columns), or (rows, 1), one array for each.

    Tensors have as many rows as there are, or 1, and as many columns as a row, or 1.

    Raises `FormulaError`.
    """
    evaluator, found = Evaluator(symbols, formula, tensors), []
    evaluator.run()
    rows, columns = max(map(_length, tensors)), formula.columns if formula.varies else 1
    for place in formula.results:
        word = symbols.word(evaluator.known[place].number).spread((rows, columns))
        found.append(symbols.values.results(word.reshape(rows, columns, 1), [STORED] * columns))
    return found


def _length(tensor: Tensor) -> int:
    return len(tensor.low) if isinstance(tensor, Sums) else len(tensor)
