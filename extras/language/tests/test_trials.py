"""Evaluated parts of a graph: the node that messages name."""

from __future__ import annotations

import pytest

from weft.compiler.ir.network import Node
from weft.extras.language.onnx.trials import _Segment


def node(name: str, domain: str = "") -> Node:
    return Node("Wobble", ("x",), (f"{name}.y",), domain=domain, name=name)


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ([node("a"), node("b"), node("c")], "c"),
        ([node("a"), node("b", "own"), node("c")], "b"),
        ([node("a"), node("b", "own"), node("c", "own"), node("d")], "b"),
    ],
)
def test_messages_name_the_first_foreign_node_or_the_last(nodes: list[Node], wanted: str) -> None:
    """The evaluator knows ONNX's own operators; if all are known, the part computes the last node."""
    part = object.__new__(_Segment)
    part._nodes = tuple(nodes)
    assert f"'{wanted}'" in part.label
