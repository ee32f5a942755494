"""Networks as ONNX models and back, and messages of the onnx package."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import host_cases, qdq_models

from weft.compiler.errors import NetworkError
from weft.compiler.host import onnx_model
from weft.compiler.host.onnx_model import check, first_line, infer_types, model_of, types_of
from weft.compiler.ir.network import Network, Node, Type, encode
from weft.compiler.onnx.reader import network_of

FLOAT = Type("float32", (2, 3))


def network(*nodes: Node, **constants: np.ndarray) -> Network:
    """x float (2, 3) -> nodes -> y."""
    nodes = tuple(dataclasses.replace(node, index=index) for index, node in enumerate(nodes))
    return Network(nodes, ("x",), ("y",), {"x": FLOAT, "y": FLOAT}, constants, {"": 21})


@pytest.mark.parametrize("kind", [*qdq_models.LAYERS, *host_cases.KINDS])
def test_models_round_trip(kind: str) -> None:
    rng = np.random.default_rng(0)
    model = qdq_models.LAYERS[kind](rng) if kind in qdq_models.LAYERS else host_cases.case(rng, kind)[0]
    result = network_of(model)
    check(result)
    assert encode(network_of(model_of(result))) == encode(result)


def test_branches_and_lists_round_trip() -> None:
    branch = Network((Node("Neg", ("x",), ("z",)),), (), ("z",), {"z": Type("float32", None)})
    attributes = {"then_branch": branch, "else_branch": branch}
    result = network(
        Node("If", ("c",), ("a",), attributes),
        Node("Squeeze", ("a", "axes"), ("y",)),
        Node("RandomNormal", (), ("r",), {"shape": (), "mean": 0.5}),
        Node("Any", (), ("t",), {"texts": ("a", b"\xff"), "none": ()}, "my.own"),
        c=np.array(True), axes=np.zeros(0, np.int64),
    )  # fmt: skip
    assert encode(network_of(model_of(result))) == encode(result)


def test_empty_lists_have_the_type_of_the_attribute() -> None:
    model = model_of(network(Node("Constant", (), ("y",), {"value_floats": ()})))
    assert model.graph.node[0].attribute[0].type == onnx.AttributeProto.FLOATS


def test_weights_may_be_left_out() -> None:
    small, large = np.ones(8, np.float32), np.ones((100, 100), np.float32)
    model = model_of(network(Node("Neg", ("x",), ("y",)), small=small, large=large), weights=False)
    assert [item.name for item in model.graph.initializer] == ["small"]
    assert [item.name for item in model.graph.input] == ["x", "large"]


@pytest.mark.parametrize(
    ("node", "version"), [(Node("Neg", ("x",), ("y",)), 8), (Node("Swish", ("x",), ("y",)), 11)]
)
def test_file_format_version_is_the_oldest_possible(node: Node, version: int) -> None:
    result = dataclasses.replace(network(node), opsets={"": 13 if version == 8 else 23})
    assert model_of(result).ir_version == version


def test_inference() -> None:
    result = network(Node("Transpose", ("x",), ("a",), {"perm": (1, 0)}), Node("Transpose", ("a",), ("y",)))
    assert infer_types(result)["a"] == Type("float32", (3, 2))


@pytest.mark.parametrize("attribute", [1 << 64, (1, "a"), None, object()])
def test_attributes_that_onnx_does_not_have(attribute: object) -> None:
    with pytest.raises(NetworkError):
        model_of(network(Node("Neg", ("x",), ("y",), {"odd": attribute})))


def test_branches_inside_each_other() -> None:
    """Nest as deep as ONNX files allow, and deeper."""
    for depth, fits in ((31, True), (40, False)):
        result = network(Node("Neg", ("x",), ("y",)))
        for _ in range(depth):
            result = dataclasses.replace(
                network(Node("If", ("x",), ("y",), {"then_branch": result})), inputs=()
            )
        result = dataclasses.replace(result, inputs=("x",))
        if fits:
            assert onnx.load_from_string(model_of(result).SerializeToString())
        else:
            with pytest.raises(NetworkError):
                model_of(result)


def test_contradictions() -> None:
    wrong = dataclasses.replace(network(Node("Neg", ("x",), ("y",))), outputs=("z",))
    with pytest.raises(NetworkError):
        check(wrong)
    with pytest.raises(NetworkError, match="y"):
        infer_types(
            dataclasses.replace(wrong, outputs=("y",), types={"x": FLOAT, "y": Type("float32", (9,))})
        )


def test_types_of_values() -> None:
    values = [
        helper.make_tensor_value_info("shaped", TensorProto.FLOAT, (1, "n", None)),
        helper.make_tensor_value_info("open", TensorProto.INT4, None),
        helper.make_tensor_value_info("untyped", TensorProto.UNDEFINED, (1,)),
        helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, (1,)),
    ]
    assert types_of(values) == {"shaped": Type("float32", (1, None, None)), "open": Type("int4", None)}
    values[0].type.tensor_type.elem_type = 99
    with pytest.raises(NetworkError, match="'shaped' has element type 99, which ONNX does not define"):
        types_of(values)


def test_long_messages_of_libraries_are_cut() -> None:
    text = first_line(RuntimeError("\n " + "first " * 200 + "last.\nsecond line"))
    assert len(text) == onnx_model._SHOWN
    assert text.startswith("first first")
    assert text.endswith("first last")
    assert first_line(RuntimeError("short.")) == "short"
    assert first_line(RuntimeError()) == "RuntimeError"
