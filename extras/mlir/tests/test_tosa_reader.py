"""Foreign TOSA text: the bytes of the specification, on the device or on the host."""
# ruff: noqa: E501  # operations are printed in one line

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from support.graph_runs import device_ops, on_host, run_graph

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Conv, Pool, Rescale
from weft.extras.mlir.operators.tosa_products import sums_range
from weft.extras.mlir.reader import read
from weft.extras.mlir.tests.support import tosa_numpy


class Text:
    """A function of TOSA, operation by operation."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        self.arguments = arguments
        self.types = {f"%x{at}": type_ for at, type_ in enumerate(arguments)}

    def constant(self, values: np.ndarray) -> str:
        kind = {"int8": "i8", "int32": "i32", "int64": "index"}[values.dtype.name]
        sizes = "".join(f"{size}x" for size in values.shape)
        name = "tosa.const_shape" if kind == "index" else "tosa.const"
        output = f"!tosa.shape<{values.size}>" if kind == "index" else f"tensor<{sizes}{kind}>"
        attribute = f"values = dense<{values.tolist()}> : tensor<{sizes}{kind}>"
        return self._add(f'"{name}"() <{{{attribute}}}> : () -> {output}', output)

    def number(self, value: int, kind: str = "int8") -> str:
        return self.constant(np.array([value], kind))

    def op(self, name: str, operands: list[str], result: str, attributes: str = "") -> str:
        types = ", ".join(self.types[operand] for operand in operands)
        return self._add(
            f"tosa.{name} {', '.join(operands)} {{{attributes}}} : ({types}) -> {result}", result
        )

    def _add(self, text: str, type_: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"    {name} = {text}")
        self.types[name] = type_
        return name

    def text(self, *results: str) -> bytes:
        arguments = ", ".join(f"%x{at}: {type_}" for at, type_ in enumerate(self.arguments))
        types = ", ".join(self.types[result] for result in results)
        body = "\n".join(self.lines)
        return f"func.func @main({arguments}) -> ({types}) {{\n{body}\n    return {', '.join(results)} : {types}\n}}\n".encode()

    def rescale(
        self,
        x: str,
        multipliers: list[int],
        shifts: list[int],
        zeros: tuple[int, int],
        result: str,
        rounding: str,
    ) -> str:
        kinds = ["int32" if "i32" in type_ else "int8" for type_ in (self.types[x], result)]
        operands = [x, self.constant(np.array(multipliers, np.int32)), self.constant(np.array(shifts, np.int8)),
                    self.number(zeros[0], kinds[0]), self.number(zeros[1], kinds[1])]  # fmt: skip
        flags = f"scale32 = true, rounding_mode = {rounding}, per_channel = {'true' if len(multipliers) > 1 else 'false'}"
        return self.op(
            "rescale", operands, result, flags + ", input_unsigned = false, output_unsigned = false"
        )


def check(text: bytes, *shapes: tuple[int, ...], seed: int = 0) -> dict[str, str]:
    """Compare a read model with the specification, byte for byte; return the operators on the host."""
    rng = np.random.default_rng(seed)
    arguments = [rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    graph = import_model(text)
    feeds = dict(zip(graph.inputs, arguments, strict=True))
    wanted = tosa_numpy.run(text.decode(), *arguments)
    for output, value in zip(run_graph(graph, feeds).values(), wanted, strict=True):
        np.testing.assert_array_equal(output, value, strict=True)
    return on_host(graph)


def convolution_text(seed: int, bits: int, rounding: str, clamp: bool = False) -> bytes:
    """Return a convolution with multipliers of `bits` bits, and the operations after it."""
    rng, text = np.random.default_rng(seed), Text("tensor<1x6x6x3xi8>")
    weights = text.constant(rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8))
    bias = text.constant(rng.integers(-3000, 3000, 4).astype(np.int32))
    steps = (
        "pad = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>, dilation = array<i64: 1, 1>, acc_type = i32"
    )
    total = text.op(
        "conv2d", ["%x0", weights, bias, text.number(5), text.number(0)], "tensor<1x6x6x4xi32>", steps
    )
    multipliers = [int(number) << (31 - bits) for number in rng.integers(1 << (bits - 1), 1 << bits, 4)]
    result = "tensor<1x6x6x4xi8>"
    output = text.rescale(
        total, multipliers, [int(shift) for shift in rng.integers(37, 39, 4)], (0, -3), result, rounding
    )
    if clamp:
        output = text.op("clamp", [output], result, "min_val = -3 : i8, max_val = 100 : i8")
    return text.text(output)


@pytest.mark.parametrize("seed", range(3))
def test_multipliers_of_24_bits_run_on_the_device(seed: int) -> None:
    text = convolution_text(seed, 24, "SINGLE_ROUND", clamp=True)
    assert check(text, (1, 6, 6, 3)) == {}
    (op,) = device_ops(import_model(text))
    assert isinstance(op, Conv)
    assert (op.low, op.high) == (-3, 100)


@pytest.mark.parametrize("rounding", ["SINGLE_ROUND", "DOUBLE_ROUND"])
@pytest.mark.parametrize("seed", range(4))
def test_multipliers_of_31_bits_keep_their_bytes(seed: int, rounding: str) -> None:
    """On the device where a mantissa gives equal bytes, else on the host, whose rounding has its own name."""
    hosted = check(convolution_text(seed, 31, rounding), (1, 6, 6, 3))
    assert not hosted or any("exact_rounding_of_tosa" in name for name in hosted)


@pytest.mark.parametrize("multiplier", [1 << 30, 1 << 29, 1431655765, 1999999999])
@pytest.mark.parametrize("rounding", ["SINGLE_ROUND", "DOUBLE_ROUND"])
def test_rescale_of_bytes_runs_on_the_device(multiplier: int, rounding: str) -> None:
    """As a requantisation, or as a table with TOSA's result for every byte."""
    text = Text("tensor<1x2x8x16xi8>")
    output = text.rescale("%x0", [multiplier], [31], (-7, 9), "tensor<1x2x8x16xi8>", rounding)
    source = text.text(output)
    assert check(source, (1, 2, 8, 16)) == {}
    assert all(isinstance(op, Rescale) for op in device_ops(import_model(source)))


