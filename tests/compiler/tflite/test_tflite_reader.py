"""Networks from TFLite files, and every refusal of a readable file."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support import tflite_networks
from support.tflite_cases import CASES, RELU, VALID, Case, draw
from support.tflite_models import Model

import weft
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.ir.network import Network
from weft.compiler.onnx.links import expand
from weft.compiler.tflite import builder
from weft.compiler.tflite.builder import Builder
from weft.compiler.tflite.file import File
from weft.compiler.tflite.reader import HOW_TO_QUANTISE, is_tflite, read


def fails(content: bytes) -> str:
    with pytest.raises(CompileError) as caught:
        import_model(content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


WINDOW = {"StrideH": 1, "StrideW": 1, "FilterWidth": 1, "FilterHeight": 1}


class Small:
    """A model of one operator, some parts of which are wrong."""

    def __init__(self) -> None:
        self.model = Model()
        self.x = self.model.tensor((1, 4, 4, 2), "int8", 0.1, 3, name="x")
        self.y = self.model.tensor((1, 4, 4, 2), "int8", 0.1, 3, name="y")

    def fails(self, name: str, *more: int, kind: str = "", **options: object) -> str:
        """Message that refuses this operator on x and `more`."""
        self.model.operator(name, [self.x, *more], [self.y], kind, **options)
        return fails(self.model.write([self.x], [self.y]))

    def constant(self, *values: int) -> int:
        return self.model.constant(values)


def operators(network: Network) -> Counter[str]:
    return Counter(node.operator for node in network.nodes)


def test_names_types_and_shapes_equal_the_file() -> None:
    graph = import_model(tflite_networks.convolutions())
    assert graph.inputs == {"input0": ("int8", (1, 9, 8, 3))}
    assert graph.outputs == {"output0": ("int8", (1, 4))}


def test_tensors_of_one_name_have_names_of_their_own() -> None:
    model = Model()
    source, between, result = (model.tensor((2,), "int8", 0.1, name="same") for _ in range(3))
    model.operator("RELU", [source], [between])
    model.operator("RELU", [between], [result])
    graph = import_model(model.write([source], [result]))
    assert (list(graph.inputs), list(graph.outputs)) == (["same"], ["same_2"])


def test_images_are_transposed_where_they_come_in_and_where_rows_are_needed() -> None:
    network = read(tflite_networks.convolutions())
    assert operators(network)["Transpose"] == 2
    names = [node.name for node in network.nodes if node.operator == "Transpose"]
    assert names == ["input0.transpose", "average_pool_2d_5.transpose"]


def test_consecutive_transposes_are_merged() -> None:
    """A Transpose of images with channels first, behind which there is a convolution."""
    case = Case(np.random.default_rng(1))
    case.image = lambda: (1, 6, 5, 3)  # type: ignore[method-assign]
    CASES["MAX_POOL_2D"](case)
    model, pooled = case.model, case.outputs[0]
    shape = model.tensors[pooled].shape
    moved = model.tensor(
        [shape[axis] for axis in (0, 2, 1, 3)],
        "int8",
        model.tensors[pooled].scale[0],
        model.tensors[pooled].zero[0],
    )
    model.operator("TRANSPOSE", [pooled, model.constant([0, 2, 1, 3])], [moved], "Transpose")
    result = model.tensor(model.tensors[moved].shape, "int8", 0.1)
    model.operator(
        "MAX_POOL_2D",
        [moved],
        [result],
        "Pool2D",
        Padding=VALID,
        FilterHeight=1,
        FilterWidth=1,
        StrideH=1,
        StrideW=1,
    )
    network = read(model.write(case.inputs, [result]))
    perms = [node.attributes["perm"] for node in network.nodes if node.operator == "Transpose"]
    readers = {name for node in network.nodes for name in node.inputs}
    used = [
        node.attributes["perm"]
        for node in network.nodes
        if node.operator == "Transpose" and node.outputs[0] in {*readers, *network.outputs}
    ]
    assert (0, 1, 3, 2) in used
    assert perms.count((0, 3, 1, 2)) == 1


def test_same_padding_has_the_odd_row_at_the_end() -> None:
    network = read(tflite_networks.convolutions())
    first = next(node for node in network.nodes if node.operator == "Conv")
    assert first.attributes["pads"] == (1, 0, 1, 1)


def test_fused_activations_and_bytes_that_mean_the_same() -> None:
    small = Small()
    small.model.operator("ADD", [small.x, small.x], [small.y], "Add", FusedActivationFunction=RELU)
    actual = operators(read(small.model.write([small.x], [small.y])))
    assert actual == {"Add": 1, "Relu": 1}
    content = draw("CONCATENATION", 2).finish()
    assert operators(expand(read(content))).keys() == {"Concat"}


def test_a_bias_without_a_scale_has_that_of_the_products() -> None:
    content = tflite_networks.rows()
    graph = import_model(content)
    net = tflite_networks.Network(np.random.default_rng(2), "uint8")
    value = net.input((2, 10))
    for outputs in (8, 3, 10):
        value = net.dense(value, outputs)
    for item in net.model.tensors:
        if item.dtype == "int32":
            item.scale, item.zero = (), ()
    other = import_model(net.ends(value))
    for one, two in zip(graph.segments[0].ops, other.segments[0].ops, strict=True):  # type: ignore[union-attr]
        assert np.abs(one.bias - two.bias).max() <= 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED"])
def test_biases_of_all_kinds_without_a_scale(kind: str) -> None:
    compared = 0
    for seed in range(12):
        graphs = []
        for scaled in (True, False):
            case = draw(kind, seed)
            for item in case.model.tensors:
                if item.dtype == "int32" and item.scale and not scaled:
                    item.scale, item.zero, compared = (), (), compared + 1
            graphs.append(import_model(case.finish()))
        one, other = (
            [op for segment in graph.segments if isinstance(segment, DeviceSegment) for op in segment.ops]
            for graph in graphs
        )
        assert list(map(type, one)) == list(map(type, other))
        for first, second in zip(one, other, strict=True):
            if isinstance(first, Conv) and isinstance(second, Conv):
                assert np.abs(first.bias - second.bias).max() <= 1
    assert compared > 2


def test_computed_shape_is_folded() -> None:
    """Keras writes Flatten for open batches like this."""
    net = tflite_networks.Network(np.random.default_rng(1))
    value, model = net.conv(net.input((1, 4, 4, 3)), 4), net.model
    shape, first, both = (model.tensor(size, "int32") for size in ((4,), (), (2,)))
    model.operator("SHAPE", [value], [shape], "Shape", OutType=2)
    ends = [model.constant([at]) for at in (0, 1, 1)]
    model.operator("STRIDED_SLICE", [shape, *ends], [first], "StridedSlice", ShrinkAxisMask=1)
    model.operator("PACK", [first, model.constant(64)], [both], "Pack", ValuesCount=2)
    rows = net.like(value, (1, 64))
    model.operator("RESHAPE", [value, both], [rows], "Reshape")
    graph = import_model(net.ends(net.dense(rows, 5)))
    assert {place for _, _, place, _ in graph.assignment} == {"device"}


@pytest.mark.parametrize("shape", [(8, 8), (1, 2, 6, 8)], ids=str)
def test_attention_is_one_operator_of_the_device(shape: tuple[int, ...]) -> None:
    net = tflite_networks.Network(np.random.default_rng(2))
    model, scores = net.model, (*shape[:-1], shape[-2])
    q, k, v = (net.input(shape, 0.05, 3) for _ in range(3))
    actual, scaled = (model.tensor(scores, "int8", scale) for scale in (0.2, 0.1))
    model.operator("BATCH_MATMUL", [q, k], [actual], "BatchMatMul", AdjY=True)
    factor = model.tensor((), "int8", 0.0028, data=np.int8(127))
    model.operator("MUL", [actual, factor], [scaled], "Mul")
    weights, result = net.softmax(scaled), model.tensor(shape, "int8", 0.03)
    model.operator("BATCH_MATMUL", [weights, v], [result], "BatchMatMul")
    (segment,) = import_model(net.ends(result)).segments
    assert [type(op).__name__ for op in segment.ops] == ["Attention"]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["ADD", "MUL", "PRELU", "MEAN"])
def test_channels_of_inputs_are_channels_of_the_device(name: str) -> None:
    small = Small()
    other = small.model.tensor((1, 1, 2), "int8", 0.1, data=bytes([40, 50]))
    if name == "MEAN":
        small.model.tensors[small.y].shape = (1, 2)
        other = small.constant(1, 2)
    kind = {"ADD": "Add", "MUL": "Mul", "MEAN": "Reducer"}.get(name, "")
    small.model.operator(name, [small.x, other], [small.y], kind)
    graph = import_model(small.model.write([small.x], [small.y]))
    assert {place for _, _, place, _ in graph.assignment} == {"device"}


def test_constants_may_be_outputs_and_inputs_unused() -> None:
    small = Small()
    unused = small.model.tensor((2,), "int8", 0.1, name="unused")
    known = small.model.tensor((2,), "int8", 0.1, data=np.array([1, 2], np.int8), name="known")
    small.model.operator("TANH", [small.x], [small.y])
    program = weft.compile(small.model.write([small.x, unused], [small.y, known]), "tiny")
    values = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    assert list(values) == ["x", "unused"]
    assert program.run(values).outputs["known"].tolist() == [1, 2]


def test_constants_in_many_orders_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposes of one constant: a small file could ask for any amount of memory."""
    monkeypatch.setattr(builder, "_SMALL", 1000)
    small = Small()
    known = small.model.tensor((2, 5, 20, 10), "int8", 0.1, data=bytes(2000))
    for perm in itertools.permutations(range(4)):
        moved = small.model.tensor([(2, 5, 20, 10)[axis] for axis in perm], "int8", 0.1)
        small.model.operator("TRANSPOSE", [known, small.constant(*perm)], [moved], "Transpose")
    assert small.fails("RELU") == (
        "the file's constants take more than 16 times their bytes in the orders in which operators read them"
    )


