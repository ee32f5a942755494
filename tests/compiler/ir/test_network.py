"""Parts of networks, and what bodies of control flow read from around them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from weft.compiler.ir.network import DTYPES, Network, Node, Type

FLOAT = Type("float32", (2,))


def chain() -> Network:
    """y = If(c, x + k, inner), where the second branch reads a value of its own and one from two graphs above."""
    deepest = Network((Node("Mul", ("own", "k"), ("deep",)),), (), ("deep",), {})
    inner = Node("If", ("c",), ("z",), {"then_branch": deepest, "else_branch": deepest})
    other = Network((Node("Neg", ("a",), ("own",)), inner), (), ("z",), {}, {"local": np.ones(1)})
    branch = Network((Node("Add", ("x", "local"), ("s",)),), (), ("s",), {}, {"local": np.ones(1)})
    return Network(
        (Node("Abs", ("x",), ("a",)),
         Node("If", ("c",), ("b",), {"then_branch": branch, "else_branch": other}),
         Node("Add", ("b", "k"), ("y",))),
        ("x", "c"), ("y",), {"x": FLOAT, "c": Type("bool", ()), "a": FLOAT, "b": FLOAT, "y": FLOAT},
        {"k": np.ones(2, np.float32), "unread": np.ones(9)}, {"": 21},
    )  # fmt: skip


def test_reads_of_bodies() -> None:
    assert chain().nodes[1].reads == ("c", "x", "a", "k")


def test_part() -> None:
    network = chain()
    part = network.part(network.nodes[1:], ["y"])
    assert (part.inputs, part.outputs, list(part.constants)) == (("c", "x", "a"), ("y",), ["k"])
    assert list(part.types) == ["c", "x", "a", "b", "y"]  # in one order, whatever order sets have
    assert part.opset == 21


def test_part_that_is_a_constant() -> None:
    part = chain().part((), ["k"])
    assert (part.inputs, part.nodes, list(part.constants)) == ((), (), ["k"])
    assert part.type_of("k") == FLOAT


def test_names_and_labels() -> None:
    node = Node("Attention", ("q",), ("y",), domain="com.microsoft", name="n")
    assert (node.op, node.input(0), node.input(5)) == ("com.microsoft.Attention", "q", "")
    assert node.label == "node 'n' (com.microsoft.Attention)"


def test_element_types_are_those_of_onnx() -> None:
    kinds = [kind for kind in TensorProto.DataType.values() if kind]
    assert {helper.tensor_dtype_to_np_dtype(kind).name for kind in kinds} == set(DTYPES)
