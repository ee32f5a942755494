"""Operators of TFLite against LiteRT's reference kernels, and on the device against the micro-ops."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
from support import tflite_networks
from support.golden_compare import compare
from support.graph_runs import run_graph
from support.litert import layers, steps, tensors
from support.tflite_cases import CASES, AfterChannelsFirst, Case, chain, draw
from support.tflite_models import Model

from weft.compiler.backend import compile_segment
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph
from weft.compiler.tflite.file import parse
from weft.compiler.tflite.record import NAMES
from weft.hdl.isa.config import PRESETS

NOT_IN_LITERT = {
    "int8": ("SQUARE", "SUM"),
    "uint8": ("ABS", "BATCH_MATMUL", "ELU", "EXP", "NEG", "RSQRT", "SQRT", "SQUARE"),
}
"""Types that LiteRT's kernels refuse. They accept sums of int8, but wrap around."""
INT16 = (
    "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "MAX_POOL_2D", "ADD", "SUB", "MUL", "MAXIMUM",
    "MINIMUM", "LOGISTIC", "TANH", "NEG", "RELU", "RELU6", "MIRROR_PAD", "SLICE", "STRIDED_SLICE", "CONCATENATION",
    "SPLIT", "SPLIT_V", "PACK", "UNPACK", "GATHER", "TILE", "BATCH_TO_SPACE_ND", "RESIZE_NEAREST_NEIGHBOR",
    "RESIZE_BILINEAR",
)  # fmt: skip
"""Operators that run on the device with activations of 16 bits."""
INT16_PARTLY = {
    "PAD": 1, "PADV2": 1, "SPACE_TO_BATCH_ND": 1, "AVERAGE_POOL_2D": 1, "BATCH_MATMUL": 1, "ABS": 1, "MEAN": 1,
    "REDUCE_MAX": 1, "REDUCE_MIN": 1, "RESHAPE": 1, "TRANSPOSE": 1, "LEAKY_RELU": 8, "GELU": 20, "GELU_APPROXIMATE": 20,
}  # fmt: skip
"""Operators of which some forms run on the device, with the largest error in steps. LiteRT's own 513-entry tables
are as far from GELU."""
KERNELS = PRESETS["small"].replace(kernel=128)
SEEDS = 6
MORE = {"STRIDED_SLICE": 40, "RESIZE_NEAREST_NEIGHBOR": 20}
"""Seeds for operators that have many forms."""
CHAINS = 24


def _compare(name: str, seed: int, dtype: str) -> None:
    case = draw(name, seed, dtype)
    content = case.finish()
    file = parse(content, name)
    for operator, apart, _, _ in layers(file, tensors(content, case.draws())):
        assert apart <= 1, f"{operator.label}, seed {seed}: {apart} steps from LiteRT"


@pytest.mark.drawn(40)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_within_a_step_of_litert(name: str, dtype: str) -> None:
    if name in NOT_IN_LITERT[dtype]:
        return
    for seed in range(MORE.get(name, SEEDS)):
        _compare(name, seed, dtype)


@pytest.mark.drawn(20)
@pytest.mark.parametrize("name", CASES)
def test_operator_after_channels_first(name: str) -> None:
    if name in NOT_IN_LITERT["int8"]:
        return
    for seed in range(SEEDS):
        case = draw(name, seed, "int8", AfterChannelsFirst)
        content, values = case.finish(), case.draws()
        actual = tensors(content, values)
        graph = import_model(content)
        inputs = {key: values[index] for index, key in zip(case.inputs, graph.inputs, strict=True)}
        for index, value in zip(case.outputs, run_graph(graph, inputs).values(), strict=True):
            assert steps(value, actual[index]).max() <= 1, f"seed {seed}"


@pytest.mark.drawn(9)
@pytest.mark.parametrize("name", INT16)
def test_activations_of_16_bits(name: str) -> None:
    for seed in range(4):
        case = draw(name, seed, "int16")
        content = case.finish()
        for operator, apart, _, graph in layers(
            parse(content, name), tensors(content, case.draws()), KERNELS
        ):
            assert apart <= 1, f"{operator.label}, seed {seed}: {apart} steps from LiteRT"
            assert {place for _, _, place, _ in graph.assignment} == {"device"}, f"seed {seed}"
            if not seed:
                _on_golden(graph)


def _on_golden(graph: Graph) -> None:
    rng = np.random.default_rng(4)
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment):
            read = {view.buffer.name: view.buffer for op in segment.ops for view in op.sources}
            inputs = {
                name: rng.integers(-128, 128, buffer.shape).astype(np.int8)
                for name, buffer in read.items()
                if buffer.kind == "input"
            }
            compare(compile_segment(segment, KERNELS), segment, inputs, KERNELS, temps=False)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", INT16_PARTLY)