def test_the_file_may_be_given_as_bytes_or_path(tmp_path: Path) -> None:
    content = tflite_networks.rows()
    assert is_tflite(content)
    path = tmp_path / "x.tflite"
    path.write_bytes(content)
    values = {"input0": np.arange(20, dtype=np.uint8).reshape(2, 10)}
    one, two = (weft.compile(source, "tiny").run(values) for source in (content, path))
    assert np.array_equal(one.outputs["output0"], two.outputs["output0"])
    assert [row[:3] for row in weft.check(path)] == [row[:3] for row in weft.compile(str(path)).assignment]


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path / "none.tflite", "No such file or directory"),
        (tmp_path, "it is a directory"),
    ):
        with pytest.raises(CompileError) as caught:
            import_model(path)
        assert str(caught.value) == f"cannot read model {path}: {why}"


def test_models_in_float_and_of_nothing() -> None:
    model = Model()
    source, result = model.tensor((1, 4), "float32"), model.tensor((1, 4), "float32")
    assert fails(model.write([source], [result])) == (
        "the file has 0 operators and 1 outputs; there is nothing to compile"
    )
    model.operator("RELU", [source], [result])
    assert (
        fails(model.write([source], []))
        == "the file has 1 operators and 0 outputs; there is nothing to compile"
    )
    assert fails(model.write([source], [result])) == (
        f"the model is not quantised (no tensor of 8 or 16 bits has a scale): {HOW_TO_QUANTISE}"
    )


