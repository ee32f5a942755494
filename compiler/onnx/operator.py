"""Record of an ONNX operator that the device supports: its constraints and its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import Node
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.onnx.functions import Function
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.qdq import Constant, Quant, Recipe, Results, Symbol, quant_of

QUANTISE, DEQUANTISE = "Quantised results", "Quantised operands"
"""Steps after and before an operator: its result is rounded to the quantisation of its output, and it reads real
numbers of quantised inputs. Their records have these names.
"""
STEP = -1
"""Index of the step before an operator, which belongs to no node."""


@dataclass(eq=False)
class NodeContext:
    """A node with the symbols of its inputs (None for omitted inputs).

    Attributes
    ----------
    arguments : tuple
        For each input, the functions of int8 tensors that it equals.
    functions : tuple of Function
        Functions that the result equals, the nearest root first.
    alone : str or None
        For a product of activations: the reason why it does not start an attention; None if not yet tried.
    quantisation : Quantisation or None
        For the steps `QUANTISE` and `DEQUANTISE`: parameters of the value.
    """

    model: Model
    node: Node
    symbols: tuple[Symbol, ...]
    arguments: tuple[tuple[Function, ...], ...] = ()
    functions: tuple[Function, ...] = ()
    alone: str | None = None
    quantisation: Quantisation | None = None

    @property
    def quant(self) -> Quant:
        """Parameters of a step, once its constraints hold."""
        quant = quant_of(self.quantisation)
        assert quant is not None
        return quant

    def result_dtype(self) -> str | None:
        """Return the type of the numbers that the operator computes; the result may round them to integers."""
        name = self.node.outputs[0]
        quantisation = self.model.quantisation(self.node, name)
        return self.model.dtypes.get(name) if quantisation is None else quantisation.scales.dtype.name

    def symbol(self, index: int) -> Symbol:
        return self.symbols[index] if index < len(self.symbols) else None

    def shape(self, index: int = 0) -> tuple[int, ...]:
        return self.model.shapes[self.node.inputs[index]]

    @property
    def output(self) -> tuple[int, ...]:
        return self.model.shapes[self.node.outputs[0]]

    @property
    def inputs(self) -> str:
        """Names of all inputs, for messages."""
        return " and ".join(map(repr, self.node.inputs))

    def floats(self, index: int) -> np.ndarray | None:
        """Return the values of an input if it is a float constant, else None."""
        symbol = self.symbol(index)
        return symbol.floats if isinstance(symbol, Constant) else None

    def attribute(self, name: str, default: object = None) -> object:
        return self.node.attributes.get(name, default)

    def ints(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.node.attributes.get(name, default))


Constraint = Callable[[NodeContext], str | None]
"""Function that returns None if the node satisfies it, else the offending value ("" if there is none worth showing)."""


def sentence(constraint: Constraint) -> str:
    """Return a constraint's docstring on one line, without its full stop."""
    return " ".join((constraint.__doc__ or constraint.__name__).split()).rstrip(".")


Handler = Callable[[NodeContext], Symbol | Recipe | Results]
"""Function that returns the symbol of a node's result, its recipe, or all of its results, once all constraints hold."""


@dataclass(frozen=True)
class Operator:
    """Record of one operator, or of several similar operators.

    Attributes
    ----------
    names : tuple of str
        Operators, as in `Node.op`.
    constraints : tuple of Constraint
        Conditions, in the order of their checks. A docstring is the diagnostic, the line of the support table, and
        the reason why a node runs on the host.
    handler : Handler
        Function that creates the device's operators.
    applies : callable or None
        Selects nodes to which the record applies; such records come before records for all nodes.
    elementwise : bool
        Each result depends only on the elements in its place, in any order. Such a record takes nodes that no other
        record takes, and diagnostics then quote its constraints.
    check : callable or None
        Raises `CompileError` for a node that contradicts itself, wherever it runs.
    title : str
        Name in the support table, if it differs from the names.
    """

    names: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    handler: Handler
    applies: Callable[[NodeContext], bool] | None = None
    elementwise: bool = False
    check: Callable[[Model, Node], None] | None = None
    title: str = ""
