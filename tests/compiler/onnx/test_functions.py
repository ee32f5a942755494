"""Functions of one int8 value: as tables they have the bytes that ONNX Runtime computes, for all 256 values."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.function_models import KINDS, WRITTEN_OUT, Chain, check, one_table, silu
from support.graph_runs import device_ops, on_host, run_graph
from support.qdq_models import Quantised
from support.repeated import repeated

from weft.compiler.frontend import import_model
from weft.compiler.host import evaluate
from weft.compiler.ir.graph import Add, Conv, Rescale
from weft.compiler.ir.network import Node
from weft.compiler.onnx.elementwise import LENGTH, PLAIN
from weft.compiler.onnx.functions import Entries, _inherit_undefined
from weft.hdl.isa.config import Config

UNARY: dict[str, dict[str, Any]] = {
    "Abs": {}, "Atan": {}, "Asinh": {}, "Ceil": {}, "Celu": {"alpha": 0.7}, "Cos": {}, "Cosh": {},
    "Elu": {"alpha": 1.3}, "Erf": {}, "Exp": {}, "Floor": {}, "Gelu": {"approximate": "tanh"},
    "HardSigmoid": {"alpha": 0.3}, "HardSwish": {}, "LeakyRelu": {"alpha": 0.1}, "Mish": {}, "Neg": {},
    "Reciprocal": {}, "Round": {}, "Selu": {}, "Shrink": {"lambd": 0.4, "bias": 0.1}, "Sigmoid": {}, "Sign": {},
    "Sin": {}, "Sinh": {}, "Softplus": {}, "Softsign": {}, "Swish": {"alpha": 1.2}, "Tan": {}, "Tanh": {},
    "ThresholdedRelu": {"alpha": 0.6},
    "com.microsoft.Gelu": {}, "com.microsoft.FastGelu": {}, "com.microsoft.QuickGelu": {"alpha": 1.5},
    "ai.onnx.ml.LabelEncoder": {
        "keys_floats": [float(np.float32(0.04) * np.float32(key)) for key in range(-90, 120, 3)],
        "values_floats": [float(key * key % 17 - 8) / 4 for key in range(-90, 120, 3)], "default_float": 0.75,
    },
}  # fmt: skip
OF_PART = {"Acos": 1 / 128, "Asin": 1 / 128, "Atanh": 1 / 128, "Acosh": 1.0, "Log": 0.1, "Sqrt": 0.1}
"""Operators that are defined for some numbers only, here those of uint8 with zero point 0."""
WITH_NUMBER = {
    "Add": (0.3, -40.0), "Sub": (0.3, 5.0), "Mul": (-0.7, 1.4), "Div": (-0.3, 3.0), "Min": (0.4, -7.0),
    "Max": (0.4, -7.0), "Pow": (2.0, 3.0), "PRelu": (0.2, -0.5), "Sum": (0.3, 4.0), "Mean": (0.3, 4.0),
    "Mod": (0.7, 1.1),
}  # fmt: skip
COMMUTATIVE = ("Add", "Mul", "Min", "Max", "Sum", "Mean")


def unary(chain: Chain, op: str, value: str) -> str:
    """A node of an operator in `UNARY` or `OF_PART`, perhaps of another domain."""
    domain, _, name = op.rpartition(".")
    return chain.apply(name, value, **({"domain": domain} if domain else {}), **UNARY.get(op, {}))


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_unary(op: str, dtype: type[np.integer]) -> None:
    chain = Chain(0.04, 77 if dtype == np.uint8 else -11, dtype)
    one_table(chain.finish_with(unary(chain, op, chain.value)), chain.feeds)


@pytest.mark.parametrize("op", OF_PART)
def test_unary_of_numbers_for_which_it_is_defined(op: str) -> None:
    chain = Chain(OF_PART[op], 0, np.uint8)
    value = chain.value
    if op in ("Acos", "Asin", "Atanh"):
        value = chain.apply("Clip", value, -1.0, 1.0)
    if op == "Acosh":
        value = chain.apply("Add", value, 1.0)
    one_table(chain.finish_with(unary(chain, op, value), 0.03), chain.feeds)


@pytest.mark.parametrize(
    ("op", "first"),
    [*((op, False) for op in WITH_NUMBER), *((op, True) for op in (*COMMUTATIVE, "Sub"))],
)
def test_with_a_number(op: str, first: bool) -> None:
    for number in WITH_NUMBER[op]:
        for shape in ((), (1,), (1, 1, 1)):
            chain = Chain(zero=-3)
            constant = chain.constant(np.full(shape, number, np.float32))
            names = (constant, chain.value) if first else (chain.value, constant)
            value = chain.apply(op, *names, **({"fmod": 1} if op == "Mod" else {}))
            check(chain.finish_with(value, 0.05), chain.feeds)
            if op not in ("Mul", "Div"):
                one_table(chain.model(), chain.feeds)


def test_every_plain_operator_is_tried() -> None:
    tried = {*UNARY, *OF_PART, *WITH_NUMBER, "Cast", "Greater", "IsInf", "IsNaN", "Where"}
    logic = {"And", "Or", "Xor", "Not", "Equal", "Less", "LessOrEqual", "GreaterOrEqual"}
    assert {*PLAIN} - tried == logic


def test_logic() -> None:
    """Conditions in between."""
    chain = Chain()
    x = chain.value
    low = chain.apply(
        "And", chain.apply("Less", x, 1.0), chain.apply("Not", chain.apply("LessOrEqual", x, -2.0))
    )
    either = chain.apply(
        "Xor", low, chain.apply("Or", chain.apply("Equal", x, 0.0), chain.apply("GreaterOrEqual", x, 3.0))
    )
    value = chain.apply(
        "Where", either, chain.apply("Cast", either, to=TensorProto.FLOAT), chain.apply("Exp", x)
    )
    one_table(chain.finish_with(value, 0.1), chain.feeds)


def test_numbers_that_are_none_and_are_replaced() -> None:
    chain = Chain()
    value = chain.apply("Log", chain.value)
    value = chain.apply("Where", chain.apply("IsNaN", value), -1.0, value)
    value = chain.apply("Where", chain.apply("IsInf", value), 1.5, value)
    one_table(chain.finish_with(value), chain.feeds)


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("opset", [13, 17, 24])
def test_written_out(name: str, opset: int) -> None:
    chain = Chain(0.06, -9, opset=opset)
    one_table(chain.finish_with(WRITTEN_OUT[name](chain, chain.value), 0.04, -100), chain.feeds)


class Rounded(Chain):
    """With a Q/DQ pair behind every operator, of a step that is its own, and constants of 8 bits."""

    def apply(self, op: str, *inputs: str | float, **attributes: Any) -> str:
        names = [name if isinstance(name, str) else self.eight_bits(name) for name in inputs]
        result = self.node(op, names, **attributes)
        return result if op == "Greater" else self.round_trip(result, 0.05 + 0.003 * len(self.nodes), -20)

    def eight_bits(self, value: float) -> str:
        step = abs(value) / 100 or 1.0
        return self.add_dequantise(self.constant(np.array(np.sign(value) * 100, np.int8)), step)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_written_out_with_rounding(name: str) -> None:
    """Q/DQ pairs in between make no step of their own on the device."""
    chain = Rounded(0.06, -9)
    model = chain.finish_with(WRITTEN_OUT[name](chain, chain.value), 0.04, -100)
    one_table(model, chain.feeds)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 0.02, 3.0, 1e10, 1e30])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("extreme", [False, True])
def test_scales(scale: float, dtype: type[np.integer], extreme: bool) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    for zero in (least, most, (least + most) // 2):
        for op in ("Exp", "Tanh", "Mish", "Reciprocal"):
            chain = Chain(scale, zero, dtype)
            steps = scale if extreme else 0.013
            one_table(
                chain.finish_with(unary(chain, op, chain.value), steps, most - zero + least, dtype),
                chain.feeds,
            )


STEPS = (*(op for op in UNARY if op not in ("Exp", "Cosh", "Sinh", "Tan")), "round", "move", "join", "number")


@repeated("seed", range(40))
def test_random_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = np.uint8 if rng.integers(2) else np.int8
    info = np.iinfo(dtype)
    chain = Chain(float(10 ** rng.uniform(-3, 0)), int(rng.integers(info.min, info.max + 1)), dtype)
    values = [chain.value]
    for _ in range(int(rng.integers(1, 7))):
        kind = str(rng.choice([*STEPS[-4:], str(rng.choice(STEPS))]))
        value = values[-1]
        if kind == "round":
            value = chain.round_trip(value, float(10 ** rng.uniform(-2, 0)), int(rng.integers(-128, 128)))
        elif kind == "move":
            shape = chain.node("Reshape", [value, chain.constant(np.array([4, 64], np.int64))])
            value = chain.node("Reshape", [shape, chain.constant(np.array(chain.shape, np.int64))])
        elif kind == "join":
            other = values[int(rng.integers(len(values)))]
            value = chain.apply(str(rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), value, other)
        elif kind == "number":
            value = chain.apply(
                str(rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), value, float(rng.normal())
            )
        else:
            value = unary(chain, kind, value)
        values.append(value)
    value = chain.apply("Sigmoid", values[-1])
    one_table(chain.finish_with(value, 1 / 256, 0, np.uint8), chain.feeds)


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_value_in_the_middle_that_others_read(host: bool, dtype: type[np.integer]) -> None:
    """The later table starts from it, so that the older value need not be kept."""
    chain = Chain()
    first = chain.add_quantise(silu(chain, chain.value), 0.03, 40, dtype)
    again = chain.add_dequantise(first, 0.03, 40, dtype)
    if host:
        chain.give(chain.apply("LogSoftmax", again), TensorProto.FLOAT)
    else:
        chain.give(first, KINDS[dtype])
    graph = check(chain.finish_with(chain.apply("Tanh", again)), chain.feeds)
    one, other = device_ops(graph)
    assert other.src.buffer.name == one.dst.buffer.name
    assert {name.split("_")[0] for name in on_host(graph)} == ({"logsoftmax"} if host else set())


def test_a_float_in_the_middle_that_the_host_reads() -> None:
    chain = Chain()
    middle = chain.apply("Sigmoid", chain.value)
    chain.give(middle, TensorProto.FLOAT)
    graph = check(chain.finish_with(chain.apply("Mul", chain.value, middle)), chain.feeds)
    assert len(device_ops(graph)) == 1
    (reason,) = [why for name, why in on_host(graph).items() if name.startswith("sigmoid")]
    assert reason == "its result is an output of the model in float"


def test_chains_of_private_values_are_one_table() -> None:
    """A final requantisation, which is no table by itself, is included."""
    chain = Chain()
    value = chain.round_trip(chain.apply("Tanh", chain.round_trip(silu(chain, chain.value))))
    one_table(chain.finish_with(chain.apply("Relu", value)), chain.feeds)


def test_plain_requantisation_stays() -> None:
    for op, given in (("Relu", ()), ("Clip", (-1.0, 2.0)), ("Mul", (0.7,)), ("Identity", ())):
        chain = Chain()
        model = chain.finish_with(chain.apply(op, chain.value, *given), 0.07)
        assert plain(model) == 1
    chain = Chain()
    value = chain.round_trip(chain.apply("Relu", chain.value))
    assert plain(chain.finish_with(chain.apply("Clip", value, -1.0, 2.0), 0.07)) == 2


def plain(model: onnx.ModelProto) -> int:
    """The number of device operators, all of which are requantisations without a table."""
    ops = device_ops(import_model(model))
    assert all(isinstance(op, Rescale) and op.lookup is None for op in ops)
    return len(ops)


def test_requantisation_of_a_table_that_others_read_stays() -> None:
    chain = Chain()
    first = chain.add_quantise(chain.apply("Tanh", chain.value), 0.01)
    chain.give(first, TensorProto.INT8)
    model = chain.finish_with(chain.apply("Relu", chain.add_dequantise(first, 0.01)))
    one, other = device_ops(check(model, chain.feeds, steps=1))
    assert one.lookup is not None
    assert other.lookup is None


@pytest.mark.parametrize("rounded", [False, True])
def test_residual(rounded: bool) -> None:
    """x + f(x) is a function of x; with another value it is an addition."""
    chain = Chain()
    result = silu(chain, chain.value)
    result = chain.round_trip(result) if rounded else result
    one_table(chain.finish_with(chain.apply("Add", chain.value, result)), chain.feeds)
    chain = Chain()
    other = chain.round_trip(chain.apply("Hardmax", chain.value))
    model = chain.finish_with(chain.apply("Add", chain.round_trip(silu(chain, chain.value)), other))
    assert [type(op) for op in device_ops(check(model, chain.feeds, steps=1))] == [Rescale, Add]


def test_scalars_beside_an_activation_without_tables() -> None:
    chain = Chain()
    model = chain.finish_with(chain.apply("Add", chain.value, 0.3))
    assert [type(op) for op in device_ops(import_model(model))] == [Rescale]
    graph = import_model(model, config=Config(lookup_tables=0))
    assert [type(op) for op in device_ops(graph)] == [Conv]


def test_constants_by_channel_are_no_numbers() -> None:
    chain = Chain()
    slope = chain.constant(np.array([0.1, 0.2, 0.3, 0.4], np.float32).reshape(4, 1, 1))
    graph = check(chain.finish_with(chain.apply("Max", chain.value, slope)), chain.feeds)
    assert not device_ops(graph)
    chain = Chain()
    offset = chain.constant(np.array([0.1, 0.2, 0.3, 0.4], np.float32).reshape(4, 1, 1))
    model = chain.finish_with(chain.apply("Add", chain.value, offset))
    assert [type(op) for op in device_ops(import_model(model))] == [Conv]


def test_scales_by_channel_are_no_function() -> None:
    chain = Chain()
    scales = chain.constant(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    value = chain.node("DequantizeLinear", ["source", scales], axis=1)
    graph = check(chain.finish_with(chain.apply("Sigmoid", value)), chain.feeds)
    assert not device_ops(graph)


def test_operand_that_enlarges_the_value_is_no_scalar() -> None:
    chain = Chain(shape=(256,))
    wide = chain.node("Reshape", [chain.value, chain.constant(np.array([256, 1], np.int64))])
    value = chain.apply("Max", chain.value, wide)
    chain.give(chain.add_quantise(value, 0.1), TensorProto.INT8, (256, 256))
    assert not device_ops(check(chain.model(), chain.feeds))


@pytest.mark.parametrize("inner", [False, True])
def test_transposed_operand_is_another(inner: bool) -> None:
    chain = Chain(shape=(16, 16))
    value = of_device(chain) if inner else chain.value
    turned = chain.node("Transpose", [value])
    graph = check(chain.finish_with(chain.apply("Sum", value, turned)), chain.feeds)
    assert len(device_ops(graph)) == inner


def of_device(chain: Chain) -> str:
    """A value that the device makes of one that the host makes."""
    value = chain.round_trip(chain.apply("Hardmax", chain.value))
    return chain.round_trip(chain.apply("Tanh", value), 0.01)


def test_transposed_for_a_convolution() -> None:
    chain = Chain(0.02, 3, np.uint8, shape=(1, 8, 8, 4))
    value = chain.apply("Sigmoid", chain.node("Transpose", [chain.value], perm=(0, 3, 1, 2)))
    middle = chain.add_quantise(value, 1 / 200, -100)
    result = chain.conv(Quantised(middle, (1, 4, 8, 8), 1 / 200, -100, unsigned=False), 3, (1, 1))
    chain.give(result.name, TensorProto.UINT8 if result.unsigned else TensorProto.INT8, result.shape)
    graph = check(chain.model(), chain.feeds)
    assert [type(op) for op in device_ops(graph)] == [Rescale, Conv]
    assert not on_host(graph)


def test_transposed_into_an_order_that_few_operators_take() -> None:
    chain = Chain(shape=(2, 2, 64))
    turned = chain.node("Transpose", [of_device(chain)], perm=(1, 2, 0))
    pair = [chain.number(0.001), chain.constant(np.array(0, np.int16))]
    fine = chain.node("DequantizeLinear", [chain.node("QuantizeLinear", [turned, *pair]), *pair])
    chain.give(chain.add_quantise(chain.apply("Sin", fine), 0.01), TensorProto.INT8, (2, 64, 2))
    graph = check(chain.model(), chain.feeds)
    assert not [name for name in on_host(graph) if name.startswith("transpose")]
    assert len(device_ops(graph)) == 1


def test_reshaped_in_front() -> None:
    chain = Chain()
    shape = (4, 64)
    chain.nodes.clear()
    moved = chain.node("Reshape", ["source", chain.constant(np.array(shape, np.int64))])
    value = chain.apply("Sigmoid", chain.add_dequantise(moved, 0.05))
    chain.give(chain.add_quantise(value, 1 / 256), TensorProto.INT8, shape)
    graph = one_table(chain.model(), chain.feeds)
    assert {reason for _, _, _, reason in graph.assignment} == {""}


@pytest.mark.parametrize("shape", [(4, 64), (1, 4, 8, 8), (2, 2, 64)])
@pytest.mark.parametrize("at", range(3))
def test_transposed_on_the_way(shape: tuple[int, ...], at: int) -> None:
    """In front, between and behind the operators, of the model's input and of a convolution's result."""
    for inner in (False, True):
        chain = Chain(shape=shape)
        value = chain.value
        if inner:
            value = of_device(chain)
        perm = (0, 2, 3, 1) if len(shape) == 4 else tuple(reversed(range(len(shape))))
        for step in range(3):
            value = chain.node("Transpose", [value], perm=perm) if step == at else value
            value = chain.apply("Sin", value) if step < 2 else value
        chain.give(chain.add_quantise(value, 0.01), TensorProto.INT8, tuple(shape[axis] for axis in perm))
        graph = check(chain.model(), chain.feeds)
        assert len(device_ops(graph)) == 1, on_host(graph)


def test_operators_of_bytes_and_sixteen_bits_between() -> None:
    """A dequantisation written out, and a Q/DQ pair that is finer than the device's."""
    chain = Chain()
    value = chain.apply(
        "Mul", chain.apply("Sub", chain.apply("Cast", "source", to=TensorProto.FLOAT), 3.0), 0.1
    )
    pair = [chain.number(0.001), chain.constant(np.array(0, np.int16))]
    fine = chain.node("DequantizeLinear", [chain.node("QuantizeLinear", [value, *pair]), *pair])
    one_table(chain.finish_with(chain.apply("Sigmoid", fine), 1 / 256, -128), chain.feeds)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_floats_between(dtype: int) -> None:
    chain = Chain()
    value = chain.apply("Sqrt", chain.apply("Abs", chain.apply("Cast", chain.value, to=dtype)))
    one_table(chain.finish_with(chain.apply("Cast", value, to=TensorProto.FLOAT)), chain.feeds)


