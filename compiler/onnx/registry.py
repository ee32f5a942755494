"""All operators that the device has: those of every file in `weft.compiler.onnx.operators`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from weft.compiler.ir.network import Node
from weft.compiler.onnx import operators
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.operator import Constraint, NodeContext, Operator, sentence

OPERATORS: tuple[Operator, ...] = tuple(
    operator
    for found in pkgutil.iter_modules(operators.__path__)
    for operator in importlib.import_module(f"{operators.__name__}.{found.name}").OPERATORS
)


def _named(name: str) -> list[Operator]:
    found = [operator for operator in OPERATORS if name in operator.names]
    return sorted(found, key=lambda operator: (operator.elementwise, operator.applies is None))


NAMES = {name: _named(name) for operator in OPERATORS for name in operator.names}
"""The records of each operator, those for some nodes only in front, and those of elements one by one at the end."""


def has(name: str) -> bool:
    """Whether there is a record for all nodes of an operator, to which the order of elements matters."""
    return any(operator.applies is None and not operator.elementwise for operator in NAMES.get(name, ()))


def check(model: Model, node: Node) -> None:
    """Raise `CompileError` for a node that contradicts itself."""
    for operator in NAMES.get(node.op, ()):
        if operator.check is not None:
            operator.check(model, node)


def choose(context: NodeContext) -> Operator | str:
    """The record whose constraints a node keeps, or why the device cannot run it."""
    refusal = f"the device has no operator {context.node.op}"
    records = [
        item for item in NAMES.get(context.node.op, ()) if item.applies is None or item.applies(context)
    ]
    own = [item for item in records if not item.elementwise][:1]
    for operator in (*own, *(item for item in records if item.elementwise)):
        broken = _broken(operator, context)
        if broken is None:
            return operator
        refusal = broken if context.functions or operator in own or not own else refusal
    return refusal


def _broken(operator: Operator, context: NodeContext) -> str | None:
    """The first constraint of a record that a node breaks, with the value that does; None if it keeps all."""
    for constraint in operator.constraints:
        found = constraint(context)
        if found is not None:
            return sentence(constraint) + (f" ({found})" if found else "")
    return None


def table() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The support table: each operator with the sentences of its constraints."""
    rows: dict[str, dict[Constraint, None]] = {}
    for operator in OPERATORS:
        for title in (operator.title,) if operator.title else operator.names:
            rows.setdefault(title, {}).update(dict.fromkeys(operator.constraints))
    for title, constraints in sorted(rows.items()):
        yield title, tuple(f"{sentence(constraint)}." for constraint in constraints)