def test_tables_and_clamps() -> None:
    text = Text("tensor<1x4x4x16xi8>")
    entries = np.random.default_rng(0).integers(-128, 128, 256).astype(np.int8)
    output = text.op("table", ["%x0", text.constant(entries)], "tensor<1x4x4x16xi8>")
    last = text.op("clamp", [output], "tensor<1x4x4x16xi8>", "min_val = -20 : i8, max_val = 90 : i8")
    assert check(text.text(output, last), (1, 4, 4, 16)) == {}


@pytest.mark.parametrize(
    "window",
    [("2, 2", "2, 2", "0, 0, 0, 0", 2), ("3, 3", "1, 1", "1, 1, 1, 1", 4), ("4, 4", "1, 1", "0, 0, 0, 0", 1)],
)
def test_pools_run_on_the_device(window: tuple[str, str, str, int]) -> None:
    """A scale exists with which the device divides as TOSA does, even where padding leaves windows smaller."""
    kernel, stride, pad, size = window
    text = Text("tensor<1x4x4x6xi8>")
    result = f"tensor<1x{size}x{size}x6xi8>"
    steps = f"kernel = array<i64: {kernel}>, stride = array<i64: {stride}>, pad = array<i64: {pad}>"
    most = text.op("max_pool2d", ["%x0"], result, steps)
    mean = text.op("avg_pool2d", ["%x0", text.number(3), text.number(-9)], result, steps + ", acc_type = i32")
    source = text.text(most, mean)
    assert check(source, (1, 4, 4, 6)) == {}
    assert [type(op) for op in device_ops(import_model(source))] == [Pool, Pool]