def test_weights_in_8_bits_alone_run_on_the_host() -> None:
    """Dynamic range quantisation: activations are in float."""
    model = Model()
    source, result = model.tensor((1, 4), "float32"), model.tensor((1, 2), "float32")
    weights = model.tensor((2, 4), "int8", [0.5, 0.25], [0, 0], data=np.arange(8, dtype=np.int8))
    model.operator("FULLY_CONNECTED", [source, weights], [result], "FullyConnected")
    graph = import_model(model.write([source], [result]))
    assert {place for _, operator, place, _ in graph.assignment if operator == "Gemm"} == {"host"}


def test_operators_that_weft_does_not_read() -> None:
    result = (
        "which makes tensor 1 ('y'), is not supported; docs/reference/tflite.md lists the supported operators"
    )
    assert Small().fails("WHERE") == f"operator 0 (WHERE), {result}"
    assert Small().fails("CUSTOM TFLite_Detection") == f"operator 0 (CUSTOM 'TFLite_Detection'), {result}"
    assert Small().fails("unknown 9999") == f"operator 0 (unknown code 9999), {result}"


def test_numbers_of_inputs() -> None:
    small = Small()
    assert (
        small.fails("RELU", small.x)
        == "operator 0 (RELU), which makes tensor 1 ('y'), has 2 inputs; it takes 1"
    )
    assert (
        Small().fails("CONV_2D")
        == "operator 0 (CONV_2D), which makes tensor 1 ('y'), has 1 inputs; it takes 2 to 3"
    )
    assert Small().fails("ADD", -1, kind="Add") == (
        "operator 0 (ADD), which makes tensor 1 ('y'), has 2 inputs, and no input 1"
    )