def test_long_chains_are_left_alone() -> None:
    chain = Chain()
    value = chain.value
    for _ in range(2 * LENGTH):
        value = chain.apply("Sin", value)
    graph = check(chain.finish_with(value), chain.feeds)
    assert not device_ops(graph)


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """The onnx package's own evaluator gives the same but for a step where results lie between two."""
    chain = Chain(0.06, -9)
    model = chain.finish_with(silu(chain, chain.value), 0.04, -100)
    expected = run_graph(import_model(model), chain.feeds)
    monkeypatch.setattr(evaluate, "runtime", lambda: None)
    graph = import_model(model)
    assert len(device_ops(graph)) == 1
    for name, value in run_graph(graph, chain.feeds).items():
        assert np.abs(value.astype(int) - expected[name]).max() <= 1


def test_where_inherits_undefined_values() -> None:
    """An entry is undefined if its condition or its selected value is."""
    flags = np.array(list(itertools.product([False, True], repeat=4)))
    unknown, chosen, yes, no = flags.T
    given = tuple(
        Entries(np.zeros(16) if values is None else values, undefined)
        for values, undefined in ((chosen, unknown), (None, yes), (None, no))
    )
    node = Node("Where", ("c", "a", "b"), ("y",))
    assert _inherit_undefined(node, given).astype(bool).tolist() == [
        u or (a if c else b) for u, c, a, b in flags.tolist()
    ]
    assert _inherit_undefined(Node("Add", ("a", "b"), ("y",)), given[1:]).tolist() == (yes | no).tolist()
    assert not _inherit_undefined(Node("IsNaN", ("a",), ("y",)), given[1:2]).any()
