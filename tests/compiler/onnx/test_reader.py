"""Every way in which reading refuses a model, with the whole message; and the network that it makes of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import qdq_models
from support.repeated import repeated
from support.small_models import fails, float_model, small

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.network import Network, Type
from weft.compiler.onnx.model import load
from weft.compiler.onnx.reader import network_of, read


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.onnx"
    assert fails(path) == f"cannot read model {path}: No such file or directory"


def test_directory(tmp_path: Path) -> None:
    assert fails(tmp_path) == f"cannot read model {tmp_path}: it is a directory"


def test_text_file(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("this is no model at all")
    assert fails(str(path)).startswith(f"{path} is not an ONNX model or is truncated: ")


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    payload = small().SerializeToString()
    path.write_bytes(payload[: len(payload) // 2])
    assert fails(path).startswith(f"{path} is not an ONNX model or is truncated: ")


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    assert fails(path) == "the model holds no graph with operators: the file is empty, truncated or not ONNX"


def test_missing_external_data(tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(small(channels=64), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    message = fails(path)
    assert str(path) in message
    assert "weights.bin" in message


def test_graph_without_outputs() -> None:
    model = small()
    del model.graph.output[:]
    assert fails(model) == "the model's graph has no outputs"


@pytest.mark.parametrize(
    ("dim", "what", "name"), [("batch", "'batch'", "batch"), (None, "no fixed size", "x.1")]
)
def test_dynamic_dimension(dim: str | None, what: str, name: str) -> None:
    assert fails(float_model(shape=(1, dim))) == (
        f"input 'x' has a dynamic dimension 1 ({what}); give its size with --shape {name}=1, "
        f"or in Python with shapes={{{name!r}: 1}}"
    )


@pytest.mark.parametrize(("dim", "name"), [("batch", "batch"), ("batch", "x.1"), (None, "x.1")])
def test_sizes_of_dimensions(dim: str | None, name: str) -> None:
    given = float_model(shape=(1, dim))
    before = given.SerializeToString()
    network = read(given, {name: 7})
    assert network.types["x"].shape == (1, 7)
    assert given.SerializeToString() == before


@pytest.mark.parametrize("name", ["other", "x.0", "x.2", "x.x", "y.1", ""])
def test_sizes_of_dimensions_that_there_are_not(name: str) -> None:
    with pytest.raises(CompileError, match=r"^the model's inputs have no open dimension .*; it has 'batch'$"):
        read(float_model(shape=(1, "batch")), {name: 7})
    with pytest.raises(CompileError, match=r"^the model's inputs have no open dimension .*; it has none$"):
        read(float_model(shape=(1, 3)), {name: 7})


def test_input_without_shape() -> None:
    model = float_model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert fails(model) == "input 'x' has no shape; export the model with static shapes"


def test_input_that_is_no_tensor() -> None:
    model = float_model()
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    assert fails(model) == "input 'x' is not a tensor"


def test_operator_unknown_to_onnx() -> None:
    assert (
        fails(float_model("Frobnicate"))
        == "node 'only' uses operator 'Frobnicate', which ONNX opset 21 does not define"
    )


@pytest.mark.parametrize(
    ("op", "name"), [("Relu", "alpha"), ("LayerNormalization", "alpha"), ("Gelu", "axis")]
)
def test_attribute_unknown_to_onnx(op: str, name: str) -> None:
    assert fails(float_model(op, **{name: "1"})) == (
        f"node 'only' has attribute {name!r}, which ONNX opset 21 does not define for {op}"
    )


def test_operator_of_a_later_opset() -> None:
    model = float_model("Gelu")
    model.opset_import[0].version = 19
    assert fails(model) == "node 'only' uses operator 'Gelu', which ONNX opset 19 does not define"


def test_invalid_model() -> None:
    model = small()
    model.graph.node[1].input[0] = "nobody"
    message = fails(model)
    assert message.startswith("the model is not valid ONNX: ")
    assert "nobody" in message


def test_output_without_a_type() -> None:
    """Shape inference would fill it in."""
    model = small()
    model.graph.output[0].ClearField("type")
    assert fails(model) == f"output {model.graph.output[0].name!r} has no type"


def test_local_functions_are_inlined() -> None:
    model = small()
    last = model.graph.node[-1].output[0]
    body = [helper.make_node("Relu", ["a"], ["b"])]
    opset = [helper.make_opsetid("", 21)]
    model.functions.append(helper.make_function("local", "Twice", ["a"], ["b"], body, opset))
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node.append(helper.make_node("Twice", [last], ["final"], domain="local"))
    model.graph.output[0].name = "final"
    assert "Relu" in {node.op for node in load(model).nodes}


def test_damaged_name(tmp_path: Path) -> None:
    path = tmp_path / "damaged.onnx"
    path.write_bytes(small().SerializeToString().replace(b"Conv", b"Con\xff"))
    assert fails(path) == "the model is damaged: it holds the name b'Con\\xff', which is not UTF-8 text"


def test_impossible_opset() -> None:
    model = small()
    model.opset_import[0].version = 1 << 40
    newest = onnx.defs.onnx_opset_version()
    assert fails(model) == (
        f"the model asks for version 1099511627776 of operator set ''; weft supports versions 1 to {newest}"
    )


@repeated("seed", range(150))
def test_damaged_file_is_refused_or_read(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    payload = bytearray(small(seed % 7).SerializeToString())
    if seed % 3 == 0:
        del payload[int(rng.integers(len(payload))) :]
    for _ in range(seed % 3):
        payload[int(rng.integers(len(payload)))] = int(rng.integers(256))
    path = tmp_path / "damaged.onnx"
    path.write_bytes(payload)
    message = ""
    try:
        import_model(path)
    except CompileError as error:
        message = str(error)
    assert "\n" not in message


def nest(depth: int, calls: int) -> onnx.ModelProto:
    """A model of `depth` functions of which each calls the next several times."""
    model = qdq_models.random_conv(np.random.default_rng(0))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    for index in range(depth):
        last = index == depth - 1
        nodes = [
            helper.make_node(
                "Relu" if last else f"f{index + 1}",
                [f"a{at}"],
                [f"a{at + 1}"],
                domain="" if last else "local",
            )
            for at in range(calls)
        ]
        model.functions.append(
            helper.make_function("local", f"f{index}", ["a0"], [f"a{calls}"], nodes, opsets)
        )
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node.append(helper.make_node("f0", [model.graph.output[0].name], ["end"], domain="local"))
    model.graph.output[0].name = "end"
    return model


def test_functions_that_double() -> None:
    assert import_model(nest(5, 2)).assignment
    assert fails(nest(30, 2)) == (
        "the model has 1,073,741,832 nodes with its functions inlined; weft takes up to 200,000"
    )


def test_functions_in_a_circle() -> None:
    model = nest(3, 1)
    model.functions[2].node[0].op_type, model.functions[2].node[0].domain = "f1", "local"
    assert fails(model) == "the model's function 'f1' calls itself; ONNX does not allow that"


def test_functions_in_a_circle_through_a_branch() -> None:
    model = nest(2, 1)
    call = helper.make_node("f0", ["a0"], ["b"], domain="local")
    inner = helper.make_graph([call], "g", [], [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)])
    node = helper.make_node("If", ["a0"], ["a1"], then_branch=inner, else_branch=inner)
    model.functions[1].node[0].CopyFrom(node)
    assert "calls itself" in fails(model)


def test_functions_that_are_deep() -> None:
    assert fails(nest(500, 1)) == "the model's functions call each other more than 100 deep"


def declare(kind: int, shape: tuple[int | str, ...] | None) -> onnx.ModelProto:
    """An initialiser of type float and shape (4,) that is listed as an input."""
    model = small()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "given"))
    model.graph.input.append(helper.make_tensor_value_info("given", kind, shape))
    return model


def test_initialisers_that_are_inputs() -> None:
    assert "given" not in read(declare(TensorProto.FLOAT, (4,))).inputs
    assert "given" in read(declare(TensorProto.FLOAT, ("n",))).constants


@pytest.mark.parametrize(("kind", "shape"), [(TensorProto.INT8, (4,)), (TensorProto.FLOAT, (4, 1))])
def test_initialisers_that_are_declared_otherwise(kind: int, shape: tuple[int, ...]) -> None:
    dtype = "int8" if kind == TensorProto.INT8 else "float32"
    assert fails(declare(kind, shape)) == (
        "the model is not valid ONNX: initialiser 'given' is float32 of shape (4,), but declared as "
        f"{dtype} of shape {shape}"
    )


def test_element_types_that_onnx_does_not_have() -> None:
    model = declare(TensorProto.FLOAT, (4,))
    model.graph.output[0].type.tensor_type.elem_type = 99
    with pytest.raises(CompileError, match=r"the model is not valid ONNX: .* has element type 99"):
        network_of(model)


def one_node(**attributes: Any) -> Network:
    """A graph of one operator of another domain with these attributes."""
    node = helper.make_node("Any", ["x"], ["y"], domain="my.own", **attributes)
    arguments, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, None)) for name in "xy")
    graph = helper.make_graph([node], "g", [arguments], [result])
    opsets = [helper.make_opsetid("ai.onnx", 21), helper.make_opsetid("my.own", 3)]
    return network_of(helper.make_model(graph, opset_imports=opsets))


def test_network() -> None:
    network = one_node()
    (node,) = network.nodes
    assert (node.op, node.inputs, node.outputs, node.index) == ("my.own.Any", ("x",), ("y",), 0)
    assert network.types == {"x": Type("float32", (1, None)), "y": Type("float32", (1, None))}
    assert (network.inputs, network.outputs, network.opsets) == (("x",), ("y",), {"": 21, "my.own": 3})


def test_attributes() -> None:
    tensor = numpy_helper.from_array(np.array([[1, 2]], np.uint8))
    (node,) = one_node(i=3, f=0.5, s="words", b=b"\xff", ints=[1, 2], texts=["a", b"\xfe"], t=tensor).nodes
    given = dict(node.attributes)
    assert given.pop("t").tolist() == [[1, 2]]
    assert given == {"i": 3, "f": 0.5, "s": "words", "b": b"\xff", "ints": (1, 2), "texts": ("a", b"\xfe")}


def test_attribute_of_a_kind_that_is_not_read() -> None:
    with pytest.raises(CompileError) as caught:
        one_node(kind=helper.make_tensor_type_proto(TensorProto.FLOAT, ()))
    assert str(caught.value) == (
        "node 'Any_0' has attribute 'kind', which cannot be read: weft reads numbers, text, dense tensors and graphs"
    )


def test_damaged_name_in_a_branch(tmp_path: Path) -> None:
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["nnnn"])], "g", [],
                              [helper.make_tensor_value_info("nnnn", TensorProto.FLOAT, None)])  # fmt: skip
    model = small()
    model.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner))
    path = tmp_path / "damaged.onnx"
    path.write_bytes(model.SerializeToString().replace(b"nnnn", b"nnn\xff"))
    assert fails(path) == "the model is damaged: it holds the name b'nnn\\xff', which is not UTF-8 text"


@pytest.mark.parametrize("version", [0, 99, (1 << 31) - 1])
def test_impossible_version_of_the_file_format(version: int) -> None:
    model = small()
    model.ir_version = version
    assert fails(model).startswith("the model is not valid ONNX: ")