def test_pools_with_padding_on_some_sides() -> None:
    """Kernels, strides and padding differ by axis and side."""
    text = Text("tensor<1x5x4x6xi8>")
    steps = "kernel = array<i64: 3, 2>, stride = array<i64: 1, 2>, pad = array<i64: 2, 0, 1, 1>"
    result = "tensor<1x5x3x6xi8>"
    most = text.op("max_pool2d", ["%x0"], result, steps)
    mean = text.op("avg_pool2d", ["%x0", text.number(3), text.number(-9)], result, steps + ", acc_type = i32")
    assert check(text.text(most, mean), (1, 5, 4, 6)) == {}


@pytest.mark.parametrize("zero", [-128, -3, 0, 127])
def test_ranges_of_sums_are_tight(zero: int) -> None:
    rng = np.random.default_rng(zero + 128)
    weights, bias = rng.integers(-255, 256, (4, 5)), rng.integers(-1000, 1000, 4)
    low, high = sums_range(weights, bias, "int8", zero)
    ends = np.array([min(-128 - zero, 0), max(127 - zero, 0)])
    every = np.array(list(itertools.product(ends, repeat=5)))
    sums = every @ weights.T + bias
    np.testing.assert_array_equal(sums.min(0), low)
    np.testing.assert_array_equal(sums.max(0), high)


def test_products_of_matrices() -> None:
    rng, text = np.random.default_rng(0), Text("tensor<1x4x8xi8>", "tensor<1x8x4xi8>")
    weights = text.constant(rng.integers(-128, 128, (1, 8, 5)).astype(np.int8))
    total = text.op("matmul", ["%x0", weights, text.number(3), text.number(-2)], "tensor<1x4x5xi32>")
    first = text.rescale(total, [1234567 << 7], [40], (0, 1), "tensor<1x4x5xi8>", "SINGLE_ROUND")
    total = text.op("matmul", ["%x0", "%x1", text.number(3), text.number(0)], "tensor<1x4x4xi32>")
    second = text.rescale(total, [1234567 << 7], [45], (0, 1), "tensor<1x4x4xi8>", "SINGLE_ROUND")
    assert check(text.text(first, second), (1, 4, 8), (1, 8, 4)) == {}


def test_movement() -> None:
    text = Text("tensor<1x4x4x6xi8>")
    moved = text.op("transpose", ["%x0"], "tensor<1x6x4x4xi8>", "perms = array<i32: 0, 3, 1, 2>")
    pads = text.constant(np.array([0, 0, 1, 2, 0, 1, 0, 0]))
    padded = text.op("pad", ["%x0", pads, text.number(-5)], "tensor<1x7x5x6xi8>")
    ends = [text.constant(np.array(numbers)) for numbers in ([0, 1, 0, 2], [1, 3, 4, 4])]
    part = text.op("slice", ["%x0", *ends], "tensor<1x3x4x4xi8>")
    both = text.op("concat", ["%x0", "%x0"], "tensor<1x4x4x12xi8>", "axis = 3 : i32")
    flat = text.op("reshape", ["%x0", text.constant(np.array([1, 96]))], "tensor<1x96xi8>")
    check(text.text(moved, padded, part, both, flat), (1, 4, 4, 6))


def test_sums_of_two_bytes_keep_their_bytes() -> None:
    """Converters write a sum at a common scale with 20 more bits. The host adds, as TOSA does."""
    text = Text("tensor<1x2x8x16xi8>", "tensor<1x2x8x16xi8>")
    wide = "tensor<1x2x8x16xi32>"
    parts = [
        text.rescale(f"%x{at}", [multiplier], [11 + at], (zero, 0), wide, "DOUBLE_ROUND")
        for at, (multiplier, zero) in enumerate([(1 << 30, 3), (1400000001, -4)])
    ]
    total = text.op("add", parts, wide)
    output = text.rescale(total, [1717986918], [51], (0, 2), "tensor<1x2x8x16xi8>", "DOUBLE_ROUND")
    assert check(text.text(output), (1, 2, 8, 16), (1, 2, 8, 16))


