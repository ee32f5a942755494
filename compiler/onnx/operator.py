"""The record of an operator of ONNX that the device has: its conditions, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.compiler.ir.network import Node
from weft.compiler.onnx.context import Constraint, NodeContext
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.qdq import Recipe, Results, Symbol

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