def test_tensors_that_are_not_there() -> None:
    assert Small().fails("ADD", 99) == (
        "operator 0 (ADD), which makes tensor 1 ('y'), names tensor 99; the file has 2"
    )
    small = Small()
    small.model.operator("RELU", [small.x], [small.y])
    for kind, inputs, outputs in (("input", [-1], [1]), ("output", [0], [7])):
        assert fails(small.model.write(inputs, outputs)) == (
            f"{kind} 0 is tensor {(inputs if kind == 'input' else outputs)[0]}; the file has 2 tensors"
        )


def test_tensor_read_before_it_is_written_is_refused() -> None:
    small = Small()
    assert small.fails("ADD", small.y) == (
        "operator 0 (ADD), which makes tensor 1 ('y'), reads tensor 1 ('y'), which no earlier operator writes"
    )


def test_tensors_without_elements() -> None:
    small = Small()
    small.model.tensors[small.y].shape = (1, 0)
    small.model.operator("SLICE", [small.x, small.constant(0), small.constant(0)], [small.y], "Slice")
    end = small.model.tensor((1, 4, 4, 2), "int8", 0.1)
    small.model.operator("RELU", [small.x], [end])
    assert fails(small.model.write([small.x], [end])) == (
        "operator 0 (SLICE), which makes tensor 1 ('y'), has a result without elements"
    )
    small = Small()
    nothing = small.model.tensor((0, 2), "int8", 0.1, data=b"", name="n")
    assert small.fails("ADD", nothing, kind="Add") == "tensor 2 ('n') is read, but has no elements"


def test_windows_that_are_larger_than_the_image() -> None:
    """The onnx package ends the process for a Slice behind one: it counts fewer than no windows."""
    small = Small()
    pooled = small.model.tensor((1, 4, 4, 2), "int8", 0.1, 3, name="pooled")
    options = WINDOW | {"FilterHeight": 9, "Padding": VALID}
    small.model.operator("MAX_POOL_2D", [small.x], [pooled], "Pool2D", **options)
    ends = [small.constant(*item) for item in ([7], [0], [3])]
    small.model.operator("STRIDED_SLICE", [pooled, *ends], [small.y], "StridedSlice", BeginMask=1, EndMask=1)
    assert fails(small.model.write([small.x], [small.y])) == (
        "operator 0 (MAX_POOL_2D), which makes tensor 2 ('pooled'), has a window over 9 rows or columns, of which "
        "there are 4"
    )


def test_results_are_checked_before_the_next_operator() -> None:
    small = Small()
    wide = small.model.tensor((1, 4, 4, 40), "int8", 0.1, 3, name="wide")
    small.model.operator("TANH", [small.x], [wide])
    ends = [small.constant(*item) for item in ([0, 0, 0, 38], [1, 4, 4, 2])]
    assert_at = "node 'tanh_0' (Tanh) returns int8 of shape 1x4x4x2, but the file says int8 of "
    small.model.operator("SLICE", [wide, *ends], [small.y], "Slice")
    assert fails(small.model.write([small.x], [small.y])) == f"{assert_at}shape 1x4x4x40"


def test_tensor_written_twice_is_refused() -> None:
    small = Small()
    small.model.operator("RELU", [small.x], [small.y])
    twice = "writes a tensor that exists already: an input, a constant or another operator's result"
    assert small.fails("RELU") == f"operator 1 (RELU), which makes tensor 1 ('y'), {twice}"
    small = Small()
    small.y = small.x
    assert fails_at(small) == "tensor 0 ('x') is input and output, so there is nothing to compute"
    small = Small()
    small.model.operator("SPLIT", [small.constant(0), small.x], [small.y, small.y], "Split", NumSplits=2)
    assert fails(small.model.write([small.x], [small.y])) == (
        "operator 0 (SPLIT), which makes tensor 1 ('y'), writes one tensor twice"
    )