OLDER = """
func.func @main(%x: tensor<1x4x4x2xi8>) -> tensor<1x3xi8> {
  %w = "tosa.const"() {value = dense<[[[[1, -2]]], [[[3, 100]]], [[[-5, 6]]]]> : tensor<3x1x1x2xi8>} : () -> tensor<3x1x1x2xi8>
  %b = "tosa.const"() {value = dense<[10, -20, 30]> : tensor<3xi32>} : () -> tensor<3xi32>
  %0 = "tosa.conv2d"(%x, %w, %b) {dilation = array<i64: 1, 1>, pad = array<i64: 0, 0, 0, 0>, quantization_info = #tosa.conv_quant<input_zp = 7, weight_zp = 0>, stride = array<i64: 1, 1>} : (tensor<1x4x4x2xi8>, tensor<3x1x1x2xi8>, tensor<3xi32>) -> tensor<1x4x4x3xi32>
  %1 = "tosa.rescale"(%0) {double_round = false, input_zp = 0 : i32, multiplier = array<i32: 1073741824>, output_zp = -4 : i32, per_channel = false, scale32 = true, shift = array<i8: 37>} : (tensor<1x4x4x3xi32>) -> tensor<1x4x4x3xi8>
  %2 = "tosa.clamp"(%1) {max_fp = 0.0 : f32, max_int = 127 : i64, min_fp = 0.0 : f32, min_int = -4 : i64} : (tensor<1x4x4x3xi8>) -> tensor<1x4x4x3xi8>
  %3 = "tosa.avg_pool2d"(%2) {acc_type = i32, kernel = array<i64: 4, 4>, pad = array<i64: 0, 0, 0, 0>, quantization_info = #tosa.unary_quant<input_zp = -4, output_zp = -4>, stride = array<i64: 1, 1>} : (tensor<1x4x4x3xi8>) -> tensor<1x1x1x3xi8>
  %4 = "tosa.reshape"(%3) {new_shape = array<i64: 1, 3>} : (tensor<1x1x1x3xi8>) -> tensor<1x3xi8>
  return %4 : tensor<1x3xi8>
}
"""
"""A text of versions before 1.0: zero points, scales and shapes are attributes."""


def test_older_texts() -> None:
    graph = import_model(OLDER.encode())
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 4, 2)).astype(np.int8)
    (output,) = run_graph(graph, {"x": x}).values()
    total = (x.astype(int) - 7) @ np.array([[1, 3, -5], [-2, 100, 6]]) + np.array([10, -20, 30])
    bytes_ = np.clip(
        np.array([tosa_numpy.apply_scale(int(v), 1 << 30, 37, False) for v in total.reshape(-1)]) - 4, -4, 127
    )
    sums = bytes_.reshape(16, 3).sum(0) + 64
    bits = 4
    wanted = [
        tosa_numpy.apply_scale(int(v), (((1 << 30) + 1) << bits) // 16, 30 + bits, False) - 4 for v in sums
    ]
    np.testing.assert_array_equal(output, [wanted])


ROWS = """
func.func @main(%x: tensor<3x5xi8>) -> tensor<3x2xi8> {
  %w = "tosa.const"() {value = dense<[[1, -2, 3, 100, -127], [5, 0, -7, 11, 2]]> : tensor<2x5xi8>} : () -> tensor<2x5xi8>
  %b = "tosa.const"() {value = dense<[10, -2000]> : tensor<2xi32>} : () -> tensor<2xi32>
  %0 = "tosa.fully_connected"(%x, %w, %b) {quantization_info = #tosa.conv_quant<input_zp = 7, weight_zp = 0>} : (tensor<3x5xi8>, tensor<2x5xi8>, tensor<2xi32>) -> tensor<3x2xi32>
  %1 = "tosa.rescale"(%0) {double_round = false, input_zp = 0 : i32, multiplier = array<i32: 1073741824>, output_zp = -4 : i32, per_channel = false, scale32 = true, shift = array<i8: 37>} : (tensor<3x2xi32>) -> tensor<3x2xi8>
  return %1 : tensor<3x2xi8>
}
"""


def test_rows_by_weights_of_older_texts() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (3, 5)).astype(np.int8)
    (output,) = run_graph(import_model(ROWS.encode()), {"x": x}).values()
    weights = np.array([[1, -2, 3, 100, -127], [5, 0, -7, 11, 2]])
    total = (x.astype(int) - 7) @ weights.T + np.array([10, -2000])
    wanted = [tosa_numpy.apply_scale(int(value), 1 << 30, 37, False) - 4 for value in total.reshape(-1)]
    np.testing.assert_array_equal(output, np.clip(wanted, -128, 127).reshape(3, 2))
    four = ROWS.replace(", -127]", "]").replace(", 2]]", "]]").replace("2x5xi8", "2x4xi8")
    with pytest.raises(CompileError, match="has weights for 4 inputs; rows have 5"):
        read(four.encode())


