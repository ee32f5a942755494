"""StableHLO with quantised types, and with quantisation written as operations, against numpy and JAX."""
# ruff: noqa: E501  # operations are printed in one line

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.graph_runs import on_host, run_graph

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.host.onnx_model import model_of
from weft.compiler.ir.network import Network
from weft.compiler.onnx.links import expand
from weft.extras.mlir.reader import read

HERE = Path(__file__).parent
RUNS = np.load(HERE / "jax_runs.npz")


def function(body: str, types: str, result: str) -> bytes:
    """Return a module with one function, whose last operation defines %r."""
    return f"module {{\n  func.func @main({types}) -> {result} {{\n{body}\n    return %r : {result}\n  }}\n}}\n".encode()


def quantised_type(shape: str, scale: float = 0.5, zero: int = 3, stored: str = "i8") -> str:
    return f"tensor<{shape}x!quant.uniform<{stored}:f32, {scale}:{zero}>>"


def level(value: np.ndarray, scale: float, zero: int) -> np.ndarray:
    return np.clip(np.rint(value / scale) + zero, -128, 127)


def open_session(network: Network) -> onnxruntime.InferenceSession:
    """Return a session without graph optimisations, which fail on Transpose next to QuantizeLinear of version 21."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model_of(expand(network)).SerializeToString(), options)


# JAX


def test_quantisation_written_out_by_jax() -> None:
    """Convolutions, sums, pools, a mean, a product and softmax all run on the device. Logits differ by at most one
    step of 0.1, where JAX's floats are near a tie."""
    graph = import_model(HERE / "jax_floats.mlir")
    assert on_host(graph) == {}
    operators = {operator for _, operator, place, _ in graph.assignment if place == "device"}
    assert {"Conv", "Add", "MaxPool", "AveragePool", "ReduceMean", "MatMul", "Softmax", "Relu"} <= operators
    for x, wanted in zip(RUNS["floats_x"], RUNS["floats_y"], strict=True):
        (actual,) = run_graph(graph, {"arg0": x}).values()
        assert np.abs(actual - wanted).max() <= 0.03
        assert wanted.std() > 0.01


def test_rows_by_jax() -> None:
    """Activations, normalisation of rows, products of activations and softmax, with batch axes."""
    graph = import_model(HERE / "jax_rows.mlir")
    assert on_host(graph) == {}
    operators = {node.operator for node in read((HERE / "jax_rows.mlir").read_bytes()).nodes}
    assert {"Erf", "ReduceMean", "Sqrt", "Softmax", "MatMul", "Slice", "Concat"} <= operators
    for x, wanted in zip(RUNS["rows_x"], RUNS["rows_y"], strict=True):
        (actual,) = run_graph(graph, {"arg0": x}).values()
        assert np.abs(actual - wanted).max() < 0.11


def test_products_of_integers_by_jax() -> None:
    graph = import_model(HERE / "jax_integers.mlir")
    assert on_host(graph) == {}
    for x, wanted in zip(RUNS["integers_x"], RUNS["integers_y"], strict=True):
        (actual,) = run_graph(graph, {"arg0": x}).values()
        assert np.abs(actual.astype(int) - wanted).max() <= 1
        assert np.mean(actual == wanted) > 0.9


def test_jax_and_onnx_runtime_agree_on_the_network() -> None:
    """The network computes JAX's function up to the last bits of floats."""
    for name in ("floats", "integers"):
        network = read((HERE / f"jax_{name}.mlir").read_bytes())
        session = open_session(network)
        for x, wanted in zip(RUNS[f"{name}_x"], RUNS[f"{name}_y"], strict=True):
            (actual,) = session.run(None, {"arg0": x})
            assert np.abs(actual.astype(float) - wanted).max() <= (0.03 if name == "floats" else 1)


# Quantised types: scales are powers of two, so that all is exact


