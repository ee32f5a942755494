"""The record of an operator of ONNX that the device has: its conditions, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import Node
from weft.compiler.onnx.functions import Function
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.qdq import Constant, Recipe, Results, Symbol


@dataclass(eq=False)
class NodeContext:
    """A node with the symbols of its inputs (None for those left out).

    `arguments` has for each input the functions of int8 tensors that it is, `functions` those that the result is, the
    nearest root first. `alone` says of a product of activations why it is not the start of an attention; None where
    that is yet to be tried.
    """

    model: Model
    node: Node
    symbols: tuple[Symbol, ...]
    arguments: tuple[tuple[Function, ...], ...] = ()
    functions: tuple[Function, ...] = ()
    alone: str | None = None

    def symbol(self, index: int) -> Symbol:
        return self.symbols[index] if index < len(self.symbols) else None

    def shape(self, index: int = 0) -> tuple[int, ...]:
        return self.model.shapes[self.node.inputs[index]]

    @property
    def output(self) -> tuple[int, ...]:
        return self.model.shapes[self.node.outputs[0]]

    @property
    def inputs(self) -> str:
        """The names of all inputs for a message."""
        return " and ".join(map(repr, self.node.inputs))

    def floats(self, index: int) -> np.ndarray | None:
        """The values of an input if it is a constant of floats."""
        symbol = self.symbol(index)
        return symbol.floats if isinstance(symbol, Constant) else None

    def attribute(self, name: str, default: object = None) -> object:
        return self.node.attributes.get(name, default)

    def ints(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.node.attributes.get(name, default))


Constraint = Callable[[NodeContext], str | None]
"""None if the node satisfies it, else the value that does not ("" if there is none worth showing)."""


def sentence(constraint: Constraint) -> str:
    """A constraint's docstring as one line without its full stop."""
    return " ".join((constraint.__doc__ or constraint.__name__).split()).rstrip(".")


Handler = Callable[[NodeContext], Symbol | Recipe | Results]
"""The symbol of a node's result, or the recipe that makes it, or all of its results, once all constraints hold."""


@dataclass(frozen=True)
class Operator:
    """One operator, or several alike.

    Attributes
    ----------
    names : tuple of str
        As `Node.op` has them.
    constraints : tuple of Constraint
        What must hold, in the order in which it is checked. The docstring of each is the diagnostic, the line of the
        support table and the reason for which a node runs on the host.
    handler : Handler
        Makes operators of the device.
    applies : callable
        Which nodes of these names the record is for; such records come before those for all nodes.
    elementwise : bool
        Whether each element is computed of the elements in the same place, in whatever order they are. Such a record
        is for nodes that no other takes, and its conditions are then the ones that are told of.
    check : callable
        Raises `CompileError` for a node of these names that contradicts itself, wherever it runs.
    title : str
        The record's name in the support table, if that is another.
    """

    names: tuple[str, ...]
    constraints: tuple[Constraint, ...]
    handler: Handler
    applies: Callable[[NodeContext], bool] | None = None
    elementwise: bool = False
    check: Callable[[Model, Node], None] | None = None
    title: str = ""
