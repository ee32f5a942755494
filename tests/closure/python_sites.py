"""Places of Python files that can be changed, with Cosmic Ray's operators (https://cosmic-ray.readthedocs.io)."""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OPERATORS = "core/"
"""Prefix of the names of Cosmic Ray's operators that need no arguments."""
SAME = {("Is", "Eq"), ("Eq", "Is"), ("IsNot", "NotEq"), ("NotEq", "IsNot")}
"""Comparisons of identity instead of equality, which agree for None, enumerations and small integers."""
Span = tuple[tuple[int, int], tuple[int, int]]
"""Begin and end, each a line (counted from 1) and a column (counted from 0)."""
CACHES = {"cache", "lru_cache", "cached_property", "override", "overload"}
"""Decorators that do not affect a program's results."""


@dataclass(frozen=True)
class Change:
    """One way to change one place.

    Attributes
    ----------
    path : str
        File, relative to the root of the tree.
    line, column : int
        Position; lines count from 1, columns from 0.
    operator : str
        Cosmic Ray's name.
    occurrence : int
        Index of the operator's place in this file, in Cosmic Ray's order.
    """

    path: str
    line: int
    column: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.operator.removeprefix(OPERATORS)}"


def draw_changes(root: Path, paths: list[str], count: int, seed: int) -> list[Change]:
    """Draw `count` changes of files below `root`, each of another place, all places equally probable.  Excluded are
    unevaluated places (annotations, type-checking imports), caches' decorators, and identity for equality. Raises
    `ImportError` without Cosmic Ray."""
    pick = random.Random(seed)
    places = [place for path in paths for place in _places(root, path)]
    found: list[Change] = []
    for place in pick.sample(places, len(places)):
        if len(found) == count:
            break
        change = pick.choice(place)
        if _differs(root, change):
            found.append(change)
    return found


def apply_change(root: Path, change: Change) -> str:
    """Return the source of the file with the change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (root / change.path).read_text()
    found = mutate_code(source, get_operator(change.operator)(), change.occurrence)
    assert found is not None, change
    return found


def statement(source: str, line: int) -> range:
    """Return the lines of the smallest statement around a line, without the body of a compound statement."""
    best = range(line, line + 1)
    size = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if body:
                last = max(node.lineno, body[0].lineno - 1)
            if node.lineno <= line <= last and (not size or last - node.lineno < size):
                best, size = range(node.lineno, last + 1), last - node.lineno + 1
    return best


def _places(root: Path, path: str) -> Iterator[list[Change]]:
    """Return all changes of a file by place."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = (root / path).read_text()
    without, nodes = _unevaluated(source), list(ast_nodes(get_ast(source)))
    comparisons = [node for node in nodes if node.type == "comparison"]
    found: dict[Span, list[Change]] = {}
    spans: dict[str, list[Span]] = {}
    for name in operator_names():
        kind = get_operator(name)
        if not name.startswith(OPERATORS) or kind.arguments() or _same(name):
            continue
        # Operators that replace a binary operator by different others share places.
        group = name.rpartition("_")[0] if "Binary" in name else name
        if group not in spans:
            operator, of = kind(), comparisons if "Comparison" in name else nodes
            spans[group] = [span for node in of for span in operator.mutation_positions(node)]
        for occurrence, (begin, end) in enumerate(spans[group]):
            if not any(first <= begin and end <= last for first, last in without):
                found.setdefault((begin, end), []).append(Change(path, *begin, name, occurrence))
    yield from found.values()


def _same(name: str) -> bool:
    """Return whether an operator exchanges equality and identity."""
    _, kind, words = name.partition("ReplaceComparisonOperator_")
    return bool(kind) and tuple(words.split("_")) in SAME


def _unevaluated(source: str) -> list[Span]:
    """Return the spans that nothing evaluates."""
    found: list[Span] = []
    for node in ast.walk(ast.parse(source)):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            parts.append(node.annotation)
        if isinstance(node, ast.FunctionDef):
            parts.append(node.returns)
            for item in node.decorator_list:
                if set(ast.unparse(item).replace("(", ".").split(".")) & CACHES:
                    found.append(((item.lineno, 0), (item.lineno + 1, 0)))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            parts.append(node)
        found += [_span(part) for part in parts if part is not None]
    return found


def _span(node: Any) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _differs(root: Path, change: Change) -> bool:
    """Return whether the bytecode differs from the file's; a syntax error is no change."""
    before, after = (root / change.path).read_text(), apply_change(root, change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
        except SyntaxError:
            return False
