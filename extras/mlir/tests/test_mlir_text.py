"""MLIR text in the forms of exporters, xDSL and MLIR's own tools."""
# ruff: noqa: E501  # operations are printed in one line

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.compiler.errors import CompileError
from weft.extras.mlir.program import Op, Program, import_with_xdsl


def parse_body(
    body: str, types: str = "%a: tensor<2x3xf32>", returned: str = "%a : tensor<2x3xf32>"
) -> Program:
    result = returned.partition(" : ")[2]
    text = f"func.func @main({types}) -> ({result}) {{\n{body}\n  return {returned}\n}}\n"
    program: Program = import_with_xdsl("inline").parse_program(text, "the text")
    return program


def parse_operation(body: str, **arguments: str) -> Op:
    return parse_body(body, **arguments).ops[-1]


def constant(text: str, type_: str) -> np.ndarray:
    value: np.ndarray = parse_operation(f"  %0 = stablehlo.constant dense<{text}> : {type_}").attributes[
        "value"
    ]
    return value


@pytest.mark.parametrize(
    ("text", "type_", "wanted"),
    [
        ("[[1, -2], [3, 4]]", "tensor<2x2xi8>", [[1, -2], [3, 4]]),
        ('"0x01FE0380"', "tensor<2x2xi8>", [[1, -2], [3, -128]]),
        ("7", "tensor<3xi32>", [7, 7, 7]),
        ('"0x07"', "tensor<3xi8>", [7, 7, 7]),
        ("[true, false]", "tensor<2xi1>", [True, False]),
        ('"0x05"', "tensor<3xi1>", [True, False, True]),
        ("0xFF800000", "tensor<f32>", -np.inf),
        ("[0x7FC00000, 1.5]", "tensor<2xf32>", [np.nan, 1.5]),
        ("-1.500000e+00", "tensor<2xbf16>", [-1.5, -1.5]),
        ("0x3C00", "tensor<f16>", 1.0),
        ("255", "tensor<ui8>", 255),
        ("[]", "tensor<0x2xf32>", np.zeros((0, 2))),
    ],
)  # fmt: skip
def test_constants(text: str, type_: str, wanted: Any) -> None:
    actual = constant(text, type_)
    assert actual.shape == np.shape(wanted)
    np.testing.assert_array_equal(actual.astype(np.float64), np.asarray(wanted, np.float64))


