"""Networks: parts, bodies of control flow, and a file format that refuses foreign bytes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from weft.compiler.ir.network import DTYPES, Network, Node, Type, decode, dtype_of, encode
from weft.hdl.errors import SchemaError

FLOAT = Type("float32", (2,))


def chain() -> Network:
    """y = If(c, x + k, inner): the second branch reads a value of its own and one from two graphs above."""
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
    assert list(part.types) == ["c", "x", "a", "b", "y"]  # in one order, whatever the order of sets
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


def branch(name: str) -> Network:
    return Network((Node("Neg", ("x",), (name,)),), (), (name,), {name: Type("float32", None)})


def network() -> Network:
    attributes: dict[str, Any] = {
        "whole": 3, "real": math.inf, "text": "words", "bytes": b"\xff", "empty": (), "ints": (1, -2),
        "reals": (0.5, 1.0), "texts": ("a", b"\xfe"), "tensor": np.arange(6, dtype=np.int16).reshape(2, 3),
        "then_branch": branch("y"), "bodies": (branch("y"), branch("z")),
    }  # fmt: skip
    constants = {
        name: np.ones((2, 1), dtype_of(name)) if name != "object" else np.array(["ä", ""], object)
        for name in DTYPES
    }
    return Network(
        (Node("If", ("c", ""), ("y",), attributes, "my.own", "n", 7),),
        ("c",), ("y",), {"c": Type("bool", ()), "y": Type("float32", (1, None))},
        constants | {"scalar": np.array(2.5), "none": np.zeros((0, 4), ml_dtypes.bfloat16)}, {"": 21, "my.own": 1},
    )  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    """Compare two values of networks, element types included."""
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tolist()) == (other.dtype, other.shape, other.tolist())
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one)]
        return type(one) is type(other) and all(equal(getattr(one, n), getattr(other, n)) for n in names)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) and type(one) is type(other)


def test_round_trip() -> None:
    assert equal(decode(encode(network())), network())


def constant(index: int, value: object) -> Callable[[Any], None]:
    """Change one field of the tensor "int8": element type, shape or data."""

    def change(stored: Any) -> None:
        stored[5]["int8"][index] = value

    return change


def _type(stored: Any) -> None:
    stored[4]["c"][0] = "O"


def _text(stored: Any) -> None:
    stored[5]["object"][4].append("c")


def _truth(stored: Any) -> None:
    stored[5]["bool"][3] = b"\x01\x02"


def _more(stored: Any) -> None:
    stored.append(1)


def _operator(stored: Any) -> None:
    stored[1][0][0] = 5


WRONG = {
    "unknown type": (constant(1, "O"), "tensor 'int8' is of the unknown type 'O'"),
    "type of objects": (constant(1, "object"), "tensor 'int8' is not of the shape (2, 1)"),
    "larger type": (constant(1, "int16"), "tensor 'int8' is not of the shape (2, 1)"),
    "larger shape": (constant(2, [2, 2]), "tensor 'int8' is not of the shape (2, 2)"),
    "negative shape": (constant(2, [-2, -1]), "tensor 'int8' is not of the shape (-2, -1)"),
    "many axes": (constant(2, [1] * 100 + [2]), "tensor 'int8' of shape "),
    "huge shape": (constant(2, [1 << 60, 1 << 60, 0]), "tensor 'int8' is not of the shape "),
    "no shape": (constant(2, "x"), "Expected array, got str"),
    "no data": (constant(3, None), "Expected bytes, got "),
    "type of a value": (_type, "value 'c' is of the unknown type 'O'"),
    "texts": (_text, "tensor 'object' is not of the shape (2,)"),
    "truth": (_truth, "tensor 'bool' is of bool, and holds other numbers than 0 and 1"),
    "more fields": (_more, "Expected array of at most length"),
    "operator": (_operator, "Expected str, got int"),
}


@pytest.mark.parametrize("name", WRONG)
def test_foreign_documents_are_refused(name: str) -> None:
    change, expected = WRONG[name]
    stored = msgspec.msgpack.decode(encode(network()))
    change(stored)
    with pytest.raises(SchemaError) as caught:
        decode(msgspec.msgpack.encode(stored))
    assert str(caught.value).startswith(expected)
    assert str(caught.value).isprintable()


def test_empty_tensor_of_a_huge_shape() -> None:
    stored = msgspec.msgpack.decode(encode(network()))
    stored[5]["none"][2] = [1 << 60, 1 << 60, 0]
    with pytest.raises(SchemaError, match=r"^tensor 'none' of shape "):
        decode(msgspec.msgpack.encode(stored))


def nest(depth: int) -> bytes:
    result = branch("y")
    for _ in range(depth):
        result = Network((Node("If", ("c",), ("y",), {"then_branch": result}),), (), ("y",), {})
    return encode(result)


def test_depth() -> None:
    assert decode(nest(32)).nodes[0].operator == "If"
    for depth in (33, 150):
        with pytest.raises(SchemaError, match="nested too deeply"):
            decode(nest(depth))
    with pytest.raises(SchemaError):
        decode(b"\x91" * 100_000)


@pytest.mark.parametrize("raw", [b"", b"\xff", b"\xc1", b"\xdd\xff\xff\xff\xff", encode(network())[:-1]])
def test_foreign_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(SchemaError):
        decode(raw)


def test_random_damage() -> None:
    rng, taken, refused = np.random.default_rng(0), 0, 0
    whole = encode(network())
    for _ in range(3000):
        raw = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            raw[int(rng.integers(len(raw)))] = int(rng.integers(256))
        try:
            decode(bytes(raw))
        except SchemaError as error:
            refused += str(error).isprintable()
        else:
            taken += 1
    assert taken + refused == 3000
    assert min(taken, refused) > 300
