"""Random host operators of networks' layers: pools, convolutions, products, recurrent cells, samplers."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.host_draws import Draw, Rng, axis, floats, maybe, numbers, set_attributes, shape, some


def window(rng: Rng, rank: int, spread: int = 8) -> tuple[list[int], dict[str, Any]]:
    """Draw sizes with a kernel, strides, pads and dilations that fit them."""
    kernel = some(rng, 1, 4, rank)
    attributes = set_attributes(
        kernel_shape=kernel,
        strides=maybe(rng, some(rng, 1, 5, rank), 0.8),
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
    attributes |= set_attributes(ceil_mode=maybe(rng, int(rng.integers(2))))
    if op == "AveragePool":
        attributes |= set_attributes(count_include_pad=maybe(rng, int(rng.integers(2))))
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
    """Draw operands of an integer product, with scales and zero points if it has them."""
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
        more = set_attributes(alpha=maybe(rng, 0.5), beta=maybe(rng, 2.0))
        return op, [a, b, c], {"transA": turned[0], "transB": turned[1]} | more, 1
    return op, *_integers(rng, op, [m, k], [k, n], n), {}, 1


def resize(rng: Rng) -> Draw:
    size = [1, int(rng.integers(1, 3)), *some(rng, 2, 7, 2)]
    how: dict[str, Any] = {
        "mode": str(rng.choice(["nearest", "linear", "cubic"])),
        "coordinate_transformation_mode": str(
            rng.choice(["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"])
        ),
    }
    if how["mode"] == "nearest":
        rounding = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        how |= {"nearest_mode": str(rng.choice(rounding))}
    if how["mode"] == "cubic":
        how |= {"cubic_coeff_a": float(rng.choice([-0.75, -0.5])), "exclude_outside": int(rng.integers(2))}
    value = floats(rng, size)
    if rng.integers(2):
        factors = [1, 1, *(float(item) for item in rng.choice([0.5, 0.625, 1, 1.5, 2, 2.75, 3], 2))]
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