def fails_at(small: Small) -> str:
    small.model.operator("RELU", [small.x], [small.y])
    return fails(small.model.write([small.x], [small.y]))


def test_outputs_that_nothing_makes() -> None:
    small = Small()
    other = small.model.tensor((1,), "int8", 0.1, name="z")
    small.model.operator("RELU", [small.x], [small.y])
    assert fails(small.model.write([small.x], [small.y, other])) == (
        "no operator writes output tensor 2 ('z')"
    )
    assert fails(small.model.write([small.x], [small.y, small.y])) == (
        "the file lists one tensor as two outputs: [1, 1]"
    )
    assert fails(small.model.write([], [small.y])) == (
        "operator 0 (RELU), which makes tensor 1 ('y'), reads tensor 0 ('x'), which no earlier operator writes"
    )


def test_inputs_with_contents_or_of_strange_types() -> None:
    small = Small()
    constant = small.constant(1, 2)
    small.model.operator("RELU", [small.x], [small.y])
    assert (
        fails(small.model.write([small.x, constant], [small.y]))
        == "input tensor 2 ('t2') has contents, as a constant has"
    )
    small.model.tensor((1,), "STRING", name="s")
    assert fails(small.model.write([3], [small.y])).startswith(
        "input tensor 3 ('s') has type STRING; weft takes "
    )
    small.model.tensor((0, 2), "int8", name="e")
    assert (
        fails(small.model.write([4], [small.y]))
        == "input tensor 4 ('e') has shape 0x2, which holds no element"
    )


def test_values_without_a_scale() -> None:
    small = Small()
    small.model.tensors[small.x].scale = ()
    assert small.fails("TANH") == "tensor 0 ('x') of type int8 has no scale; convert the model again"
    small = Small()
    small.model.tensors[small.y].scale = ()
    assert small.fails("TANH") == (
        "operator 0 (TANH), which makes tensor 1 ('y'), makes tensor 1 ('y') of type int8, which has no scale"
    )
    small = Small()
    small.model.tensors[small.y].scale, small.model.tensors[small.y].zero = [0.1, 0.2], [0, 0]
    small.model.tensors[small.y].axis = 3
    assert small.fails("TANH") == (
        "operator 0 (TANH), which makes tensor 1 ('y'), makes tensor 1 ('y'), which has 2 scales; results have one"
    )


def test_declared_shapes_and_types_must_match_results() -> None:
    small = Small()
    small.model.tensors[small.y].shape = (1, 4, 5, 2)
    assert small.fails("TANH") == (
        "node 'tanh_0' (Tanh) returns int8 of shape 1x4x4x2, but the file says int8 of shape 1x4x5x2"
    )
    small = Small()
    small.model.tensors[small.y].dtype = "int32"
    small.model.tensors[small.y].scale = ()
    assert small.fails("TANH") == (
        "node 'tanh_0' (Tanh) returns float32 of shape 1x4x4x2, but the file says int32 of shape 1x4x4x2"
    )
    small = Small()
    small.model.tensors[small.y].shape = (1, 7)
    assert small.fails("RESHAPE", kind="Reshape") == (
        "operator 0 (RESHAPE), which makes tensor 1 ('y'), reshapes 32 elements to 7"
    )
    other = small = Small()
    wrong = other.model.tensor((1, 4, 4, 3), "int8", 0.1)
    other.model.operator("ADD", [other.x, wrong], [other.y], "Add")
    assert fails(other.model.write([other.x, wrong], [other.y])).startswith(
        "operator 'add_0' contradicts itself: "
    )


@pytest.mark.parametrize(
    ("name", "kind", "options", "message"),
    [
        ("AVERAGE_POOL_2D", "Pool2D", WINDOW | {"FilterHeight": 0}, "has FilterHeight 0; it must be above 0"),
        ("MAX_POOL_2D", "Pool2D", WINDOW | {"StrideH": -3}, "has StrideH -3; it must be above 0"),
        ("MAX_POOL_2D", "Pool2D", WINDOW | {"Padding": 9}, "has padding 9; there are SAME and VALID"),
        ("SOFTMAX", "Softmax", {"Beta": -1.0}, "has beta -1; it must be finite and above 0"),
        ("SPACE_TO_DEPTH", "SpaceToDepth", {}, "has BlockSize 0; it must be above 0"),
    ],
)
def test_options(name: str, kind: str, options: dict[str, object], message: str) -> None:
    assert (
        Small().fails(name, kind=kind, **options)
        == f"operator 0 ({name}), which makes tensor 1 ('y'), {message}"
    )