REFUSED = {
    "operation": (r"tosa\.conv2d", "tosa.fft2d", "line 6: tosa.fft2d is not supported"),
    "rounding": ("SINGLE_ROUND", "NO_ROUND", "has rounding_mode 'NO_ROUND'"),
    "stride": (r"stride = array<i64: 1, 1>", "stride = array<i64: 0, 1>", "below 1"),
    "pads": (r"pad = array<i64: 1, 1, 1, 1>", "pad = array<i64: 1, 1>", "there must be 4"),
    "unsigned": ("input_unsigned = false", "input_unsigned = true", "takes int32 as unsigned"),
    "shape": (
        r"-> tensor<1x6x6x4xi32>",
        "-> tensor<1x5x6x4xi32>",
        "of one shape|what the text says|weft reads 8 and 32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    pattern, replacement, why = REFUSED[name]
    text = re.sub(pattern, replacement, convolution_text(0, 24, "SINGLE_ROUND").decode())
    with pytest.raises(CompileError, match=why):
        read(text.encode())


@pytest.mark.parametrize("by", [0, 1, 31, 32, -1])
def test_shifts_to_the_right(by: int) -> None:
    """An int32 can be shifted by 0 to 31 places."""
    text = Text("tensor<1x2x3x4xi8>")
    wide = text.rescale("%x0", [1 << 30], [30 - 20], (5, 0), "tensor<1x2x3x4xi32>", "SINGLE_ROUND")
    count = text.constant(np.full((1, 1, 1, 1), by, np.int32))
    moved = text.op("arithmetic_right_shift", [wide, count], "tensor<1x2x3x4xi32>", "round = false")
    output = text.rescale(moved, [1 << 30], [30 + 13], (0, 0), "tensor<1x2x3x4xi8>", "SINGLE_ROUND")
    if not 0 <= by <= 31:
        with pytest.raises(CompileError, match="by 0 to 31 places"):
            read(text.text(output))
        return
    x = np.random.default_rng(0).integers(-128, 128, (1, 2, 3, 4)).astype(np.int8)
    (actual,) = run_graph(import_model(text.text(output)), {"x0": x}).values()
    shifted = ((x.astype(np.int64) - 5) << 20) >> by
    np.testing.assert_array_equal(actual, np.clip((shifted + (1 << 12)) >> 13, -128, 127))


def test_weights_must_be_constant() -> None:
    text = Text("tensor<1x4x4x2xi8>", "tensor<3x1x1x2xi8>")
    bias = text.constant(np.zeros(3, np.int32))
    steps = "pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 1, 1>, dilation = array<i64: 1, 1>"
    output = text.op(
        "conv2d", ["%x0", "%x1", bias, text.number(0), text.number(0)], "tensor<1x4x4x3xi32>", steps
    )
    with pytest.raises(CompileError, match="takes its weights from operand 1, which is not constant"):
        read(text.text(output))


def test_sums_may_not_leave_32_bits() -> None:
    text = Text("tensor<1x1x1x2xi8>")
    weights = text.constant(np.full((1, 1, 1, 2), 127, np.int8))
    bias = text.constant(np.full(1, (1 << 31) - 1, np.int32))
    steps = "pad = array<i64: 0, 0, 0, 0>, stride = array<i64: 1, 1>, dilation = array<i64: 1, 1>"
    output = text.op(
        "conv2d", ["%x0", weights, bias, text.number(0), text.number(0)], "tensor<1x1x1x1xi32>", steps
    )
    with pytest.raises(CompileError, match="do not fit 32 bits"):
        read(text.text(output))