def run_text(text: bytes, **feeds: np.ndarray) -> np.ndarray:
    graph = import_model(text)
    assert on_host(graph) == {}
    (actual,) = run_graph(graph, feeds).values()
    return actual


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def test_quantised_convolution() -> None:
    weights = np.random.default_rng(1).integers(-127, 128, (3, 3, 2, 4)).astype(np.int8)
    scales = [0.25, 0.5, 0.125, 0.25]
    filters = f"tensor<3x3x2x4x!quant.uniform<i8<-127:127>:f32:3, {{{', '.join(map(str, scales))}}}>>"
    sums = f"tensor<1x4x4x4x!quant.uniform<i32:f32:3, {{{', '.join(str(scale / 2) for scale in scales)}}}>>"
    body = f"""
    %w = stablehlo.constant() {{value = dense<"0x{weights.tobytes().hex()}"> : tensor<3x3x2x4xi8>}} : () -> {filters}
    %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{pad = [[1, 1], [1, 1]]}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({quantised_type("1x4x4x2")}, {filters}) -> {sums}
    %r = stablehlo.uniform_quantize %0 : ({sums}) -> {quantised_type("1x4x4x4", 64.0, -9)}"""
    text = function(body, f"%x: {quantised_type('1x4x4x2')}", quantised_type("1x4x4x4", 64.0, -9))
    x = bytes_of(1, 4, 4, 2)
    real = np.pad((x - 3.0) * 0.5, ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = sum(
        np.einsum("nhwi,io->nhwo", real[:, dy : dy + 4, dx : dx + 4], weights[dy, dx] * np.array(scales))
        for dy in range(3)
        for dx in range(3)
    )
    np.testing.assert_array_equal(run_text(text, x=x), level(np.asarray(wanted), 64, -9))


@pytest.mark.parametrize(
    "product", ["stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]", "stablehlo.dot %x, %w"]
)
def test_quantised_product_and_bias(product: str) -> None:
    weights, bias = bytes_of(6, 3, seed=1), np.array([100, -2000, 3], np.int32)
    kind, sums = "tensor<6x3x!quant.uniform<i8:f32, 0.25>>", "tensor<2x3x!quant.uniform<i32:f32, 0.125>>"
    row = "tensor<3x!quant.uniform<i32:f32, 0.125>>"
    body = f"""
    %w = stablehlo.constant() {{value = dense<{weights.tolist()}> : tensor<6x3xi8>}} : () -> {kind}
    %b = stablehlo.constant() {{value = dense<{bias.tolist()}> : tensor<3xi32>}} : () -> {row}
    %0 = {product} : ({quantised_type("2x6")}, {kind}) -> {sums}
    %1 = stablehlo.broadcast_in_dim %b, dims = [1] : ({row}) -> {sums}
    %2 = stablehlo.add %0, %1 : {sums}
    %r = stablehlo.uniform_quantize %2 : ({sums}) -> {quantised_type("2x3", 32.0, 5)}"""
    x = bytes_of(2, 6)
    wanted = level(((x - 3.0) * 0.5) @ (weights * 0.25) + bias * 0.125, 32, 5)
    np.testing.assert_array_equal(
        run_text(function(body, f"%x: {quantised_type('2x6')}", quantised_type("2x3", 32.0, 5)), x=x), wanted
    )


@pytest.mark.parametrize("text", [
    "<{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0, 2], rhs_batching_dimensions = [1, 0], "
    "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [2]>}> : ",
    "contracting_dims = [1] x [2], batching_dims = [0, 2] x [1, 0] : ",
], ids=["generic", "short"])  # fmt: skip
def test_products_with_batches(text: str) -> None:
    """Contraction along different axes of both sides: batch axes come first in the result, then the free axes."""
    one, other, result = quantised_type("2x5x3x4"), quantised_type("3x2x5x6"), "2x3x4x6"
    sums = f"tensor<{result}x!quant.uniform<i32:f32, 0.25>>"
    generic = "dot_dimension" in text
    name = '"stablehlo.dot_general"(%x, %y) ' if generic else "stablehlo.dot_general %x, %y, "
    body = f"""
    %0 = {name}{text}({one}, {other}) -> {sums}
    %r = stablehlo.uniform_quantize %0 : ({sums}) -> {quantised_type(result, 64.0, 5)}"""
    x, y = bytes_of(2, 5, 3, 4), bytes_of(3, 2, 5, 6, seed=1)
    wanted = level(np.einsum("akbc,bakd->abcd", (x - 3.0) * 0.5, (y - 3.0) * 0.5), 64, 5)
    network = read(function(body, f"%x: {one}, %y: {other}", quantised_type(result, 64.0, 5)))
    (actual,) = open_session(network).run(None, {"x": x, "y": y})
    np.testing.assert_array_equal(actual, wanted)


def test_plain_integers_become_floats() -> None:
    """Integers without quantisation keep their values."""
    floats, wholes = "tensor<2x6xf32>", "tensor<2x6xi32>"
    body = f"""
    %0 = stablehlo.uniform_dequantize %q : ({quantised_type("2x6")}) -> {floats}
    %1 = stablehlo.convert %x : ({wholes}) -> {floats}
    %r = stablehlo.add %0, %1 : {floats}"""
    network = read(function(body, f"%q: {quantised_type('2x6')}, %x: {wholes}", floats))
    q, x = bytes_of(2, 6), bytes_of(2, 6, seed=1).astype(np.int32) * 1000
    (actual,) = open_session(network).run(None, {"q": q, "x": x})
    np.testing.assert_array_equal(actual, (q - 3.0) * 0.5 + x)


@pytest.mark.parametrize(
    ("direction", "meaning"),
    [
        ("EQ", np.equal), ("NE", np.not_equal), ("GT", np.greater), ("GE", np.greater_equal), ("LT", np.less),
        ("LE", np.less_equal),
    ],
)  # fmt: skip
def test_comparisons(direction: str, meaning: Callable[..., np.ndarray]) -> None:
    floats, quantised = "tensor<2x6xf32>", quantised_type("2x6")
    body = f"""
    %0 = stablehlo.uniform_dequantize %x : ({quantised}) -> {floats}
    %1 = stablehlo.uniform_dequantize %y : ({quantised}) -> {floats}
    %2 = stablehlo.compare {direction}, %0, %1, FLOAT : ({floats}, {floats}) -> tensor<2x6xi1>
    %3 = stablehlo.add %0, %0 : {floats}
    %r = stablehlo.select %2, %3, %1 : tensor<2x6xi1>, {floats}"""
    x = bytes_of(2, 6)
    y = np.where(np.arange(6) % 3, bytes_of(2, 6, seed=1), x)
    network = read(function(body, f"%x: {quantised}, %y: {quantised}", floats))
    (actual,) = open_session(network).run(None, {"x": x, "y": y})
    one, other = ((value - 3.0) * 0.5 for value in (x, y))
    np.testing.assert_array_equal(actual, np.where(meaning(one, other), 2 * one, other))


def test_broadcast_integers_are_compared_as_numbers() -> None:
    """A quantised value next to them makes the model readable."""
    floats, wholes, quantised = "tensor<2x6xf32>", "tensor<2x6xi8>", quantised_type("2x6")
    body = f"""
    %0 = stablehlo.uniform_dequantize %q : ({quantised}) -> {floats}
    %1 = stablehlo.broadcast_in_dim %y, dims = [1] : (tensor<6xi8>) -> {wholes}
    %2 = stablehlo.compare LT, %x, %1, SIGNED : ({wholes}, {wholes}) -> tensor<2x6xi1>
    %3 = stablehlo.add %0, %0 : {floats}
    %r = stablehlo.select %2, %3, %0 : tensor<2x6xi1>, {floats}"""
    network = read(function(body, f"%q: {quantised}, %x: {wholes}, %y: tensor<6xi8>", floats))
    q, x, y = bytes_of(2, 6), bytes_of(2, 6, seed=1), bytes_of(6, seed=2)
    (actual,) = open_session(network).run(None, {"q": q, "x": x, "y": y})
    real = (q - 3.0) * 0.5
    np.testing.assert_array_equal(actual, np.where(x < y, 2 * real, real))


INTEGERS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "abs": ("abs %1", lambda x, y: np.abs(y) + 0 * x),
    "negate": ("negate %1", lambda x, y: 0 * x - y),
    "sign": ("sign %1", lambda x, y: np.sign(y) + 0 * x),
    "clamp between them": ("clamp %1, %x, %3", lambda x, y: np.minimum(np.maximum(x, y), y + y)),
    "clamp them": ("clamp %x, %1, %2", lambda x, y: np.minimum(np.maximum(y, x), x * x)),
    "clamp by constants": ("clamp %low, %1, %high", lambda x, y: np.clip(y, -2, 3) + 0 * x),
    "add": ("add %1, %x", lambda x, y: x + y),
    "minimum": ("minimum %x, %1", np.minimum),
    "exclusive or": ("xor %1, %x", np.bitwise_xor),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_broadcast_integers_stay_integers(name: str) -> None:
    operation, meaning = INTEGERS[name]
    floats, wholes, quantised = "tensor<2x6xf32>", "tensor<2x6xi32>", quantised_type("2x6")
    body = f"""
    %0 = stablehlo.uniform_dequantize %q : ({quantised}) -> {floats}
    %1 = stablehlo.broadcast_in_dim %y, dims = [1] : (tensor<6xi32>) -> {wholes}
    %2 = stablehlo.multiply %x, %x : {wholes}
    %3 = stablehlo.add %1, %1 : {wholes}
    %low = stablehlo.constant dense<-2> : {wholes}
    %high = stablehlo.constant dense<3> : {wholes}
    %4 = stablehlo.{operation} : {wholes}
    %5 = stablehlo.convert %4 : ({wholes}) -> {floats}
    %r = stablehlo.add %0, %5 : {floats}"""
    network = read(function(body, f"%q: {quantised}, %x: {wholes}, %y: tensor<6xi32>", floats))
    rng = np.random.default_rng(1)
    q, x, y = bytes_of(2, 6), *(rng.integers(-9, 10, shape).astype(np.int32) for shape in ((2, 6), 6))
    (actual,) = open_session(network).run(None, {"q": q, "x": x, "y": y})
    np.testing.assert_array_equal(actual, (q - 3.0) * 0.5 + meaning(x, y))


@pytest.mark.parametrize(("combined", "start"), [("add", 0), ("maximum", -(1 << 31)), ("multiply", 1)])
def test_broadcast_integers_are_reduced_as_integers(combined: str, start: int) -> None:
    floats, wholes, quantised = "tensor<6xf32>", "tensor<2x6xi32>", quantised_type("6")
    body = f"""
    %0 = stablehlo.uniform_dequantize %q : ({quantised}) -> {floats}
    %1 = stablehlo.broadcast_in_dim %y, dims = [1] : (tensor<6xi32>) -> {wholes}
    %c = stablehlo.constant dense<{start}> : tensor<i32>
    %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.{combined} across dimensions = [0] : ({wholes}, tensor<i32>) -> tensor<6xi32>
    %3 = stablehlo.convert %2 : (tensor<6xi32>) -> {floats}
    %r = stablehlo.add %0, %3 : {floats}"""
    network = read(function(body, f"%q: {quantised}, %y: tensor<6xi32>", floats))
    q, y = bytes_of(6), np.random.default_rng(1).integers(-9, 10, 6).astype(np.int32)
    (actual,) = open_session(network).run(None, {"q": q, "y": y})
    wanted = {"add": 2 * y, "maximum": y, "multiply": y * y}[combined]
    np.testing.assert_array_equal(actual, (q - 3.0) * 0.5 + wanted)


ELEMENTS = {
    "add": ("stablehlo.add %x, %y", lambda x, y: x + y),
    "subtract": ("stablehlo.subtract %x, %y", lambda x, y: x - y),
    "multiply": ("stablehlo.multiply %x, %y", lambda x, y: x * y),
    "logistic": ("stablehlo.logistic %x", lambda x, y: 1 / (1 + np.exp(-x.astype(np.float32)))),
    "tanh": ("stablehlo.tanh %x", lambda x, y: np.tanh(x.astype(np.float32))),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_quantised_elements(name: str) -> None:
    operation, meaning = ELEMENTS[name]
    quantised = quantised_type("1x4x16x4", 0.0625, -7)
    result = quantised_type("1x4x16x4", 0.25, 1)
    types = ", ".join([quantised] * operation.count("%"))
    text = function(
        f"    %r = {operation} : ({types}) -> {result}", f"%x: {quantised}, %y: {quantised}", result
    )
    x, y = bytes_of(1, 4, 16, 4), bytes_of(1, 4, 16, 4, seed=1)
    wanted = level(meaning((x + 7.0) / 16, (y + 7.0) / 16), 0.25, 1)
    feeds = {"x": x, "y": y}
    graph = import_model(text)
    assert on_host(graph) == {}
    (actual,) = run_graph(graph, {name: feeds[name] for name in graph.inputs}).values()
    np.testing.assert_array_equal(actual, wanted)


MOVES = {
    "transpose": (
        "stablehlo.transpose %x, dims = [0, 3, 1, 2]",
        "1x2x4x6",
        lambda x: x.transpose(0, 3, 1, 2),
    ),
    "reshape": ("stablehlo.reshape %x", "1x48", lambda x: x.reshape(1, 48)),
    "slice": ("stablehlo.slice %x [0:1, 1:3, 0:6:2, 0:2]", "1x2x3x2", lambda x: x[:, 1:3, 0:6:2]),
    "reverse": ("stablehlo.reverse %x, dims = [1, 2]", "1x4x6x2", lambda x: x[:, ::-1, ::-1]),
    "concatenate": ("stablehlo.concatenate %x, %x, dim = 3", "1x4x6x4", lambda x: np.concatenate([x, x], 3)),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_of_stored_elements(name: str) -> None:
    operation, shape, meaning = MOVES[name]
    quantised = quantised_type("1x4x6x2")
    types = ", ".join([quantised] * operation.count("%"))
    text = function(
        f"    %r = {operation} : ({types}) -> {quantised_type(shape)}",
        f"%x: {quantised}",
        quantised_type(shape),
    )
    x = bytes_of(1, 4, 6, 2)
    (actual,) = run_graph(import_model(text), {"x": x}).values()
    np.testing.assert_array_equal(actual, meaning(x))


def test_pools() -> None:
    quantised, shape = quantised_type("1x4x6x2"), "1x2x3x2"
    scalar = "tensor<!quant.uniform<i8:f32, 0.5:3>>"
    body = f"""
    %c = stablehlo.constant() {{value = dense<-128> : tensor<i8>}} : () -> {scalar}
    %r = "stablehlo.reduce_window"(%x, %c) <{{window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}}> ({{
    ^bb0(%a: {scalar}, %b: {scalar}):
      %0 = stablehlo.maximum %a, %b : {scalar}
      stablehlo.return %0 : {scalar}
    }}) : ({quantised}, {scalar}) -> {quantised_type(shape)}"""
    x = bytes_of(1, 4, 6, 2)
    actual = run_text(function(body, f"%x: {quantised}", quantised_type(shape)), x=x)
    np.testing.assert_array_equal(actual, x.reshape(1, 2, 2, 3, 2, 2).max((2, 4)))


# Chains


def chain(*lines: str, result: str = "tensor<1x4xi8>") -> bytes:
    start = "    %s = stablehlo.constant dense<0.25> : tensor<1x4xf32>\n    %i = stablehlo.constant dense<4.0> : tensor<1x4xf32>\n"
    start += "    %z = stablehlo.constant dense<7.0> : tensor<1x4xf32>\n    %l = stablehlo.constant dense<-100.0> : tensor<f32>\n"
    start += "    %h = stablehlo.constant dense<90.0> : tensor<f32>\n"
    return function(start + "\n".join(f"    {line}" for line in lines), "%x: tensor<1x4xf32>", result)


F = "tensor<1x4xf32>"
CLAMPED = ("(tensor<f32>, tensor<1x4xf32>, tensor<f32>) -> tensor<1x4xf32>", f"({F}) -> tensor<1x4xi8>")
CHAINS = {
    "divide": (f"%0 = stablehlo.divide %x, %s : {F}", f"%1 = stablehlo.round_nearest_even %0 : {F}",
               f"%2 = stablehlo.add %1, %z : {F}", f"%3 = stablehlo.clamp %l, %2, %h : {CLAMPED[0]}",
               f"%r = stablehlo.convert %3 : {CLAMPED[1]}"),
    "reciprocal": (f"%0 = stablehlo.multiply %i, %x : {F}", f"%1 = stablehlo.round_nearest_even %0 : {F}",
                   f"%2 = stablehlo.subtract %1, %z : {F}", f"%3 = stablehlo.clamp %l, %2, %h : {CLAMPED[0]}",
                   f"%r = stablehlo.convert %3 : {CLAMPED[1]}"),
    "clamped first": (f"%0 = stablehlo.divide %x, %s : {F}", f"%1 = stablehlo.round_nearest_even %0 : {F}",
                      f"%3 = stablehlo.clamp %l, %1, %h : {CLAMPED[0]}", f"%4 = stablehlo.add %3, %z : {F}",
                      f"%r = stablehlo.convert %4 : {CLAMPED[1]}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains_that_quantise(name: str) -> None:
    network = read(chain(*CHAINS[name]))
    (node,) = network.nodes
    assert (node.operator, network.quantisation.keys()) == ("Clip", {*node.outputs})
    (quantisation,) = network.quantisation.values()
    zero = {"divide": 7, "reciprocal": -7, "clamped first": 7}[name]
    assert (quantisation.scales, quantisation.zeros) == (np.float32(0.25), zero)
    x = np.array([[-100.0, 0.125, 0.375, 100.0]], np.float32)
    session = open_session(network)
    shift = 7 if name == "clamped first" else 0
    wanted = np.clip(np.rint(x * 4) + zero, -100 + shift, 90 + shift)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)


@pytest.mark.parametrize("name", ["divide", "reciprocal"])
def test_chains_without_rounding_are_refused(name: str) -> None:
    """Conversion truncates, which is not quantisation, so the model is not quantised."""
    lines = [line for line in CHAINS[name] if "round" not in line]
    lines[1] = lines[1].replace("%1", "%0")
    with pytest.raises(CompileError, match="not quantised"):
        read(chain(*lines))


REFUSED = {
    "unknown": ("%r = stablehlo.cholesky %x : tensor<1x4xf32>", r"line 8: stablehlo.cholesky is not supported"),
    "operands": ("%r = stablehlo.add %x : tensor<1x4xf32>", r"has 1 operands; it takes 2$"),
    "no operands": ('%r = "stablehlo.concatenate"() {dim = 0 : i64} : () -> tensor<1x4xf32>',
                    r"has 0 operands; it takes 1 or more$"),
    "many operands": ("%r = tosa.mul %x, %x, %x, %x : (tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, "
                      "tensor<1x4xf32>) -> tensor<1x4xf32>", r"has 4 operands; it takes 2 to 3$"),
    "shape": ("%r = stablehlo.reshape %x : (tensor<1x4xf32>) -> tensor<1x5xf32>", "which has a different number of elements"),
    "results": ("%q:2 = stablehlo.abs %x : (tensor<1x4xf32>) -> (tensor<1x4xf32>, tensor<1x4xf32>)\n"
                "    %r = stablehlo.abs %q#0 : tensor<1x4xf32>", "line 8: stablehlo.abs has 2 results"),
    "axes": ("%r = stablehlo.transpose %x, dims = [0, 5] : (tensor<1x4xf32>) -> tensor<1x4xf32>", "has permutation"),
    "slice": ("%r = stablehlo.slice %x [0:1, 2:9] : (tensor<1x4xf32>) -> tensor<1x7xf32>", "takes 2:9:1 of an axis of 4"),
    "type": ("%r = stablehlo.convert %x : (tensor<1x4xf32>) -> tensor<1x4xcomplex<f32>>", "not supported"),
    "contradiction": ("%q = stablehlo.convert %x : (tensor<1x4xf32>) -> tensor<1x4xi8>\n    %f = stablehlo.convert %q : "
                      "(tensor<1x4xi8>) -> tensor<1x4xf32>\n    %r = stablehlo.abs %f : (tensor<1x4xf32>) -> tensor<1x5xf32>",
                      "the text declares float32 of shape 1x5"),
    "window": ("%r = stablehlo.convolution(%x, %x) dim_numbers = [b, f]x[i, o]->[b, f], window = {} : "
               "(tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32>", "has 0 axes of the image"),
    "reduce": ("%r = stablehlo.reduce(%x init: %l) applies stablehlo.and across dimensions = [0] : "
               "(tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>", "combines elements with stablehlo.and"),
    "start": ("%r = stablehlo.reduce(%x init: %h) applies stablehlo.add across dimensions = [0] : "
              "(tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>", "starts with a value"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    line, why = REFUSED[name]
    with pytest.raises(CompileError, match=why):
        read(chain(line, result=line.rpartition(" ")[2]))


def test_sums_of_another_scale_are_refused() -> None:
    sums = "tensor<2x3x!quant.uniform<i32:f32, 0.3>>"
    body = f"    %r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({quantised_type('2x6')}, {quantised_type('6x3')}) -> {sums}"
    with pytest.raises(CompileError, match="whose scale is not the product"):
        read(function(body, f"%x: {quantised_type('2x6')}, %y: {quantised_type('6x3')}", sums))
