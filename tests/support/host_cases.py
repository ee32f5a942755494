"""Random models of one operator that the device does not have, or not in that form: what the host evaluates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator
Draw = tuple[str, list[Any], dict[str, Any], int]
"""Operator, inputs (arrays; constants as a list of one array; None where left out), attributes, number of outputs."""

OPSETS = (11, 12, 13, 16, 18, 19, 20, 21, 22)
"""Versions to draw from; a draw that the version does not define is drawn again."""


def case(rng: Rng, kind: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A valid model of one operator of a `kind` of `KINDS`, and inputs for it."""
    while True:
        op, inputs, attributes, outputs = KINDS[kind](rng)
        model, feeds = build(op, inputs, attributes, outputs, int(rng.choice(OPSETS)))
        if model is not None:
            return model, feeds


def build(
    op: str, inputs: list[Any], attributes: dict[str, Any], outputs: int, opset: int
) -> tuple[onnx.ModelProto | None, dict[str, np.ndarray]]:
    """The model, or None if it is not valid in that version."""
    names, feeds, constants = [], {}, []
    for index, value in enumerate(inputs):
        names.append("" if value is None else f"x{index}")
        if isinstance(value, list):
            constants.append(numpy_helper.from_array(value[0], names[-1]))
        elif value is not None:
            feeds[names[-1]] = value
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, name="only", **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    wanted = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results]
    graph = helper.make_graph([node], "one", given, wanted, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        onnx.checker.check_model(inferred)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return None, {}
    return inferred, feeds


def some(rng: Rng, low: int, high: int, count: int) -> list[int]:
    return [int(value) for value in rng.integers(low, high, count)]


def floats(rng: Rng, shape: Any, spread: float = 2.0) -> np.ndarray:
    return rng.normal(0, spread, tuple(shape)).astype(np.float32)


def numbers(rng: Rng, shape: Any, kinds: str = "f") -> np.ndarray:
    """Values of a random type: f float32, d float64, h float16, b int8, B uint8, i int32, l int64, ? bool."""
    kind = str(rng.choice(list(kinds)))
    if kind in "fdh":
        return floats(rng, shape).astype(kind)
    if kind == "?":
        return rng.integers(0, 2, tuple(shape)).astype(bool)
    low, high = (0, 256) if kind == "B" else (-128, 128)
    return rng.integers(low, high, tuple(shape)).astype(np.dtype(kind))


def shape(rng: Rng, low: int = 1, high: int = 5) -> list[int]:
    return some(rng, 1, 6, int(rng.integers(low, high)))


def axis(rng: Rng, rank: int) -> int:
    return int(rng.integers(-rank, rank))


def maybe(rng: Rng, value: Any, chance: float = 0.5) -> Any:
    return value if rng.random() < chance else None


def given(**attributes: Any) -> dict[str, Any]:
    """Attributes but those that are None."""
    return {name: value for name, value in attributes.items() if value is not None}


UNARY = [
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal",
    "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan",
    "Tanh", "ThresholdedRelu", "IsNaN", "IsInf", "Size", "Shape", "Flatten", "Hardmax", "LogSoftmax", "Softmax",
    "MeanVarianceNormalization", "BitwiseNot", "LpNormalization", "GlobalAveragePool", "GlobalMaxPool",
    "GlobalLpPool", "Det", "EyeLike", "NonZero",
]  # fmt: skip


def unary(rng: Rng) -> Draw:
    op = str(rng.choice(UNARY))
    size = shape(rng)
    attributes: dict[str, Any] = {}
    if op in ("Flatten", "Hardmax", "LogSoftmax", "Softmax", "LpNormalization"):
        attributes = given(axis=maybe(rng, axis(rng, len(size))))
    if op == "LpNormalization":
        attributes |= {"p": int(rng.integers(1, 3))}
    if op in ("Celu", "Elu", "LeakyRelu", "Selu", "ThresholdedRelu", "HardSigmoid"):
        attributes = given(alpha=maybe(rng, float(rng.uniform(0.1, 2))))
    if op == "Gelu":
        attributes = {"approximate": str(rng.choice(["none", "tanh"]))}
    if op == "Shrink":
        attributes = {"lambd": 0.7, "bias": 0.3}
    if op.startswith("Global") or op == "MeanVarianceNormalization":
        size = some(rng, 1, 5, int(rng.integers(3, 6)))
    if op == "GlobalLpPool":
        attributes = {"p": int(rng.integers(1, 4))}
    if op == "Det":
        size = [*size, 3, 3]
    kinds = {"Not": "?", "BitwiseNot": "bBil", "Sign": "fdbBil", "Abs": "fdbBil", "Neg": "fdbil"}.get(
        op, "fd"
    )
    value = numbers(rng, size if op != "EyeLike" else some(rng, 1, 6, 2), kinds)
    if op in ("Log", "Sqrt", "Acosh"):
        value = np.abs(value) + 1
    if op in ("Acos", "Asin", "Atanh"):
        value = np.tanh(value)
    return op, [value], attributes, 1


BINARY = [
    "Add", "Sub", "Mul", "Div", "Mod", "Pow", "PRelu", "And", "Or", "Xor", "Equal", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Max", "Min", "Sum", "Mean", "MatMul",
    "Where", "Expand", "BitShift",
]  # fmt: skip


def binary(rng: Rng) -> Draw:
    op = str(rng.choice(BINARY))
    size = shape(rng, 0)
    other = [int(rng.choice([1, most])) for most in size[int(rng.integers(len(size) + 1)) :]]
    kinds = {"And": "?", "Or": "?", "Xor": "?"}.get(op, "bBil" if op.startswith("Bitwise") else "fdil")
    if op in ("Equal", "Less", "Greater", "Max", "Min", "Add", "Sub", "Mul"):
        kinds = "fdbBil"
    a = numbers(rng, size, kinds)
    b = numbers(rng, other, kinds).astype(a.dtype) if a.dtype != bool else numbers(rng, other, "?")
    attributes: dict[str, Any] = {}
    if op in ("Div", "Mod"):
        b = np.where(b == 0, np.ones((), b.dtype), b)
    if op == "Mod":
        attributes = {"fmod": int(a.dtype.kind == "f" or rng.integers(2))}
    if op == "Pow":
        a, b = np.abs(a) % 5 + 1, b % 3
        a, b = np.asarray(a), np.asarray(b)
    if op == "MatMul":
        m, k, n = some(rng, 1, 6, 3)
        a = numbers(rng, [*some(rng, 1, 3, int(rng.integers(0, 3))), m, k], "fdil")
        b = numbers(rng, [k, n], "f").astype(a.dtype)
    if op == "Where":
        return op, [numbers(rng, other, "?"), a, b], {}, 1
    if op == "Expand":
        return op, [a, [np.array(shape(rng, 0), np.int64)]], {}, 1
    if op == "BitShift":
        a, b = (rng.integers(0, 200, tuple(item)).astype(np.uint8) for item in (size, other))
        return op, [a, b % np.uint8(8)], {"direction": str(rng.choice(["LEFT", "RIGHT"]))}, 1
    return op, [a, b], attributes, 1


def reduction(rng: Rng) -> Draw:
    op = "Reduce" + str(
        rng.choice(["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"])
    )
    size = shape(rng)
    axes = maybe(rng, sorted({axis(rng, len(size)) % len(size) for _ in range(2)}), 0.8)
    value = numbers(rng, size, "fdil" if op != "ReduceLogSum" else "f")
    value = np.abs(value) + np.ones((), value.dtype) if op == "ReduceLogSum" else value
    value = value % 7 if op == "ReduceProd" and value.dtype.kind == "i" else value
    keep = given(keepdims=maybe(rng, int(rng.integers(2))))
    if rng.integers(2):
        return op, [value], keep | given(axes=axes), 1
    none = given(noop_with_empty_axes=maybe(rng, int(rng.integers(2))))
    return op, [value, None if axes is None else [np.array(axes, np.int64)]], keep | none, 1


def index(rng: Rng) -> Draw:
    op = str(rng.choice(["ArgMax", "ArgMin", "TopK", "CumSum", "Trilu", "OneHot"]))
    size = shape(rng)
    along = axis(rng, len(size))
    value = rng.permutation(int(np.prod(size))).reshape(size).astype(str(rng.choice(list("fil"))))
    if op == "CumSum":
        flags = {"exclusive": int(rng.integers(2)), "reverse": int(rng.integers(2))}
        return op, [value, [np.array(along, np.int64)]], flags, 1
    if op == "Trilu":
        return (
            op,
            [numbers(rng, [*size, 4, 5], "fil"), [np.array(int(rng.integers(-3, 4)), np.int64)]],
            {"upper": int(rng.integers(2))},
            1,
        )
    if op == "TopK":
        k = np.array([int(rng.integers(1, size[along] + 1))], np.int64)
        return op, [value, [k]], {"axis": along, "largest": int(rng.integers(2))}, 2
    if op == "OneHot":
        indices = rng.integers(-4, 4, tuple(size))
        return op, [indices, [np.array(4, np.int64)], [np.array([0, 3], np.float32)]], {"axis": along}, 1
    value = value // value.dtype.type(2)
    flags = {"axis": along, "keepdims": int(rng.integers(2)), "select_last_index": int(rng.integers(2))}
    return op, [value], flags, 1


def window(rng: Rng, rank: int, spread: int = 8) -> tuple[list[int], dict[str, Any]]:
    """Sizes, and kernel, strides, pads and the like that fit them."""
    kernel = some(rng, 1, 4, rank)
    attributes = given(
        kernel_shape=kernel,
        strides=maybe(rng, some(rng, 1, 4, rank), 0.8),
        dilations=maybe(rng, some(rng, 1, 3, rank), 0.3),
    )
    auto = str(rng.choice(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"], p=[0.7, 0.1, 0.1, 0.1]))
    if auto != "NOTSET":
        attributes |= {"auto_pad": auto}
        attributes.pop("dilations", None)  # which ONNX Runtime then leaves out
    elif rng.integers(4):
        attributes |= {"pads": [int(rng.integers(0, kernel[axis % rank])) for axis in range(2 * rank)]}
    return some(rng, 5, spread, rank), attributes


def pool(rng: Rng) -> Draw:
    op = str(rng.choice(["MaxPool", "AveragePool", "LpPool"]))
    size, attributes = window(rng, int(rng.integers(1, 4)))
    attributes |= given(ceil_mode=maybe(rng, int(rng.integers(2))))
    if op == "AveragePool":
        attributes |= given(count_include_pad=maybe(rng, int(rng.integers(2))))
    if op == "LpPool":
        attributes |= {"p": int(rng.integers(1, 4))}
    full = [int(rng.integers(1, 3)), int(rng.integers(1, 4)), *size]
    value = numbers(rng, full, "fdbB" if op == "MaxPool" else "f")
    return op, [value], attributes, 1


def convolution(rng: Rng) -> Draw:
    op = str(rng.choice(["Conv", "ConvTranspose", "ConvInteger", "QLinearConv"]))
    rank = int(rng.integers(1, 3))
    size, attributes = window(rng, rank, 10)
    groups = int(rng.integers(1, 3))
    channels, outputs = groups * int(rng.integers(1, 3)), int(rng.integers(1, 3))
    attributes |= {"group": groups}
    kernel = attributes["kernel_shape"]
    full = [int(rng.integers(1, 3)), channels, *size]
    if op == "ConvTranspose":
        if rng.integers(3) == 0:
            strides = attributes.get("strides", [1] * rank)
            attributes |= {"output_padding": [int(rng.integers(0, most)) for most in strides]}
        weight = floats(rng, [channels, outputs, *kernel])
    else:
        weight = floats(rng, [groups * outputs, channels // groups, *kernel])
    if op in ("Conv", "ConvTranspose"):
        bias = maybe(rng, floats(rng, [groups * outputs]))
        return op, [floats(rng, full), [weight], bias], attributes, 1
    return op, *_integers(rng, op, full, list(weight.shape), groups * outputs), attributes, 1


def _integers(rng: Rng, op: str, first: list[int], second: list[int], outputs: int) -> tuple[list[Any]]:
    """Operands of an integer product, with scales and zero points if it has them."""
    a, b = numbers(rng, first, "B"), numbers(rng, second, "bB")
    zeros = [np.array(rng.integers(0, 100)).astype(value.dtype) for value in (a, b)]
    if op in ("ConvInteger", "MatMulInteger"):
        return ([a, [b], [zeros[0]], [zeros[1]]],)
    scales = [np.array(rng.uniform(0.01, 0.1), np.float32) for _ in range(2)]
    out = np.array(float(scales[0] * scales[1]) * 40 * np.sqrt(b[0].size) + 0.01, np.float32)
    bias = [] if op == "QLinearMatMul" else [maybe(rng, [rng.integers(-999, 999, outputs).astype(np.int32)])]
    last = [[out], [np.array(7, a.dtype)], *bias]
    return ([a, [scales[0]], [zeros[0]], [b], [scales[1]], [zeros[1]], *last],)


def product(rng: Rng) -> Draw:
    op = str(rng.choice(["Gemm", "MatMulInteger", "QLinearMatMul", "Einsum"]))
    m, k, n = some(rng, 1, 8, 3)
    if op == "Einsum":
        return op, [floats(rng, [m, k]), floats(rng, [n, k])], {"equation": "ij,kj->ik"}, 1
    if op == "Gemm":
        turned = some(rng, 0, 2, 2)
        a = floats(rng, [k, m] if turned[0] else [m, k])
        b = floats(rng, [n, k] if turned[1] else [k, n])
        c = maybe(rng, floats(rng, [[n], [m, n], [1, n], [m, 1], [1], []][int(rng.integers(6))]))
        more = given(alpha=maybe(rng, 0.5), beta=maybe(rng, 2.0))
        return op, [a, b, c], {"transA": turned[0], "transB": turned[1]} | more, 1
    return op, *_integers(rng, op, [m, k], [k, n], n), {}, 1


MOVEMENTS = [
    "Pad", "Slice", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Concat", "Split",
    "Tile", "Transpose", "Reshape", "DepthToSpace", "SpaceToDepth", "Squeeze", "Unsqueeze", "ReverseSequence",
    "Compress", "Unique",
]  # fmt: skip


def movement(rng: Rng) -> Draw:
    op = str(rng.choice(MOVEMENTS))
    size = shape(rng)
    rank, value = len(size), numbers(rng, size, "fl")
    along = axis(rng, rank)
    if op == "Pad":
        mode = str(rng.choice(["constant", "reflect", "edge", "wrap"]))
        pads = [int(rng.integers(-1, max(1, size[at % rank]))) for at in range(2 * rank)]
        fill = maybe(rng, np.array(3, value.dtype)) if mode == "constant" else None
        return op, [value, [np.array(pads, np.int64)], fill], {"mode": mode}, 1
    if op == "Slice":
        step = int(rng.choice([-2, -1, 1, 2, 3]))
        ends = [[np.array([limit], np.int64)] for limit in some(rng, -7, 8, 2)]
        return op, [value, *ends, [np.array([along], np.int64)], [np.array([step], np.int64)]], {}, 1
    if op == "Gather":
        indices = rng.integers(-size[along], size[along], tuple(shape(rng, 0, 3)))
        return op, [value, indices], {"axis": along}, 1
    if op == "GatherElements":
        other = [int(rng.integers(1, most + 1)) for most in size]
        return op, [value, rng.integers(-size[along], size[along], tuple(other))], {"axis": along}, 1
    if op == "GatherND":
        depth = int(rng.integers(1, rank + 1))
        lead = some(rng, 1, 4, int(rng.integers(0, 3)))
        return op, [value, rng.integers(0, min(size), (*lead, depth))], {}, 1
    if op == "ScatterElements":
        other = [int(rng.integers(1, most + 1)) for most in size]
        places = np.arange(size[along])[: other[along % rank]].reshape([-1] + [1] * (rank - 1 - along % rank))
        indices = np.broadcast_to(places, other).astype(np.int64)
        how = given(reduction=maybe(rng, str(rng.choice(["add", "mul", "max", "min"]))))
        return op, [value, indices, numbers(rng, other, "f").astype(value.dtype)], {"axis": along} | how, 1
    if op == "ScatterND":
        rows = rng.permutation(size[0])[: int(rng.integers(1, size[0] + 1)), None].astype(np.int64)
        how = given(reduction=maybe(rng, str(rng.choice(["add", "mul", "max", "min"]))))
        updates = numbers(rng, [len(rows), *size[1:]], "f").astype(value.dtype)
        return op, [value, rows, updates], how, 1
    if op == "Concat":
        return op, [value, value[::-1], value], {"axis": along}, 1
    if op == "Split":
        first = int(rng.integers(0, size[along] + 1))
        parts = np.array([first, size[along] - first], np.int64)
        return op, [value, [parts]], {"axis": along}, 2
    if op == "Tile":
        return op, [value, [rng.integers(1, 4, rank)]], {}, 1
    if op == "Transpose":
        return op, [value], given(perm=maybe(rng, [int(at) for at in rng.permutation(rank)])), 1
    if op == "Reshape":
        wanted = [0 if rng.integers(2) else most for most in size]
        wanted[int(rng.integers(rank))] = -1
        return op, [value, [np.array(wanted, np.int64)]], {}, 1
    if op in ("DepthToSpace", "SpaceToDepth"):
        layout = {"mode": str(rng.choice(["DCR", "CRD"]))} if op == "DepthToSpace" else {}
        return op, [floats(rng, [2, 8, 4, 6])], {"blocksize": 2, **layout}, 1
    if op == "Squeeze":
        return op, [value.reshape([1, *size, 1]), [np.array([int(rng.choice([0, -1]))], np.int64)]], {}, 1
    if op == "Unsqueeze":
        return op, [value, [np.array([int(rng.integers(-rank - 1, rank + 1))], np.int64)]], {}, 1
    if op == "ReverseSequence":
        order = {"batch_axis": 0, "time_axis": 1} if rng.integers(2) else {"batch_axis": 1, "time_axis": 0}
        time = 5 if order["time_axis"] else 4
        lengths = rng.integers(1, time + 1, 9 - time)
        return op, [floats(rng, [4, 5, 2]), lengths], order, 1
    if op == "Compress":
        return op, [value, rng.integers(0, 2, size[along]).astype(bool)], {"axis": along}, 1
    return op, [value.astype(np.int64) // 64], {"sorted": 1}, 4


def resize(rng: Rng) -> Draw:
    size = [1, int(rng.integers(1, 3)), *some(rng, 2, 7, 2)]
    how: dict[str, Any] = {
        "mode": str(rng.choice(["nearest", "linear", "cubic"])),
        "coordinate_transformation_mode": str(
            rng.choice(["half_pixel", "pytorch_half_pixel", "asymmetric"])  # ONNX tests align_corners
        ),
    }
    if how["mode"] == "nearest":
        rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        how |= {"nearest_mode": str(rng.choice(rounding))}
    if how["mode"] == "cubic":
        how |= {"cubic_coeff_a": float(rng.choice([-0.75, -0.5])), "exclude_outside": int(rng.integers(2))}
    value = floats(rng, size)
    if rng.integers(2):
        factors = [1, 1, *(float(item) for item in rng.choice([0.5, 1, 1.5, 2, 3], 2))]
        return "Resize", [value, None, [np.array(factors, np.float32)]], how, 1
    return "Resize", [value, None, None, [np.array([*size[:2], *some(rng, 1, 12, 2)], np.int64)]], how, 1


NORMALISATIONS = [
    "LayerNormalization", "InstanceNormalization", "GroupNormalization", "BatchNormalization", "LRN",
    "RMSNormalization",
]  # fmt: skip


def normalisation(rng: Rng) -> Draw:
    op = str(rng.choice(NORMALISATIONS))
    size = [int(rng.integers(1, 3)), 4, *some(rng, 2, 5, int(rng.integers(1, 3)))]
    value = floats(rng, size)
    each = [floats(rng, [4]), floats(rng, [4])]
    if op in ("LayerNormalization", "RMSNormalization"):
        along = axis(rng, len(size))
        scale = [floats(rng, size[along:]) for _ in range(1 if op[0] == "R" else 2)]
        return op, [value, *scale], {"axis": along}, 1
    if op == "GroupNormalization":
        return op, [value, *each], {"num_groups": int(rng.choice([1, 2, 4]))}, 1
    if op == "BatchNormalization":
        return op, [value, *each, floats(rng, [4]), np.abs(floats(rng, [4])) + 0.1], {}, 1
    if op == "LRN":
        return (
            op,
            [floats(rng, [1, 6, 3, 3])],
            {"size": int(rng.integers(1, 6)), "alpha": 0.5, "bias": 2.0},
            1,
        )
    return op, [value, *each], {}, 1


def quantisation(rng: Rng) -> Draw:
    op = str(rng.choice(["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"]))
    size = shape(rng, 1, 4)
    if op == "DynamicQuantizeLinear":
        return op, [floats(rng, size)], {}, 3
    along = axis(rng, len(size))
    each = bool(rng.integers(2))
    count = (size[along],) if each else ()
    scale = rng.uniform(0.01, 0.1, count).astype(np.float32)
    kind = str(rng.choice(["b", "B", "h", "H"])).replace("h", "i2").replace("H", "u2")
    zero = maybe(rng, [rng.integers(0, 100, count).astype(np.dtype(kind))], 0.8)
    values = floats(rng, size)
    if op == "DequantizeLinear":
        low, high = np.iinfo(np.dtype(kind)).min, np.iinfo(np.dtype(kind)).max
        values = rng.integers(low, high, tuple(size)).astype(np.dtype(kind))
    return op, [values, [scale], zero], {"axis": along} if each else {}, 1


def recurrent(rng: Rng) -> Draw:
    op = str(rng.choice(["LSTM", "GRU", "RNN"]))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    steps, batch, size, hidden = some(rng, 1, 5, 4)
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    ways = 1 + (direction == "bidirectional")
    inputs: list[Any] = [
        floats(rng, [steps, batch, size], 0.5),
        floats(rng, [ways, gates * hidden, size], 0.5),
        floats(rng, [ways, gates * hidden, hidden], 0.5),
        maybe(rng, floats(rng, [ways, 2 * gates * hidden], 0.5)),
        maybe(rng, rng.integers(1, steps + 1, batch).astype(np.int32), 0.3),
        maybe(rng, floats(rng, [ways, batch, hidden], 0.5)),
    ]
    how: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        how |= {"linear_before_reset": int(rng.integers(2))}
    return op, inputs, how, 2


def sampling(rng: Rng) -> Draw:
    op = str(rng.choice(["GridSample", "RoiAlign", "Upsample", "AffineGrid", "Col2Im"]))
    if op == "GridSample":
        how = {
            "mode": str(rng.choice(["linear", "nearest", "bilinear"])),
            "padding_mode": str(rng.choice(["zeros", "border", "reflection"])),
            "align_corners": int(rng.integers(2)),
        }
        grid = rng.uniform(-1.2, 1.2, (2, 3, 4, 2)).astype(np.float32)
        return op, [floats(rng, [2, 2, 4, 5]), grid], how, 1
    if op == "RoiAlign":
        corner = rng.uniform(0, 4, (3, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(1, 4, (3, 2))], 1).astype(np.float32)
        how = {"output_height": 2, "output_width": 3, "sampling_ratio": int(rng.integers(0, 3))}
        how |= {"mode": str(rng.choice(["avg", "max"])), "spatial_scale": 0.5}
        return op, [floats(rng, [2, 2, 8, 8]), boxes, np.array([0, 1, 1], np.int64)], how, 1
    if op == "AffineGrid":
        sizes = [np.array([2, 3, 4, 5], np.int64)]
        return op, [floats(rng, [2, 2, 3]), sizes], {"align_corners": int(rng.integers(2))}, 1
    if op == "Col2Im":
        return (
            op,
            [floats(rng, [1, 8, 20]), [np.array([5, 6], np.int64)], [np.array([2, 2], np.int64)]],
            {},
            1,
        )
    return op, [floats(rng, [1, 2, 3, 4]), [np.array([1, 1, 2, 3], np.float32)]], {"mode": "nearest"}, 1


KINDS: dict[str, Callable[[Rng], Draw]] = {
    "unary": unary,
    "binary": binary,
    "reduction": reduction,
    "index": index,
    "pool": pool,
    "convolution": convolution,
    "product": product,
    "movement": movement,
    "resize": resize,
    "normalisation": normalisation,
    "quantisation": quantisation,
    "recurrent": recurrent,
    "sampling": sampling,
}
"""Generators by what they draw."""
