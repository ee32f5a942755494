"""Registry of device operators: the records of every file in `weft.compiler.onnx.operators`."""

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
    for module in pkgutil.iter_modules(operators.__path__)
    for operator in importlib.import_module(f"{operators.__name__}.{module.name}").OPERATORS
)


def _records_of(name: str) -> list[Operator]:
    records = [operator for operator in OPERATORS if name in operator.names]
    return sorted(records, key=lambda operator: (operator.elementwise, operator.applies is None))


NAMES = {name: _records_of(name) for operator in OPERATORS for name in operator.names}
"""Records by operator name: records with `applies` first, elementwise records last."""


def has(name: str) -> bool:
    """Return whether an operator has a record for all of its nodes that depends on the order of elements."""
    return any(operator.applies is None and not operator.elementwise for operator in NAMES.get(name, ()))


def check(model: Model, node: Node) -> None:
    """Raise `CompileError` for a node whose attributes or shapes contradict each other."""
    for operator in NAMES.get(node.op, ()):
        if operator.check is not None:
            operator.check(model, node)


def choose(context: NodeContext) -> Operator | str:
    """Return the first record whose constraints a node satisfies, or the reason why the device cannot run it."""
    refusal = f"the device has no operator {context.node.op}"
    records = [
        item for item in NAMES.get(context.node.op, ()) if item.applies is None or item.applies(context)
    ]
    # Elementwise records come last. Their reasons count for functions, or if there is no other record.
    own = [item for item in records if not item.elementwise][:1]
    for operator in (*own, *(item for item in records if item.elementwise)):
        violation = _violation(operator, context)
        if violation is None:
            return operator
        refusal = violation if context.functions or operator in own or not own else refusal
    return refusal


def _violation(operator: Operator, context: NodeContext) -> str | None:
    """Return the first constraint that a node violates, with the offending value; None if it satisfies all."""
    for constraint in operator.constraints:
        value = constraint(context)
        if value is not None:
            return sentence(constraint) + (f" ({value})" if value else "")
    return None


def table() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the rows of the support table: an operator, and the sentences of its constraints."""
    rows: dict[str, dict[Constraint, None]] = {}
    for operator in OPERATORS:
        for title in (operator.title,) if operator.title else operator.names:
            rows.setdefault(title, {}).update(dict.fromkeys(operator.constraints))
    for title, constraints in sorted(rows.items()):
        yield title, tuple(f"{sentence(constraint)}." for constraint in constraints)