def test_activations_of_16_bits_on_the_host(name: str) -> None:
    for seed in range(4):
        case = draw(name, seed, "int16")
        content = case.finish()
        for operator, apart, _, _ in layers(parse(content, name), tensors(content, case.draws()), KERNELS):
            assert apart <= INT16_PARTLY[name], f"{operator.label}, seed {seed}: {apart} steps from LiteRT"


def test_activations_of_16_bits_without_an_engine() -> None:
    case = draw("CONV_2D", 0, "int16")
    content = case.finish()
    ((_, apart, _, graph),) = layers(parse(content, "it"), tensors(content, case.draws()), PRESETS["small"])
    assert apart <= 1
    assert "host" in {place for _, _, place, _ in graph.assignment}


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_many_of_an_operator(name: str, dtype: str) -> None:
    if name not in NOT_IN_LITERT[dtype]:
        for seed in range(SEEDS, 150):
            _compare(name, seed, dtype)


@dataclass(frozen=True)
class _Float:
    """An operator that LiteRT has in float only: its options' class, the types of its inputs and result."""

    kind: str = ""
    inputs: tuple[str, ...] = ("float32",)
    result: str = "float32"
    low: float = -3.0


_TWO, _LOGIC = ("float32", "float32"), ("bool", "bool")
FLOATS = {
    **{name: _Float() for name in ("CEIL", "FLOOR", "ROUND", "SIN")},
    "GELU": _Float("Gelu"), "GELU_APPROXIMATE": _Float("Gelu"),
    "COS": _Float("Cos"), "LOG": _Float(low=0.5), "SQUARE": _Float("Square"), "RSQRT": _Float(low=0.5),
    "LOGICAL_NOT": _Float("LogicalNot", ("bool",), "bool"), "SIGN": _Float(),
    "ADD_N": _Float("AddN", ("float32",) * 3), "DIV": _Float("Div", _TWO, low=0.5), "POW": _Float("Pow", _TWO, low=0.5),
    "SQUARED_DIFFERENCE": _Float("SquaredDifference", _TWO),
    "LOGICAL_AND": _Float("LogicalAnd", _LOGIC, "bool"), "LOGICAL_OR": _Float("LogicalOr", _LOGIC, "bool"),
    "EQUAL": _Float("Equal", _TWO, "bool"), "NOT_EQUAL": _Float("NotEqual", _TWO, "bool"),
    "GREATER": _Float("Greater", _TWO, "bool"), "GREATER_EQUAL": _Float("GreaterEqual", _TWO, "bool"),
    "LESS": _Float("Less", _TWO, "bool"), "LESS_EQUAL": _Float("LessEqual", _TWO, "bool"),
    "SELECT": _Float("Select", ("bool", *_TWO)), "SELECT_V2": _Float("SelectV2", ("bool", *_TWO)),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("shape", [(2, 5), (1, 3, 4, 2)], ids=str)
def test_operators_in_float(name: str, shape: tuple[int, ...]) -> None:
    item, rng, model = FLOATS[name], np.random.default_rng(9), Model()
    inputs = [model.tensor(shape, dtype) for dtype in item.inputs]
    output = model.tensor(shape, item.result)
    options = {"Approximate": True} if name == "GELU_APPROXIMATE" else {}
    model.operator(name.removesuffix("_APPROXIMATE"), inputs, [output], item.kind, **options)
    model.tensor((1,), "int8", 0.1)  # so that it counts as quantised
    values = {
        index: rng.integers(0, 2, shape).astype(bool)
        if dtype == "bool"
        else np.rint(rng.uniform(item.low, 3, shape) * 4).astype(np.float32) / 4
        for index, dtype in zip(inputs, item.inputs, strict=True)
    }
    content = model.write(inputs, [output])
    for operator, apart, _, _ in layers(parse(content, name), tensors(content, values)):
        assert apart <= 1e-3, operator.label


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("same", ["scale", "zero"])
def test_concat_inputs_may_have_their_own_scales(seed: int, same: str) -> None:
    """LiteRT requantises uint8 inputs."""
    case = Case(np.random.default_rng(seed), "uint8")
    shape = case.shape()
    scale, zero = case.scale(), case.zero()
    parts = [case.input(shape, *((scale, None) if same == "scale" else (None, zero))) for _ in range(3)]
    most = max(case.model.tensors[index].scale[0] for index in parts)
    result = (*shape[:-1], shape[-1] * 3)
    output = case.output(result, scale, zero) if same == "scale" else case.output(result, most, zero)
    case.model.operator("CONCATENATION", parts, [output], "Concatenation", Axis=-1)
    content = case.finish()
    ((_, apart, _, _),) = layers(parse(content, "it"), tensors(content, case.draws()))
    assert apart <= 1


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_casts_use_stored_integers(dtype: str) -> None:
    model = Model()
    source, result = model.tensor((2, 3), "int8", 0.1, 5), model.tensor((2, 3), dtype)
    model.operator(
        "CAST",
        [source],
        [result],
        "Cast",
        InDataType=9,
        OutDataType={"float32": 0, "int32": 2, "uint8": 3}[dtype],
    )
    content = model.write([source], [result])
    values = {source: np.arange(6, dtype=np.int8).reshape(2, 3)}
    ((_, apart, _, _),) = layers(parse(content, "cast"), tensors(content, values))
    assert apart == 0


@pytest.mark.parametrize("name", ["REVERSE_V2", "BROADCAST_TO", "REDUCE_PROD"])
def test_operators_that_few_networks_have(name: str) -> None:
    model, rng = Model(), np.random.default_rng(3)
    dtype = "float32" if name == "REDUCE_PROD" else "int8"
    scale = None if dtype == "float32" else 0.1
    source = model.tensor((1, 4, 1, 3), dtype, scale)
    produced = {"REVERSE_V2": (1, 4, 1, 3), "BROADCAST_TO": (2, 4, 5, 3), "REDUCE_PROD": (1, 1, 3)}[name]
    other = {"REVERSE_V2": [1, 2], "BROADCAST_TO": produced, "REDUCE_PROD": [1]}[name]
    result = model.tensor(produced, dtype, scale)
    kind = {"REVERSE_V2": "ReverseV2", "BROADCAST_TO": "BroadcastTo", "REDUCE_PROD": "Reducer"}[name]
    model.operator(name, [source, model.constant(other)], [result], kind)
    model.tensor((1,), "int8", 0.1)
    content = model.write([source], [result])
    values = {source: draw_value((1, 4, 1, 3), dtype, rng)}
    ((_, apart, _, _),) = layers(parse(content, name), tensors(content, values))
    assert apart <= 1e-3


def draw_value(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    return (
        rng.normal(0, 2, shape).astype(dtype)
        if dtype == "float32"
        else rng.integers(-128, 128, shape).astype(dtype)
    )


def test_every_operator_has_a_case() -> None:
    drawn = {name.removesuffix("_APPROXIMATE") for name in (*CASES, *FLOATS)}
    others = {"CAST", "REVERSE_V2", "BROADCAST_TO", "REDUCE_PROD"}
    elsewhere = {
        "EMBEDDING_LOOKUP",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        "SVDF",
        "VAR_HANDLE",
        "READ_VARIABLE",
        "ASSIGN_VARIABLE",
        "CALL_ONCE",
    }
    assert drawn | others | elsewhere == set(NAMES)


@pytest.mark.parametrize("seed", range(CHAINS))
def test_chains_of_operators_that_move_bytes_equal_litert(seed: int) -> None:
    """Axes are in order, wherever channels are first or last."""
    case = chain(seed, 1 + seed % 9, ("int8", "uint8")[seed % 2])
    content, values = case.finish(), case.draws()
    actual = tensors(content, values)
    graph = import_model(content)
    results = run_graph(
        graph, {name: values[index] for index, name in zip(case.inputs, graph.inputs, strict=True)}
    )
    for index, (name, value) in zip(case.outputs, results.items(), strict=True):
        assert np.array_equal(value, actual[index]), name


NETWORKS = {
    "convolutions": functools.partial(tflite_networks.convolutions, softmax=False),
    "rows": tflite_networks.rows,
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_layers_of_a_network_are_within_a_step_and_all_on_the_device(name: str, dtype: str) -> None:
    content = NETWORKS[name](5, dtype)
    file = parse(content, name)
    rng = np.random.default_rng(6)
    (source,) = file.inputs
    info = np.iinfo(dtype)
    values = {source: rng.integers(info.min, info.max, file.tensors[source].shape, dtype, endpoint=True)}
    for operator, apart, _, _ in layers(file, tensors(content, values)):
        assert apart <= 1, operator.label
    assert {place for _, _, place, _ in import_model(content).assignment} == {"device"}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_on_the_golden_interpreter_are_exact(name: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    (segment,) = import_model(NETWORKS[name](8, dtype)).segments
    assert isinstance(segment, DeviceSegment)
    inputs = {
        view.buffer.name: rng.integers(-128, 128, view.buffer.shape, np.int8)
        for op in segment.ops
        for view in op.sources
        if view.buffer.kind == "input"
    }
    compare(compile_segment(segment, PRESETS["tiny"]), segment, inputs, PRESETS["tiny"], temps=False)