def test_splat_constants_take_no_space() -> None:
    actual = constant("0.0", "tensor<1024x1024x1024xf32>")
    assert actual.strides == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "type_", "why"),
    [
        ("[1, 2]", "tensor<3xi8>", "lists of shape"),
        ("[[1], [2, 3]]", "tensor<2x2xi8>", "different lengths"),
        ("300", "tensor<i8>", "do not fit"),
        ("1.5", "tensor<i8>", "with a point"),
        ('"0x0102"', "tensor<3xi8>", "2 bytes in hexadecimal for 3 elements"),
        ('"0xZZ"', "tensor<1xi8>", "not hexadecimal"),
        ("1.0", "tensor<1048576x1048576xf32>", "weft takes up to"),
        ("1.0", "tensor<?xf32>", "not known before running"),
        ("1.0", "f32", "type of a tensor"),
        ("(1.0, 2.0)", "tensor<complex<f32>>", "line 2"),
    ],
)
def test_invalid_constants(text: str, type_: str, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        constant(text, type_)


PAIRS = {
    "convolution": (
        "stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 2], pad = "
        "[[1, 0], [2, 1]], rhs_dilate = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : "
        "(tensor<1x4x4x2xf32>, tensor<1x1x1x2xf32>) -> tensor<1x5x4x2xf32>",
        {"dim_numbers": [["b", 0, 1, "f"], [0, 1, "i", "o"], ["b", 0, 1, "f"]], "feature_group_count": 2,
         "window": {"stride": [1, 2], "pad": [[1, 0], [2, 1]], "rhs_dilate": [1, 1]}, "batch_group_count": 1},
    ),
    "dot_general": (
        "stablehlo.dot_general %a, %a, batching_dims = [0] x [0], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : "
        "(tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>) -> tensor<1x4x4x4x4xf32>",
        {"batching_dims": [[0], [0]], "contracting_dims": [[3], [3]], "precision": ["DEFAULT", "DEFAULT"]},
    ),
    "slice": ("stablehlo.slice %a [0:1, 1:3, 0:4:2, 0:2] : (tensor<1x4x4x2xf32>) -> tensor<1x2x2x2xf32>",
              {"words": [[[0, 1], [1, 3], [0, 4, 2], [0, 2]]]}),
    "reduce": ("stablehlo.reduce(%a init: %w) applies stablehlo.add across dimensions = [1, 2] : "
               "(tensor<1x4x4x2xf32>, tensor<1x1x1x2xf32>) -> tensor<1x2xf32>",
               {"words": ["applies", "stablehlo.add", "across"], "dimensions": [1, 2]}),
    "compare": ("stablehlo.compare GT, %a, %a, FLOAT : (tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>) -> tensor<1x4x4x2xi1>",
                {"words": ["GT", "FLOAT"]}),
    "concatenate": ("stablehlo.concatenate %a, %a, dim = 3 : (tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>) -> tensor<1x4x4x4xf32>",
                    {"dim": 3}),
    "iota": ("stablehlo.iota dim = 1 : tensor<1x4x4x2xi32>", {"dim": 1}),
    "transpose": ("stablehlo.transpose %a, dims = [0, 3, 1, 2] : (tensor<1x4x4x2xf32>) -> tensor<1x2x4x4xf32>",
                  {"dims": [0, 3, 1, 2]}),
    "pad": ("stablehlo.pad %a, %w, low = [0, 1, 0, 0], high = [0, -1, 0, 0], interior = [0, 0, 0, 0] : "
            "(tensor<1x4x4x2xf32>, tensor<1x1x1x2xf32>) -> tensor<1x4x4x2xf32>",
            {"low": [0, 1, 0, 0], "high": [0, -1, 0, 0], "interior": [0, 0, 0, 0]}),
    "add": ("stablehlo.add %a, %a : tensor<1x4x4x2xf32>", {}),
    "max_pool2d": ("tosa.max_pool2d %a kernel([1, 2]) stride([1, 2]) pad([0, 0, 0, 0]) : (tensor<1x4x4x2xf32>) -> tensor<1x4x2x2xf32>",
                   {"kernel": [1, 2], "stride": [1, 2], "pad": [0, 0, 0, 0]}),
    "clamp": ("tosa.clamp %a {max_val = 6.0 : f32, min_val = 0.000000e+00 : f32} : (tensor<1x4x4x2xf32>) -> tensor<1x4x4x2xf32>",
              {"max_val": 6.0, "min_val": 0.0}),
    "rescale": ("tosa.rescale %a, %a, %a, %a, %a scale32(true) rounding_mode<SINGLE_ROUND> per_channel(false) input_unsigned(false) "
                "output_unsigned(false) : (tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>, tensor<1x4x4x2xf32>, "
                "tensor<1x4x4x2xf32>) -> tensor<1x4x4x2xi8>",
                {"scale32": True, "rounding_mode": "SINGLE_ROUND", "per_channel": False, "input_unsigned": False,
                 "output_unsigned": False}),
}  # fmt: skip
"""Operations as JAX and MLIR's tools print them, and their attributes."""


@pytest.mark.parametrize("name", PAIRS)
def test_assembly_forms(name: str) -> None:
    text, wanted = PAIRS[name]
    types = "%a: tensor<1x4x4x2xf32>, %w: tensor<1x1x1x2xf32>"
    op = parse_operation(f'  %0 = {text} loc("x"("y":1:2))', types=types, returned="%a : tensor<1x4x4x2xf32>")
    assert op.name.endswith(name)
    assert op.line == 2
    assert op.attributes == wanted
    assert op.results[0].type.shape == tuple(
        int(size) for size in text.rpartition("tensor<")[2].split("x")[:-1]
    )


def test_generic_form() -> None:
    generic = parse_operation(
        '  %0 = "stablehlo.convolution"(%a, %w) <{batch_group_count = 1 : i64, dimension_numbers = '
        "#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 2 : i64, padding = "
        "dense<[[1, 0], [2, 1]]> : tensor<2x2xi64>, window_strides = array<i64: 1, 2>}> : "
        "(tensor<1x4x4x2xf32>, tensor<1x1x1x2xf32>) -> tensor<1x5x4x2xf32>",
        types="%a: tensor<1x4x4x2xf32>, %w: tensor<1x1x1x2xf32>",
        returned="%a : tensor<1x4x4x2xf32>",
    )
    assert generic.attributes["dimension_numbers"] == "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    assert generic.attributes["window_strides"] == [1, 2]
    assert generic.attributes["padding"].tolist() == [[1, 0], [2, 1]]


def test_calls_are_inlined() -> None:
    text = """
module @m attributes {mhlo.num_partitions = 1 : i32} {
  func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %x, %x : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
  func.func public @main(%arg0: tensor<2xf32>) -> (tensor<2xf32> {jax.result_info = "r"}) {
    %0 = call @twice(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
    %1 = func.call @twice(%0) : (tensor<2xf32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
}
"""
    program = import_with_xdsl("inline").parse_program(text, "the text")
    assert [op.name for op in program.ops] == ["stablehlo.add"] * 2
    assert program.ops[1].operands[0] is program.ops[0].results[0]
    assert program.results == (program.ops[1].results[0],)
    assert program.result_notes == ({"jax.result_info": "r"},)


def test_constants_at_the_end_of_the_file() -> None:
    text = """
func.func @main(%a: tensor<2xi8>) -> tensor<2xi8> {
  %0 = stablehlo.constant dense_resource<w> : tensor<2xi16>
  %1 = "tosa.const"() <{values = dense_resource<w> : tensor<2xi16>}> : () -> tensor<2xi16>
  return %a : tensor<2xi8>
}
{-#
  dialect_resources: {
    builtin: {
      w: "0x020000000100FEFF"
    }
  }
#-}
"""
    ops = import_with_xdsl("inline").parse_program(text, "the text").ops
    assert ops[0].attributes["value"].tolist() == ops[1].attributes["values"].tolist() == [1, -2]
    with pytest.raises(CompileError, match=r"line 3: dense_resource<w> is not in the file"):
        import_with_xdsl("inline").parse_program(text.partition("{-#")[0], "the text")


def test_quantised_types() -> None:
    body = (
        "  %0 = stablehlo.uniform_quantize %a : (tensor<2x3xf32>) -> tensor<2x3x!quant.uniform<i8:f32, 0.5:3>>\n"
        "  %1 = stablehlo.uniform_quantize %a : (tensor<2x3xf32>) -> "
        "tensor<2x3x!quant.uniform<u8<1:254>:f32:1, {0.1, 2.0e-1:7, 1:9}>>"
    )
    first, second = (op.results[0].type for op in parse_body(body).ops)
    assert (first.dtype, second.dtype) == ("int8", "uint8")
    assert first.quantisation is not None
    assert second.quantisation is not None
    assert (
        first.quantisation.axis,
        first.quantisation.scales.tolist(),
        first.quantisation.zeros.tolist(),
    ) == (None, [0.5], [3])
    assert (second.quantisation.axis, second.quantisation.low, second.quantisation.high) == (1, 1, 254)
    assert second.quantisation.scales.tolist() == np.array([0.1, 0.2, 1], np.float32).tolist()
    assert second.quantisation.zeros.tolist() == [0, 7, 9]


@pytest.mark.parametrize(
    ("type_", "why"),
    [
        ("i8:f32, 0.0", "above 0"),
        ("i8:f32, 0.5:200", "zero points"),
        ("i8:f32:5, {0.5}", "along axis 5"),
        ("i8:f32:1, {0.5}", "1 scales along axis 1"),
        ("i9:f32, 0.5", "stored in int9"),
        ("i8<3:3>:f32, 0.5", "do not fit"),
        ("i8:f32, x", "not scales"),
        ("i8:f32, 1e", "not a number"),
        ("nonsense", "not a supported quantised type"),
    ],
)
def test_invalid_quantised_types(type_: str, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        parse_body(
            f"  %0 = stablehlo.uniform_quantize %a : (tensor<2x3xf32>) -> tensor<2x3x!quant.uniform<{type_}>>"
        )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("module {", "line 1"),
        ("module {}", "must have a function main"),
        ("func.func @f() { return }\nfunc.func @g() { return }", "must have a function main"),
        ("func.func private @main(%a: tensor<2xf32>) -> tensor<2xf32>", "has no body"),
        ("func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }", "static shapes"),
        ("func.func @main(%a: f80) -> f80 { return %a : f80 }", "is not supported"),
        ("func.func @main(%a: tensor<2xf32>) { %0 = call @g(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return }", "calls 'g'"),
        ("func.func @main(%a: tensor<2xf32>) { call @main(%a) : (tensor<2xf32>) -> ()\n return }", "no recursion"),
        ("func.func @main(%a: tensor<2xf32>) { call @f(%a) : (tensor<2xf32>) -> ()\n return }\n"
         "func.func @f(%a: tensor<3xf32>) { return }", "other arguments"),
        ("func.func @main(%a: tensor<2xf32>) { %0 = stablehlo.add %a, %b : tensor<2xf32>\n return }", "%b is read before"),
        ("func.func @main() {\n  %0 = stablehlo.constant dense<" + "[" * 50_000 + "> : tensor<1xi8>\n return }", "too deep"),
        ("module {\n" * 20_000, "too deep"),
        ("func.func @main() {\n" + "  %0 = stablehlo.constant dense<1> : tensor<i8>\n" * 3, "line 3: SSA value"),
        ('module @m { "' + "a" * 100_000, "string literal"),
        ("#loc = loc(unknown", "middle of brackets"),
    ],
)  # fmt: skip
def test_invalid_texts(text: str, why: str) -> None:
    with pytest.raises(CompileError, match=why):
        import_with_xdsl("inline").parse_program(text, "the text")


def test_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.extras.mlir.text.OPERATIONS", 10)
    with pytest.raises(CompileError, match="more than 10 operations"):
        parse_body("".join(f"  %x{at} = stablehlo.abs %a : tensor<2x3xf32>\n" for at in range(11)))


def test_calls_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.extras.mlir.inline.WRITTEN_OUT", 100)
    calls = "".join(
        f"func.func private @f{at}(%a: tensor<2xf32>) -> tensor<2xf32> {{\n"
        f"  %0 = call @f{at + 1}(%a) : (tensor<2xf32>) -> tensor<2xf32>\n"
        f"  %1 = call @f{at + 1}(%0) : (tensor<2xf32>) -> tensor<2xf32>\n  return %1 : tensor<2xf32>\n}}\n"
        for at in range(30)
    )
    text = (
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n  %0 = call @f0(%a) : (tensor<2xf32>) -> tensor<2xf32>\n"
        f"  return %0 : tensor<2xf32>\n}}\n{calls}func.func private @f30(%a: tensor<2xf32>) -> tensor<2xf32> {{\n"
        "  return %a : tensor<2xf32>\n}\n"
    )
    with pytest.raises(CompileError, match="calls make more than 100 operations"):
        import_with_xdsl("inline").parse_program(text, "the text")