def test_fused_activations_that_weft_does_not_read() -> None:
    where = "operator 0 (ADD), which makes tensor 1 ('y'), has fused activation"
    behind = "which LiteRT does not compute: use a separate operator for it"
    for number, message in (
        (6, "6, which weft does not read"),
        (4, f"TANH, {behind}"),
        (5, f"SIGN_BIT, {behind}"),
    ):
        small = Small()
        assert small.fails("ADD", small.x, kind="Add", FusedActivationFunction=number) == f"{where} {message}"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("TRANSPOSE", [[0, 1, 2, 2]], "has axes [0, 1, 2, 2]; it must have each of 4 once"),
        ("TRANSPOSE", [[0, 1, 2, 4]], "has axis 4 for 4 dimensions"),
        ("MEAN", [[-5]], "has axis -5 for 4 dimensions"),
        ("PAD", [[1, 2, 3]], "has pads [1, 2, 3]; it takes 8 numbers, none below 0"),
        (
            "PAD",
            [[0, 0, 0, -1, 0, 0, 0, 0]],
            "has pads [0, 0, 0, -1, 0, 0, 0, 0]; it takes 8 numbers, none below 0",
        ),
        ("SLICE", [[0, 0], [1, 1]], "begins at [0, 0] in 4 dimensions"),
        ("STRIDED_SLICE", [[0], [1], [0]], "has stride 0"),
        ("STRIDED_SLICE", [[0], [1, 2], [1]], "has 1 places to begin, 2 to end and 1 strides"),
        ("STRIDED_SLICE", [[0] * 5, [1] * 5, [1] * 5], "has 5 ranges for 4 dimensions"),
        ("TILE", [[2]], "has 1 repetitions for 4 dimensions"),
        ("ARG_MAX", [[0, 1]], "has 2 axes; it takes one"),
    ],
)
def test_constants_that_make_no_sense(name: str, values: list[list[int]], message: str) -> None:
    small = Small()
    constants = [small.constant(*item) for item in values]
    assert small.fails(name, *constants) == f"operator 0 ({name}), which makes tensor 1 ('y'), {message}"


def test_constants_that_are_none() -> None:
    small = Small()
    axes = small.model.tensor((1,), "int32", name="axes")
    small.model.operator("MEAN", [small.x, axes], [small.y], "Reducer")
    assert fails(small.model.write([small.x, axes], [small.y])) == (
        "operator 0 (MEAN), which makes tensor 1 ('y'), takes axis from tensor 2 ('axes'), which is not "
        "constant; make it so"
    )


def test_filters_that_do_not_fit() -> None:
    small = Small()
    filters = small.model.tensor((2, 1, 1, 3), "int8", 0.1, data=bytes(6))
    assert small.fails("CONV_2D", filters, kind="Conv2D", StrideH=1, StrideW=1) == (
        "operator 0 (CONV_2D), which makes tensor 1 ('y'), has filters for 3 channels, of which tensor 0 ('x') has 2"
    )
    small = Small()
    filters = small.model.tensor((1, 1, 1, 3), "int8", 0.1, data=bytes(3))
    assert small.fails("DEPTHWISE_CONV_2D", filters, kind="DepthwiseConv2D", StrideH=1, StrideW=1) == (
        "operator 0 (DEPTHWISE_CONV_2D), which makes tensor 1 ('y'), has filters of shape 1x1x1x3 for 2 channels; the "
        "first size must be 1, the last a multiple of the channels"
    )
    small = Small()
    matrix = small.model.tensor((1, 5), "int8", 0.1, data=bytes(5))
    assert small.fails("FULLY_CONNECTED", matrix, kind="FullyConnected") == (
        "operator 0 (FULLY_CONNECTED), which makes tensor 1 ('y'), takes rows of 5 elements; tensor 0 ('x') has 32"
    )


def test_many_tensors_of_one_name_are_quick() -> None:
    """Names are counted up from where they were: trying all of them takes minutes."""
    names, start = Builder(File((), (), (), ())), time.process_time()
    assert [names.unique("same") for _ in range(30_000)][-1] == "same_29999"
    assert time.process_time() - start < 5
